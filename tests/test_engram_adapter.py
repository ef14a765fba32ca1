"""The parts of the Engram adapter that need no engine: settings, files, the second way, counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dsv41.adapters import row_files, row_stats
from dsv41.adapters.adapter import is_on
from dsv41.adapters.row_files import SecondReader, checkpoint_at, open_rows
from dsv41.adapters.sglang import engram_loader, engram_nvme, engram_prefetch
from dsv41.errors import CheckFailed, Error, UsageError
from dsv41.rows import core
from rowsfix import LIBRARY, OWNED, SMALL, Checkpoint, arrays, pack_all, write_checkpoint

FILE = "engram-l1-r1of3-weighted.rows"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def folder(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_all(checkpoint, tmp_path_factory.mktemp("rows"), ["weighted", "strided"])


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The C library that the wheel carries; what `dsv41.rows` works through is put back."""
    monkeypatch.setattr("dsv41.rows.build.library", lambda: LIBRARY)
    row_files.load_library.cache_clear()
    yield
    row_files.load_library.cache_clear()
    core.use_library(None)


def opened(folder: Path, checkpoint: Path | None, **change: Any) -> row_files.Rows:
    environ = {"DSV41_PACKED_DIR": str(folder), **change.pop("environ", {})}
    given = {"layer": 1, "rank": 1, "tp": 3, "total_rows": SMALL.rows(1), "production": False}
    return open_rows(checkpoint=checkpoint, environ=environ, **{**given, **change})


@pytest.mark.parametrize(
    ("environ", "on"),
    [({}, False), ({"DSV41_PACKED_DIR": ""}, False), ({"DSV41_PACKED_DIR": "/rows"}, True)],
)
def test_a_folder_of_rows_asks_for_the_adapter(environ: dict[str, str], *, on: bool) -> None:
    assert is_on(engram_nvme.ADAPTER, environ) is on
    assert not is_on(engram_prefetch.ADAPTER, environ)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "1"}, "HOST_TABLE asks for tables in memory"),
        ({"SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS": "true"}, "PEER_SHARDS asks for tables in memory"),
        ({"DSV41_RESIDENT_SCALES": "1"}, "holds scales beside weights"),
        ({"DSV41_ENGRAM_PARTITION": "even"}, "there is no partition 'even'"),
    ],
)
def test_settings_that_contradict_are_refused(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=f"D147 engram_nvme: .*{says}"):
        engram_nvme.check({"DSV41_PACKED_DIR": "/rows", **environ})


def test_settings_that_go_with_it_pass() -> None:
    off = dict.fromkeys(engram_nvme.MEMORY_MODES, "0")
    engram_nvme.check({"DSV41_PACKED_DIR": "/rows", "DSV41_ENGRAM_PARTITION": "strided", **off})
    engram_prefetch.check({"DSV41_PACKED_DIR": "/rows"})


def test_reading_ahead_needs_rows_on_a_disk() -> None:
    with pytest.raises(UsageError, match="D147 engram_prefetch: DSV41_PACKED_DIR is not set"):
        engram_prefetch.check({"DSV41_ENGRAM_PREFETCH": "1"})


def test_load_formats() -> None:
    for name in (None, "auto", "safetensors", "dummy"):
        engram_loader.check_format(name)
    with pytest.raises(UsageError, match=r"D147 .*--load-format instanttensor"):
        engram_loader.check_format("instanttensor")


def test_the_right_file_opens(folder: Path, checkpoint: Checkpoint) -> None:
    rows = opened(
        folder, checkpoint.path, environ={"DSV41_IO_THREADS": "3", "DSV41_CACHE_GIB": "0"}
    )
    assert rows.path == folder / FILE
    assert rows.store.local_rows == OWNED.local_rows(1)
    assert rows.ranges == tuple((part.lo, part.hi, part.base) for part in OWNED.ranges(1))
    assert rows.source_path == checkpoint.path / "model-00001-of-00001.safetensors"


def test_a_part_of_a_gib_is_a_cache(folder: Path) -> None:
    store = opened(folder, None, environ={"DSV41_CACHE_GIB": "0.001"}).store
    ids = np.array([OWNED.to_global(1, local) for local in range(50)])
    for _ in range(2):
        store.lookup(ids, *arrays(50))
    assert (store.stats()["cache_hits"], store.stats()["device_reads"]) == (50, 50)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rank": 2, "tp": 4}, "D029"),
        ({"total_rows": SMALL.rows(1) + 1}, "D146"),
        ({"environ": {"DSV41_ENGRAM_ENGINE": "steam"}}, "D0(20|31)"),
    ],
)
def test_another_one_does_not(folder: Path, change: dict[str, Any], code: str) -> None:
    with pytest.raises(Error, match=code):
        opened(folder, None, **change)


