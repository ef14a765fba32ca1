"""What runs beside the lookups: reading ahead, the check mode, statistics."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engram_table as case
import pytest
import torch
from engram_table import Files, Kinds
from sglang.srt.layers import engram
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils import common
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from dsv41.adapters.row_stats import Reporter
from dsv41.errors import CheckFailed
from rowsfile import crc32c

pytest_plugins = ("engram_table",)
WORDS = 40


@pytest.fixture(scope="module")
def hasher() -> Any:
    """The release's hasher over a tokenizer of forty words."""
    words = {f"w{place}": place for place in range(WORDS)}
    model = WordLevel(words, unk_token="w0")  # noqa: S106 - no password
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    made = engram.EngramHasher(engram.EngramLayout.from_config(case.CONFIG), tokenizer, 2, WORDS)
    made.init_history(8, "cpu")
    return made


def extend(*lengths: int) -> Any:
    """A prefill batch, with as much of a ForwardBatch as the hasher reads."""
    sizes = torch.tensor(lengths)
    return SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        positions=torch.cat([torch.arange(length) for length in lengths]),
        req_pool_indices=torch.arange(len(lengths)),
        extend_seq_lens=sizes,
        extend_start_loc=sizes.cumsum(0) - sizes,
        extend_seq_lens_cpu=list(lengths),
        engram_history=None,
        out_cache_loc=None,
    )


def tokens(count: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (count,), generator=torch.Generator().manual_seed(count))


@pytest.fixture
def layers(kinds: Kinds, files: Files) -> Iterator[list[Any]]:
    """Both Engram embeddings, in an engine of one rank."""
    with case.engine(files.checkpoint):
        yield [case.embedding(kinds.ours, layer) for layer in case.TABLES.layer_ids]


def lookups(layers: list[Any]) -> list[int]:
    return [layer.file.store.stats()["lookups"] for layer in layers]


def test_rows_are_read_when_the_ids_exist_and_once(
    kinds: Kinds, hasher: Any, layers: list[Any]
) -> None:
    stock = [case.stock(kinds.stock, layer) for layer in case.TABLES.layer_ids]
    for count in (9, 4, 9):
        before = lookups(layers)
        hash_ids = hasher(tokens(count + 3), extend(count, 3))
        assert lookups(layers) == [had + (count + 3) * 24 for had in before]
        for place, (mine, theirs) in enumerate(zip(layers, stock, strict=True)):
            found = mine(hash_ids[:, place])
            assert torch.equal(case.bits(found), case.bits(theirs(hash_ids[:, place])))
            assert mine.ahead is None
        assert lookups(layers) == [had + (count + 3) * 24 for had in before], "not again"


def test_other_ids_are_looked_up_anew(kinds: Kinds, hasher: Any, layers: list[Any]) -> None:
    stock = case.stock(kinds.stock, 1)
    hash_ids = hasher(tokens(9), extend(9))
    for other in (hash_ids[1:, 0], hash_ids[:, 0].clone(), hash_ids[:, 0].int(), case.ids(1)):
        hasher(tokens(9), extend(9))
        assert torch.equal(case.bits(layers[0](other)), case.bits(stock(other)))


def test_ids_that_no_layer_took_are_forgotten(hasher: Any, layers: list[Any]) -> None:
    hasher(tokens(9), extend(9))
    held = layers[0].ahead
    hasher(tokens(0), SimpleNamespace(forward_mode=ForwardMode.IDLE))
    assert held is not None
    assert [layer.ahead for layer in layers] == [None, None]


