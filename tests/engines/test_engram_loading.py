"""The released weight loader with our class: tables stay unread, and are never replaced."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engram_table as case
import pytest
import torch
from engram_table import Files, Kinds
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.model_loader import loader, weight_utils
from sglang.srt.models.deepseek_v4 import DeepseekV4ForCausalLM

from dsv41.errors import CheckFailed, UsageError

pytest_plugins = ("engram_table",)
MIB = 1 << 20
TABLE = 250 * MIB  # of 264: the kernel counts mapped pages in batches
ROWS = 1 << 20  # 256 MiB of weights, 8 MiB of scales
NAMES = ("layers.1.engram.embed.weight", "layers.1.engram.embed.scale")
ITERATORS: dict[str, dict[str, Any]] = {
    "buffered_multi_thread_safetensors_weights_iterator": {"max_workers": 1},
    "safetensors_weights_iterator": {},
}


@pytest.fixture(scope="module")
def large(files: Files, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A checkpoint of two files, one of them with a table of 264 MiB; its bytes are a hole."""
    header = {
        NAMES[0]: {"dtype": "F8_E4M3", "shape": [ROWS, 256], "data_offsets": [0, ROWS * 256]},
        NAMES[1]: {
            "dtype": "F8_E8M0",
            "shape": [ROWS, 8],
            "data_offsets": [ROWS * 256, ROWS * 264],
        },
    }
    text = json.dumps(header).encode()
    table = tmp_path_factory.mktemp("large") / case.TABLE_FILE
    with table.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + ROWS * 264)
    return [str(files.checkpoint / case.BODY), str(table)]


def touched() -> int:
    """Bytes that this process has read so far, and those of files that it has mapped and seen."""
    io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(io["rchar"]) + int(status["RssFile"].split()[0]) * 1024


def tensors(call: Callable[..., Any], large: list[str], **more: Any) -> tuple[dict[str, Any], int]:
    """All tensors that an iterator gives, and the bytes that it took."""
    before = touched()
    found = dict(call(large, **more))
    return found, touched() - before


@pytest.mark.parametrize("name", ITERATORS)
@pytest.mark.parametrize("disable_mmap", [False, True])
def test_tables_are_given_and_never_read(
    kinds: Kinds, large: list[str], name: str, *, disable_mmap: bool
) -> None:
    assert kinds.ours is not kinds.stock
    call = getattr(loader, name)
    found, took = tensors(call, large, disable_mmap=disable_mmap, **ITERATORS[name])
    assert set(found) == {*NAMES, "layers.0.attn_norm.weight"}
    assert found[NAMES[0]].shape == (ROWS, 256)
    assert torch.equal(found["layers.0.attn_norm.weight"], torch.ones(64, dtype=torch.bfloat16))
    assert took < 16 * MIB
    before = touched()
    assert int(found[NAMES[0]].view(torch.uint8).sum()) == 0
    assert touched() - before >= TABLE, "the measure sees a table that is read"


@pytest.mark.parametrize("name", ITERATORS)
def test_the_stock_iterator_reads_whole_files_without_mapping(
    kinds: Kinds, large: list[str], name: str
) -> None:
    assert kinds.ours is not kinds.stock
    stock = getattr(loader, name).__wrapped__
    before = touched()
    with suppress(KeyError):  # safetensors 0.8.0 reads the bytes and then knows no F8_E8M0
        list(stock(large, disable_mmap=True, **ITERATORS[name]))
    assert touched() - before >= TABLE


def test_files_with_tables_are_not_read_ahead(kinds: Kinds, large: list[str]) -> None:
    assert kinds.ours is not kinds.stock
    before = touched()
    for file in large:
        weight_utils._prefetch_checkpoint_file(file)
    assert touched() - before < 16 * MIB
    weight_utils._prefetch_checkpoint_file.__wrapped__(large[1])
    assert touched() - before >= TABLE


def body_of(layers: dict[int, Any]) -> Any:
    """The release's model class around Engram layers alone, with its own `load_weights`."""
    made = DeepseekV4ForCausalLM.__new__(DeepseekV4ForCausalLM)
    torch.nn.Module.__init__(made)
    made.config = SimpleNamespace(
        model_type="deepseek_v41", n_routed_experts=1, num_hidden_layers=40
    )
    made.quant_config = made.vision = None
    made.wo_a_fp8, made.num_fused_shared_experts = False, 0
    made.pp_group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    made.post_load_weights = made._prewarm_mhc_kernels = lambda **_: None
    made.model = torch.nn.Module()
    made.model.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(15))
    for place, layer in layers.items():
        made.model.layers[place].engram = layer
    return made


def test_the_models_own_load_weights(
    kinds: Kinds, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    assert kinds.ours is not kinds.stock
    with case.engine(files.checkpoint):
        model = body_of({layer: case.engram_layer(layer) for layer in case.TABLES.layer_ids})
        paths = [str(files.checkpoint / name) for name in (case.TABLE_FILE, case.BODY)]
        caplog.set_level("INFO", logger="dsv41")
        model.load_weights(loader.safetensors_weights_iterator(paths))
    embeds = [model.model.layers[layer].engram.embed for layer in case.TABLES.layer_ids]
    assert [len(embed.weight) for embed in embeds] == [0, 0]
    assert all(embed.staging is not None for embed in embeds), "finish_load came"
    assert "engram_nvme layer 14" in caplog.text


def test_a_table_of_another_shape_is_refused(kinds: Kinds, files: Files) -> None:
    made = case.ours(kinds, 1, files)
    weights, scales = case.table(1)
    made.weight.weight_loader(made.weight, weights)
    made.scale.weight_loader(made.scale, scales)
    for parameter, wrong in (
        (made.weight, weights[:-1]),
        (made.scale, scales[:, :4]),
        (made.weight, weights.view(torch.uint8)),
    ):
        with pytest.raises(CheckFailed, match="D149 engram_nvme: layer 1: expected a table"):
            parameter.weight_loader(parameter, wrong)


def test_weights_are_not_replaced_while_it_serves(kinds: Kinds, files: Files) -> None:
    made = case.ours(kinds, 1, files)
    weights, _ = case.table(1)
    made.weight.weight_loader(made.weight, weights)
    with case.engine(files.checkpoint):
        made.finish_load("layer 1")
    with pytest.raises(UsageError, match="D153 engram_nvme: weights cannot be replaced"):
        made.weight.weight_loader(made.weight, weights)


@pytest.mark.parametrize("load_format", ["auto", "instanttensor"])
def test_the_engines_own_update_is_refused_before_it_loads(kinds: Kinds, load_format: str) -> None:
    assert kinds.ours is not kinds.stock
    update = weight_updater.WeightUpdater.update_weights_from_disk
    done, why = update(object(), "/another", load_format)  # the engine's own would ask the object
    assert not done
    assert why.startswith("D153 ")


@pytest.mark.parametrize("name", ["fastsafetensors", "runai_streamer"])
def test_a_loader_that_brings_whole_files_is_refused(kinds: Kinds, files: Files, name: str) -> None:
    refused = pytest.raises(UsageError, match=f"D147 .*{name}")
    with case.engine(files.checkpoint, load_format=name), refused:
        case.embedding(kinds.ours, 1)