def test_rows_of_another_checkpoint_do_not(folder: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path, seed=1)
    with pytest.raises(CheckFailed, match=f"D021 .*{FILE}"):
        opened(folder, other.path)


def test_a_name_of_a_repository_is_no_checkpoint(
    tmp_path: Path, checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    assert checkpoint_at(str(checkpoint.path)) == checkpoint.path
    assert checkpoint_at("deepseek-ai/DeepSeek-V4.1-Flash") is None
    assert checkpoint_at(str(tmp_path)) is None
    assert "rows are not compared with the model" in caplog.text


@pytest.mark.parametrize("known", [True, False])
def test_the_second_way_reads_the_same(
    folder: Path, checkpoint: Checkpoint, *, known: bool
) -> None:
    rows = opened(folder, checkpoint.path if known else None)
    ids = [*range(-2, SMALL.rows(1)), 5, 5]
    weights = torch.from_numpy(checkpoint.weights[1]).view(torch.float8_e4m3fn).float()
    scales = torch.from_numpy(checkpoint.scales[1]).view(torch.float8_e8m0fnu).float()
    table = (weights.view(-1, 8, 32) * scales.unsqueeze(-1)).view(-1, 256).bfloat16()
    owned = [row >= 0 and OWNED.owner(row) == 1 for row in ids]
    blank = torch.zeros(256, dtype=torch.bfloat16)
    wanted = torch.stack(
        [table[row] if own else blank for row, own in zip(ids, owned, strict=True)]
    )
    found = SecondReader(rows).values(ids)
    assert torch.equal(found.view(torch.int16), wanted.view(torch.int16))
    assert any(owned)


def test_the_first_difference_is_named(folder: Path, checkpoint: Checkpoint) -> None:
    second = SecondReader(opened(folder, checkpoint.path))
    mine = OWNED.ranges(1)[0].lo
    ids = torch.tensor([mine, mine + 1, -1, mine])
    found = second.values(ids.tolist())
    second.compare(ids, found)
    assert second.checked == 4
    found[1, 200] += 1
    found[3, 7] += 1
    with pytest.raises(
        CheckFailed, match=rf"D145 .* 2 of 4 rows differ; first: row {mine + 1}, value 200"
    ):
        second.compare(ids, found)


def test_an_error_of_a_lookup_has_the_files_name(folder: Path, tmp_path: Path) -> None:
    spoiled = tmp_path / FILE
    content = bytearray((folder / FILE).read_bytes())
    for at in range(4096, len(content), 4096):
        content[at + 100] ^= 1
    spoiled.write_bytes(content)
    rows = opened(tmp_path, None)
    with pytest.raises(CheckFailed, match=f"D024 {spoiled}: "), rows.errors():
        rows.store.lookup(torch.tensor([OWNED.ranges(1)[0].lo]).numpy(), *arrays(1))


def test_a_line_when_it_is_time_and_rows_were_read(folder: Path) -> None:
    rows = opened(folder, None)
    reporter = row_stats.Reporter(seconds=60, metrics=None)
    reporter.stores.append(rows.store)
    start = reporter.told
    rows.store.lookup(torch.arange(10).numpy(), *arrays(10))
    assert reporter.tell(start + 59) == []
    (said,) = reporter.tell(start + 61)
    assert said.startswith("engram layer=1 rank=1 of 3: rows=10 ")
    assert " in 61 s; " in said
    assert reporter.tell(start + 122) == [], "silent without lookups"
    rows.store.close()
    assert reporter.tell(start + 183) == []


def test_one_thread_watches_all_stores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stats, "_reporters", [])
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    first = row_stats.watch(opened(folder, None).store, seconds=0)
    second = row_stats.watch(
        opened(folder, None, layer=14, total_rows=SMALL.rows(14)).store, seconds=5
    )
    assert first is second
    assert [store.layer for store in first.stores] == [1, 14]
    assert first.metrics is None


def test_seconds_below_zero_are_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stats, "_reporters", [])
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    begun: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: begun.append(thread.name))
    assert row_stats.watch(opened(folder, None).store, seconds=-1).seconds == 0
    assert not begun


def test_our_layers_are_told_apart_by_their_own_names() -> None:
    names = ["layers.1.engram.embed.weight", "model.layers.14.engram.embed.scale"]
    others = ["layers.1.engram.wkv.weight", "layers.1.attn.wq_b.weight", "embed.weight"]
    assert all(engram_loader.TABLE.fullmatch(name) for name in names)
    assert not any(engram_loader.TABLE.fullmatch(name) for name in others)
