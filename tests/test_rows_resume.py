"""A packer that is killed, starved of disk or doubled leaves the old file or a resumable state."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import resource
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dsv41 import rows
from dsv41.geometry import Engram, Shard
from rowsfix import (
    SHARD,
    SMALL,
    Checkpoint,
    header_of,
    tensors_of,
    write_checkpoint,
    write_safetensors,
)
from rowstool import BUSY, KILLED, OK, SPACE, Tool, build_tool, pack_words

if TYPE_CHECKING:
    from pathlib import Path

NAME = "engram-l1-r1of3-weighted.rows"
# 6 columns of about 3,000 rows: 400 pages a rank
LARGER = Engram(
    layer_ids=(1,), bucket=3001, compressed_vocab=6, multipliers=((3, 5, 7, 9),), heads=2
)


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    return build_tool(tmp_path_factory.mktemp("tool"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def wanted(tool: Tool, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    target = tmp_path_factory.mktemp("uninterrupted") / NAME
    assert tool.run(*pack_words(checkpoint.path, target)).lines == ("packed",)
    return target.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def changes(tool: Tool, words: object, folder: Path) -> int:
    """Number of calls with which a whole run changes the folder."""
    count = folder.parent / "count"
    assert tool.run(*words, below=folder, count=count).status == OK  # type: ignore[misc]
    return int(count.read_text())


@pytest.mark.parametrize("fault", ["kill", "killafter"])
def test_killed_at_every_step_it_goes_on_to_the_same_bytes(
    tool: Tool, checkpoint: Checkpoint, wanted: bytes, tmp_path: Path, fault: str
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    target, old = folder / NAME, b"the old file"
    words = pack_words(checkpoint.path, target)
    steps = changes(tool, words, folder)
    assert steps > 20
    for step in range(1, steps + 1):
        target.write_bytes(old)
        done = tool.run(*words, fault=fault, below=folder, at=step)
        assert done.status == KILLED, step
        assert target.read_bytes() in {old, wanted}, step
        assert tool.run(*words).status == OK
        assert target.read_bytes() == wanted, step
        assert names(folder) == [NAME], step


def test_killed_at_random_times_it_ends_with_the_same_bytes(tool: Tool, tmp_path: Path) -> None:
    made = write_checkpoint(tmp_path / "checkpoint", LARGER)
    whole, target = tmp_path / "whole.rows", tmp_path / "rows" / NAME
    target.parent.mkdir()
    assert tool.run(*pack_words(made.path, whole, engram=LARGER)).status == OK
    given = pack_words(made.path, target, engram=LARGER, chunk=16, journal=1)
    words = [str(tool.path), *map(str, given)]
    begun = time.monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    usual = time.monotonic() - begun
    draw, resumable, ends = random.Random(5), 0, 0
    while resumable < 4 and ends < 60:
        if target.exists():  # ended before the kill: the next one starts afresh
            assert target.read_bytes() == whole.read_bytes()
            target.unlink()
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            time.sleep(draw.uniform(0, usual))
            process.kill()
        ends += 1
        resumable += target.with_name(f"{NAME}.journal").exists() and not target.exists()
    assert resumable == 4
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    assert target.read_bytes() == whole.read_bytes()
    assert names(target.parent) == [NAME]


def test_what_the_journal_counts_is_not_written_again(
    tool: Tool, checkpoint: Checkpoint, wanted: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    words = pack_words(checkpoint.path, folder / NAME)
    steps = changes(tool, words, folder)
    (folder / NAME).unlink()
    assert tool.run(*words, fault="kill", below=folder, at=steps - 4).status == KILLED
    assert changes(tool, words, folder) < steps // 2
    assert (folder / NAME).read_bytes() == wanted


def interrupt(tool: Tool, checkpoint: Checkpoint, folder: Path) -> Path:
    """Stop a packer after its first journal; the path of the target."""
    folder.mkdir(exist_ok=True)
    target = folder / NAME
    at = 1
    while not target.with_name(f"{NAME}.journal").exists():
        done = tool.run(*pack_words(checkpoint.path, target), fault="kill", below=folder, at=at)
        assert done.status == KILLED
        at += 1
    return target


def test_the_journal_of_another_checkpoint_is_not_used(
    tool: Tool, checkpoint: Checkpoint, wanted: bytes, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", seed=1)
    target = interrupt(tool, other, tmp_path / "rows")
    assert tool.run(*pack_words(checkpoint.path, target)).status == OK
    assert target.read_bytes() == wanted
    assert names(target.parent) == [NAME]


@pytest.mark.parametrize("what", ["journal", "last chunk", "partial cut", "partial gone"])
def test_a_damaged_state_is_packed_from_the_start(
    tool: Tool, checkpoint: Checkpoint, wanted: bytes, tmp_path: Path, what: str
) -> None:
    target = interrupt(tool, checkpoint, tmp_path / "rows")
    journal, partial = (target.with_name(f"{NAME}.{end}") for end in ("journal", "partial"))
    data, counted = bytearray(partial.read_bytes()), bytearray(journal.read_bytes())
    pages = int.from_bytes(counted[4096:4104], "little")
    counted[4100] ^= what == "journal"
    data[4096 * pages + 1] ^= what == "last chunk"
    journal.write_bytes(counted)
    partial.write_bytes(data[:-4096] if what == "partial cut" else data)
    if what == "partial gone":
        partial.unlink()
    assert tool.run(*pack_words(checkpoint.path, target)).status == OK
    assert target.read_bytes() == wanted


def test_a_full_disk_before_the_work_leaves_the_old_file(
    tool: Tool, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    target = tmp_path / NAME
    target.write_bytes(b"old")
    words = pack_words(checkpoint.path, target)
    done = tool.run(*words, fault="nofallocate", below=tmp_path)
    assert done.status == SPACE
    assert "errno 28" in done.says
    assert (names(tmp_path), target.read_bytes()) == ([NAME], b"old")


def test_a_full_disk_during_the_work_leaves_a_resumable_state(
    tool: Tool, checkpoint: Checkpoint, wanted: bytes, tmp_path: Path
) -> None:
    for call in range(2, 7):
        folder = tmp_path / str(call)
        folder.mkdir()
        target = folder / NAME
        target.write_bytes(b"old")
        words = pack_words(checkpoint.path, target)
        done = tool.run(*words, fault="nospace", below=folder, at=call)
        assert done.status == SPACE
        assert target.read_bytes() == b"old"
        assert tool.run(*words).status == OK
        assert (names(folder), target.read_bytes()) == ([NAME], wanted)


def test_a_limit_on_file_size_is_a_full_disk(
    tool: Tool, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = tool.run(*pack_words(checkpoint.path, tmp_path / NAME), before=limit)
    assert done.status == SPACE
    assert "errno 27" in done.says
    assert names(tmp_path) == []


def test_a_disk_that_is_too_small_is_seen_before_anything_is_written(
    tool: Tool, tmp_path: Path
) -> None:
    # a sparse table of 10^10 rows: 2.7 TB that no test machine has free
    huge, stem = 10**10, "layers.1.engram.embed"
    header = header_of(tensors_of(SMALL))
    header[f"{stem}.weight"] |= {"shape": [huge, 256], "data_offsets": [0, 256 * huge]}
    header[f"{stem}.scale"] |= {"shape": [huge, 8], "data_offsets": [256 * huge, 264 * huge]}
    (tmp_path / "checkpoint").mkdir()
    shard = tmp_path / "checkpoint" / SHARD
    write_safetensors(shard, {}, header)
    with shard.open("r+b") as file:
        file.truncate(264 * huge + 4096)
    target = tmp_path / "rows" / NAME
    target.parent.mkdir()
    done = tool.run("pack", shard, target, 1, 0, 3, "huge", huge, 4, 2, f"0,{2**32 - 1},0")
    assert done.status == SPACE
    assert "free bytes, found" in done.says
    assert names(target.parent) == []


def test_a_second_packer_is_told_so(
    tool: Tool, checkpoint: Checkpoint, wanted: bytes, tmp_path: Path
) -> None:
    target = tmp_path / NAME
    words = pack_words(checkpoint.path, target)
    with (tmp_path / f"{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = tool.run(*words)
        assert done.status == BUSY
        assert "held by another packer" in done.says
    assert tool.run(*words).status == OK
    assert (names(tmp_path), target.read_bytes()) == ([NAME], wanted)


def test_packers_side_by_side_end_with_one_whole_file(
    tool: Tool, checkpoint: Checkpoint, wanted: bytes, tmp_path: Path
) -> None:
    words = [str(tool.path), *map(str, pack_words(checkpoint.path, tmp_path / NAME))]
    quiet = subprocess.DEVNULL
    many = [subprocess.Popen(words, stdout=quiet, stderr=quiet) for _ in range(6)]
    ends = {process.wait() for process in many}
    assert OK in ends
    assert ends <= {OK, BUSY}
    assert (names(tmp_path), (tmp_path / NAME).read_bytes()) == ([NAME], wanted)


def test_packing_and_reading_leave_nothing_in_the_page_cache(tmp_path: Path) -> None:
    made = write_checkpoint(tmp_path / "checkpoint", LARGER)
    shard = made.path / SHARD
    with shard.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    rows_file = tmp_path / NAME
    rank = Shard(rank=1, tp=3)
    rows.pack(checkpoint=made.path, out=tmp_path, engram=LARGER, partition="weighted", shard=rank)
    store = rows.open_shard(
        rows_dir=tmp_path, engram=LARGER, partition="weighted", shard=rank, checkpoint=made.path
    )[1]
    ids = np.random.default_rng(0).integers(0, LARGER.rows(1), 20_000)
    store.lookup(ids, np.zeros((20_000, 256), np.uint8), np.zeros((20_000, 8), np.uint8))
    rows.verify([rows_file])
    assert store.stats()["direct"]
    assert cached_pages(rows_file) == 0
    rows_file.read_bytes()
    assert (
        cached_pages(rows_file) == rows_file.stat().st_size // 4096
    )  # what a buffered read leaves
    assert cached_pages(shard) <= 2


def cached_pages(path: Path) -> int:
    """Pages of a file that the page cache holds, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size, here = path.stat().st_size, (ctypes.c_ubyte * (path.stat().st_size // 4096 + 1))()
    with path.open("rb") as file:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), here) == 0
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(page & 1 for page in here)
