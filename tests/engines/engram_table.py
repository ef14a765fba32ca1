"""A checkpoint whose Engram tables are small and otherwise like the released ones, and its rows."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hooked import hooked
from safetensors.torch import save_file
from sglang.srt.layers import engram
from sglang.srt.runtime_context import get_context, get_parallel

from dsv41 import rows
from dsv41.adapters.sglang import engram_nvme, engram_prefetch
from dsv41.geometry import PARTITIONS, Engram, Shard, multipliers_of

# 24 columns as released, primes from 211 on: 6,616 rows of layer 1 and 10,416 of layer 14
TABLES = Engram(
    layer_ids=(1, 14),
    bucket=211,
    compressed_vocab=99_092,
    multipliers=multipliers_of(99_092, (1, 14)),
)
TEXT_CONFIG = {
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [TABLES.rows(1), TABLES.rows(14)],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 211,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99_092,
}
CONFIG = SimpleNamespace(**TEXT_CONFIG, rms_norm_eps=1e-20, hidden_size=64, hc_mult=4)
INDEX = "model.safetensors.index.json"
BODY, TABLE_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SIZES = (1, 3, 4)
ADAPTERS = (engram_nvme.ADAPTER, engram_prefetch.ADAPTER)


@dataclass(frozen=True, kw_only=True)
class Files:
    checkpoint: Path
    rows: Path


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """The release's EngramEmbedding and ours: the frame rebinds names, but no attributes."""

    stock: type
    ours: type


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("engram")
    checkpoint = write(folder / "checkpoint")
    return Files(checkpoint=checkpoint, rows=pack(checkpoint, folder / "rows"))


@pytest.fixture(scope="module")
def kinds(files: Files) -> Iterator[Kinds]:
    """EngramEmbedding before and after the frame; what was hooked is put back afterwards."""
    stock = engram.EngramEmbedding
    with hooked(*ADAPTERS, DSV41_PACKED_DIR=str(files.rows), DSV41_ENGRAM_PREFETCH="1"):
        yield Kinds(stock=stock, ours=engram.EngramEmbedding)


def table(layer: int, *, low: int = 100, high: int = 140) -> tuple[torch.Tensor, torch.Tensor]:
    """Random weights without NaN codes, and scales of these codes."""
    draw = torch.Generator().manual_seed(layer)
    count = TABLES.rows(layer)
    codes = torch.randint(0, 127, (count, 256), generator=draw)
    signs = torch.randint(0, 2, (count, 256), generator=draw) * 128
    scales = torch.randint(low, high, (count, 8), generator=draw, dtype=torch.uint8)
    weights = (codes + signs).to(torch.uint8).view(torch.float8_e4m3fn)
    return weights, scales.view(torch.float8_e8m0fnu)


def write(folder: Path, **codes: int) -> Path:
    """The checkpoint: one file with the tables, one with another tensor, index and config."""
    folder.mkdir(parents=True)
    tensors = {}
    for layer in TABLES.layer_ids:
        for part, values in zip(("weight", "scale"), table(layer, **codes), strict=True):
            tensors[f"layers.{layer}.engram.embed.{part}"] = values
    body = {"layers.0.attn_norm.weight": torch.ones(64, dtype=torch.bfloat16)}
    save_file(tensors, folder / TABLE_FILE)
    save_file(body, folder / BODY)
    files = dict.fromkeys(tensors, TABLE_FILE) | dict.fromkeys(body, BODY)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "config.json").write_text(json.dumps({"text_config": TEXT_CONFIG}))
    return folder


def pack(checkpoint: Path, out: Path, *, sizes: Iterable[int] = SIZES) -> Path:
    """Row files of every partition and rank."""
    for name in PARTITIONS:
        for tp in sizes:
            for rank in range(tp):
                shard = Shard(rank=rank, tp=tp)
                rows.pack(
                    checkpoint=checkpoint, out=out, engram=TABLES, partition=name, shard=shard
                )
    return out


@contextmanager
def engine(
    checkpoint: Path | None, *, rank: int = 0, tp: int = 1, **settings: Any
) -> Iterator[None]:
    """The engine's process context of one rank; without a checkpoint nothing is published."""
    parallel = get_parallel().override(
        tp_size=tp,
        tp_rank=rank,
        moe_tp_size=tp,
        moe_tp_rank=rank,
        attn_tp_size=tp,
        attn_tp_rank=rank,
        attn_dp_size=1,
        attn_cp_size=1,
    )
    with parallel:
        if checkpoint is None:
            yield
            return
        with get_context().override_server_args(model_path=str(checkpoint), **settings):
            yield


def embedding(kind: type, layer: int) -> Any:
    """An EngramEmbedding of this class, constructed as the release's own Engram does it."""
    layout = engram.EngramLayout.from_config(CONFIG)
    place = layout.layer_ids.index(layer)
    bounds = (
        {"column_bounds": layout.column_bounds(place)}
        if "column_bounds" in inspect.signature(kind).parameters
        and hasattr(layout, "column_bounds")
        else {}
    )
    return kind(layout.num_embeddings[place], layout.head_dim, layer, **bounds)


def stock(kind: type, layer: int, *, rank: int = 0, tp: int = 1, **codes: int) -> Any:
    """The engine's own, loaded through its own weight loader."""
    with engine(None, rank=rank, tp=tp):
        made = embedding(kind, layer)
    for parameter, values in zip((made.weight, made.scale), table(layer, **codes), strict=True):
        parameter.weight_loader(parameter, values)
    return made


def ids(layer: int, tokens: int = 37, *, seed: int = 0, dtype: Any = torch.int64) -> torch.Tensor:
    """[tokens, 24] row ids as a hash gives them, with duplicates; some are padding."""
    draw = torch.Generator().manual_seed(seed)
    lows = torch.tensor(TABLES.offsets(layer))
    sizes = torch.tensor(TABLES.primes(layer))
    found = lows + torch.randint(0, 1 << 30, (tokens, 24), generator=draw) % sizes
    found[1:4] = found[0]
    found[5, :7] = -1
    found[6] = torch.tensor([-5, 0, TABLES.rows(layer) - 1] * 8)
    return found.to(dtype)


def ours(kinds: Kinds, layer: int, files: Files, *, rank: int = 0, tp: int = 1) -> Any:
    """The replaced class, constructed as a rank of the engine constructs it."""
    with engine(files.checkpoint, rank=rank, tp=tp):
        return embedding(kinds.ours, layer)


@contextmanager
def half_precision() -> Iterator[None]:
    """The default dtype under which the engine's loader constructs a model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


def layer_input(layer: int, tokens: int = 37) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Hidden state, ids and what else this release's `Engram.forward` takes."""
    torch.manual_seed(layer)
    hidden = torch.randn(tokens, 4, 64, dtype=torch.bfloat16)
    takes = inspect.signature(engram.Engram.forward).parameters
    extra = {"input_ids": torch.arange(tokens)} if "input_ids" in takes else {}
    return hidden, ids(layer, tokens), extra


def engram_layer(layer: int) -> Any:
    """The release's own Engram with weights that are the same everywhere."""
    with half_precision():
        made = engram.Engram(CONFIG, layer, engram.EngramLayout.from_config(CONFIG))
    draw = torch.Generator().manual_seed(1000 + layer)
    made.wkv.weight.data.copy_(torch.randn(made.wkv.weight.shape, generator=draw) / 64)
    return made


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.int16)
