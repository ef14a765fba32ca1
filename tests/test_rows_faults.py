"""Every way a disk or a kernel fails: what is retried, what is refused; no wrong row leaves.

The failing disk is csrc/tests/faults.c, preloaded below the C user of the library.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import dsv41_rows
import numpy as np
import pytest

from dsv41 import rows
from rowsfix import OWNED, RIGHT, SMALL, Checkpoint, arrays, pack_all, write_checkpoint
from rowstool import (
    ABORTED,
    CORRUPT,
    IDS,
    IO,
    MISMATCH,
    OK,
    RANGE,
    TRUNCATED,
    UNFINISHED,
    UNSUPPORTED,
    Tool,
    assert_exact,
    build_tool,
    look,
    pack_words,
)

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = ("uring", "aio", "pread")


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    return build_tool(tmp_path_factory.mktemp("tool"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def path(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pack_all(checkpoint, tmp_path_factory.mktemp("rows"), ["weighted"])
    return folder / rows.file_name(**RIGHT)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("fault", "times", "counters"),
    [
        ("none", 0, {}),
        ("eio", 1, {"io_errors": 1, "io_retries": 1}),
        ("eio", 2, {"io_errors": 2, "io_retries": 2}),
        ("nodata", 2, {"io_errors": 2, "io_retries": 2}),
        ("again", 20, {"io_errors": 0, "io_retries": 0}),
        ("intr", 20, {"io_errors": 0, "io_retries": 0}),
        ("short", 1, {"short_reads": 1, "io_retries": 1}),
        ("flip", 1, {"crc_failures": 1, "crc_retries": 1}),
    ],
)
def test_what_passes_on_a_second_try_is_counted_and_exact(
    tool: Tool,
    path: Path,
    checkpoint: Checkpoint,
    engine: str,
    fault: str,
    times: int,
    counters: dict[str, int],
) -> None:
    done = look(tool, path, engine=engine, fault=fault, times=times, page=6)
    stats = assert_exact(done, checkpoint)
    names = ("io_errors", "io_retries", "short_reads", "crc_failures", "crc_retries")
    assert {n: stats[n] for n in names} == {**dict.fromkeys(names, 0), **counters}
    assert stats["engine"] == engine
    assert stats["unique"] == 6
    assert stats["device_reads"] == 6 + times
    assert stats["failed_batches"] == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", ["eio", "short", "flip"])
def test_an_interrupted_read_takes_no_try_from_a_bad_one(
    tool: Tool, path: Path, checkpoint: Checkpoint, engine: str, fault: str
) -> None:
    done = look(tool, path, engine=engine, fault=fault, times=1, first=3, page=6)
    stats = assert_exact(done, checkpoint)
    assert stats["crc_retries"] + stats["io_retries"] == 1
    assert stats["device_reads"] == 6 + 3 + 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ("eio", IO, "errno 5, Input/output error"),
        ("nodata", IO, "errno 61, No data available"),
        ("again", IO, "errno 11"),
        ("short", IO, "expected 4096 bytes, found 512"),
        ("flip", CORRUPT, "fails its CRC32C, twice"),
    ],
)
def test_what_stays_wrong_is_an_error_that_names_the_row(
    tool: Tool, path: Path, engine: str, fault: str, status: int, says: str
) -> None:
    done = look(tool, path, engine=engine, fault=fault, page=6)
    assert done.status == status
    assert f"layer 1, row {IDS[4]}, page 6, offset {4096 * 7}: " in done.says
    assert says in done.says
    assert len(done.lines) == 1  # the statistics, no row
    assert json.loads(done.lines[0])["failed_batches"] == 1
    for ids in ([IDS[4]], IDS * 40):  # alone it is read inline
        assert look(tool, path, engine=engine, fault=fault, page=6, ids=ids).status == status


@pytest.mark.parametrize("engine", ENGINES)
def test_in_production_a_failed_lookup_ends_the_process_with_one_line(
    tool: Tool, path: Path, engine: str
) -> None:
    done = look(tool, path, engine=engine, mode="production", fault="flip", page=6)
    assert done.status == ABORTED
    assert done.lines == ()
    line = json.loads(done.says)  # exactly one line
    assert (line["event"], line["kind"]) == ("dsv41_rows_fatal", "corrupt")
    assert (line["layer"], line["rank"]) == (1, 1)
    assert f"row {IDS[4]}, page 6" in line["says"]
    past = look(tool, path, engine=engine, mode="production", ids=[SMALL.rows(1)])
    assert past.status == ABORTED
    assert json.loads(past.says)["kind"] == "range"


def test_in_production_a_good_lookup_ends_well(
    tool: Tool, path: Path, checkpoint: Checkpoint
) -> None:
    assert_exact(look(tool, path, mode="production"), checkpoint)


def test_without_o_direct_auto_reads_buffered_and_says_so(
    tool: Tool, path: Path, checkpoint: Checkpoint
) -> None:
    for engine in ("auto", "pread"):
        stats = assert_exact(look(tool, path, engine=engine, fault="nodirect"), checkpoint)
        assert (stats["engine"], stats["direct"]) == ("pread", False)
        assert stats["direct_refusal"] == "O_DIRECT refused: Invalid argument"
        refusals = [f"{name}: O_DIRECT refused: Invalid argument" for name in ("uring", "aio")]
        assert stats["refusals"] == refusals * (engine == "auto")


def test_a_buffered_read_that_stops_early_goes_on(
    tool: Tool, path: Path, checkpoint: Checkpoint
) -> None:
    stats = assert_exact(look(tool, path, fault="nodirect,short"), checkpoint)
    assert (stats["direct"], stats["short_reads"]) == (False, 0)


def test_a_named_engine_never_falls_back(tool: Tool, path: Path, checkpoint: Checkpoint) -> None:
    denied = "refused: errno 1, Operation not permitted"
    for engine, fault, reason, instead in (
        ("uring", "nodirect", "O_DIRECT refused", "pread"),
        ("uring", "nouring", f"io_uring_setup {denied}", "aio"),
        ("uring", "noenter", f"io_uring_enter {denied}", "aio"),
        ("aio", "nouring,noaio", f"io_setup {denied}", "pread"),
        ("aio", "nouring,nosubmit", f"io_submit {denied}", "pread"),
    ):
        done = look(tool, path, engine=engine, fault=fault)
        assert done.status == UNSUPPORTED
        assert f"engine {engine}: {reason}" in done.says
        stats = assert_exact(look(tool, path, engine="auto", fault=fault), checkpoint)
        assert stats["engine"] == instead
        assert [r for r in stats["refusals"] if r.startswith(f"{engine}: {reason}")]


@pytest.mark.parametrize("engine", ENGINES)
def test_damage_on_the_disk_itself(tool: Tool, path: Path, tmp_path: Path, engine: str) -> None:
    copy, data = tmp_path / path.name, bytearray(path.read_bytes())
    data[4096 * 7 + 256 * 10 + 77] ^= 0x20  # local row 100
    copy.write_bytes(data)
    done = look(tool, copy, engine=engine)
    assert done.status == CORRUPT
    assert f"row {IDS[4]}, page 6" in done.says
    fine = [row for row in IDS if row != IDS[4]]
    assert look(tool, copy, engine=engine, ids=fine).status == OK


def test_wrong_identity_truncated_and_unfinished_files(
    tool: Tool, path: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    other = ["lookup", copy, 14, 1, 3, "weighted", "auto", 0]
    assert tool.run(*other).status == MISMATCH
    os.truncate(copy, copy.stat().st_size - 4096)
    assert look(tool, copy).status == TRUNCATED
    target = tmp_path / "unfinished.rows"
    done = tool.run(*pack_words(checkpoint.path, target), fault="kill", below=tmp_path, at=9)
    assert done.status < 0
    assert look(tool, target.with_name("unfinished.rows.partial")).status == UNFINISHED
    assert look(tool, path, ids=[SMALL.rows(1)]).status == RANGE


@pytest.mark.parametrize("engine", ENGINES)
def test_padding_and_foreign_rows_touch_no_disk(tool: Tool, path: Path, engine: str) -> None:
    foreign = next(row for row in range(SMALL.rows(1)) if OWNED.owner(row) != 1)
    done = look(tool, path, engine=engine, fault="eio", ids=[-1, foreign, -5])
    assert done.status == OK
    assert done.lines[:-1] == ("00" * 264,) * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_every_single_bit_of_a_row_and_its_crc_counts(
    path: Path, tmp_path: Path, engine: str
) -> None:
    copy, data = tmp_path / path.name, path.read_bytes()
    copy.write_bytes(data)
    slot, page = 7, 3
    spans = [(256 * slot, 256), (3840 + 8 * slot, 8), (3960 + 4 * slot, 4)]
    bits = [8 * (at + i) + bit for at, size in spans for i in range(size) for bit in range(8)]
    store = dsv41_rows.RowStore.open(str(copy), engine=engine, **RIGHT)
    # with five more rows it is too large a batch to be read inline
    ids = np.array([OWNED.to_global(1, 15 * p + slot) for p in (page, 0, 1, 2, 4, 5)], np.int64)
    with copy.open("r+b") as file:
        for bit in bits:
            at = 4096 * (1 + page) + bit // 8
            os.pwrite(file.fileno(), bytes([data[at] ^ 1 << bit % 8]), at)
            with pytest.raises(dsv41_rows.RowsError, match=f"row {ids[0]}, .* CRC32C"):
                store.lookup(ids, *arrays(6))
            os.pwrite(file.fileno(), data[at : at + 1], at)
    store.lookup(ids, *arrays(6))
    assert store.stats()["crc_failures"] == 2 * len(bits) == 2 * 268 * 8