def test_nothing_is_read_ahead_where_a_rank_looks_other_ids_up(
    hasher: Any, layers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.context"
    before = lookups(layers)
    monkeypatch.setattr(f"{context}._in_breakable_cuda_graph", True)
    hasher(tokens(9), extend(9))
    monkeypatch.undo()
    two = {"tp_size": 2, "moe_tp_size": 2, "attn_dp_size": 2, "attn_tp_size": 1}
    with get_parallel().override(**two):
        hasher(tokens(9), extend(9))
    assert lookups(layers) == before


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV41_ENGRAM_CHECK", "1")


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("rank", range(3))
def test_a_sound_file_passes_the_check(
    kinds: Kinds, files: Files, rank: int, *, known: bool
) -> None:
    """Against the checkpoint, and against the file itself where the checkpoint is not known."""
    with case.engine(files.checkpoint if known else None, rank=rank, tp=3):
        made = case.embedding(kinds.ours, 14)
        wanted = case.ids(14)
        found = made._owned_rows(wanted)
    assert (made.file.source_path is not None) is known
    assert made.second.checked == wanted.numel()
    assert found.count_nonzero()


@pytest.mark.usefixtures("checked")
def test_a_row_that_differs_ends_the_check(
    kinds: Kinds, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another value with a good checksum: only the second way can tell."""
    path = tmp_path / "engram-l1-r0of1-weighted.rows"
    page = bytearray((files.rows / path.name).read_bytes())
    page[4096 + 256 * 3 + 17] ^= 0x04
    row = page[4096 + 256 * 3 : 4096 + 256 * 4] + page[4096 + 3840 + 24 : 4096 + 3840 + 32]
    key = (1).to_bytes(4, "little") + (3).to_bytes(8, "little")
    page[4096 + 3960 + 12 : 4096 + 3960 + 16] = crc32c(bytes(key + row)).to_bytes(4, "little")
    path.write_bytes(page)
    monkeypatch.setenv("DSV41_PACKED_DIR", str(tmp_path))
    with case.engine(files.checkpoint):
        made = case.embedding(kinds.ours, 1)
        assert made.rows == case.TABLES.rows(1)
        made._owned_rows(torch.tensor([2, 4]))
        with pytest.raises(
            CheckFailed, match=r"D145 .*layer 1: 1 of 3 rows differ; first: row 3, value 17"
        ):
            made._owned_rows(torch.tensor([2, 3, 4]))


def test_statistics_while_rows_are_read(layers: list[Any]) -> None:
    layer = layers[0]
    reporter = Reporter(seconds=1e-9, metrics=None)
    reporter.stores.append(layer.file.store)
    lines: list[str] = []
    done = threading.Event()

    def telling() -> None:
        while not done.is_set():
            lines.extend(reporter.tell(time.monotonic()))

    teller = threading.Thread(target=telling)
    teller.start()
    for seed in range(50):
        layer(case.ids(1, seed=seed))
    done.set()
    teller.join()
    lines += reporter.tell(time.monotonic())
    told = sum(int(line.split("rows=")[1].split()[0]) for line in lines)
    assert told == 50 * 37 * 24
    assert all(line.startswith("engram layer=1 rank=0 of 1: rows=") for line in lines)


COUNTING = """
import sys, time
from pathlib import Path
import numpy as np
from dsv41.adapters import row_files, row_stats
environ = {"DSV41_PACKED_DIR": sys.argv[1]}
shard = {"layer": 1, "rank": 0, "tp": 1, "total_rows": int(sys.argv[2])}
rows = row_files.open_rows(**shard, checkpoint=None, production=False, environ=environ)
reporter = row_stats.watch(rows.store, seconds=0)
weights, scales = np.zeros((24, 256), np.uint8), np.zeros((24, 8), np.uint8)
rows.store.lookup(np.arange(24), weights, scales)
reporter.tell(time.monotonic())
rows.store.lookup(np.arange(24), weights, scales)
reporter.tell(time.monotonic())
"""


def test_counters_come_out_of_the_engines_metrics(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler inherits the variable; the server of its node collects what stands there."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    command = [sys.executable, "-c", COUNTING, str(files.rows), str(case.TABLES.rows(1))]
    subprocess.run(command, check=True, timeout=120, env=dict(os.environ))
    app = Starlette()
    common.add_prometheus_middleware(app)
    text = TestClient(app).get("/metrics").text
    assert 'dsv41_engram_lookups_total{layer="1",rank="0"} 48.0' in text
    assert 'dsv41_engram_unique_total{layer="1",rank="0"} 48.0' in text
    assert 'dsv41_engram_lookup_seconds{layer="1",quantile="0.99",rank="0"}' in text
