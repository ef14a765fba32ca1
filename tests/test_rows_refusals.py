"""Files that are not what they must be: refused at open, or never answered from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import dsv41_rows
import numpy as np
import pytest

from dsv41 import rows
from dsv41.errors import CheckFailed, UsageError
from dsv41.geometry import Shard
from rowsfix import (
    OWNED,
    RIGHT,
    SMALL,
    Checkpoint,
    arrays,
    draw_ids,
    pack_all,
    write_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def folder(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_all(checkpoint, tmp_path_factory.mktemp("rows"), ["weighted"])


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / rows.file_name(**RIGHT)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layer": 14}, "expected layer 14, found 1"),
        ({"rank": 2}, "expected rank 2, found 1"),
        ({"tp": 4}, "expected tp 4, found 3"),
        ({"partition": "strided"}, "expected partition strided, found weighted"),
        ({"source_digest": "0" * 64}, "expected checkpoint identity 0000"),
        ({"revision": "dba1be0a"}, "expected checkpoint revision dba1be0a, found fb2764a5"),
    ],
)
def test_another_file_is_refused(path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(dsv41_rows.RowsError, match=says) as error:
        dsv41_rows.RowStore.open(str(path), **{**RIGHT, **change})
    assert error.value.kind == "mismatch"


def test_right_identity_and_revision_are_taken(path: Path) -> None:
    digest = rows.inspect(path).source.digest
    store = dsv41_rows.RowStore.open(str(path), source_digest=digest, revision="fb2764a5", **RIGHT)
    assert store.stats()["source_digest"] == digest


def test_the_build_has_all_engines() -> None:
    assert dsv41_rows.engines() == ["uring", "aio", "pread"]


def test_an_unknown_engine_is_refused(path: Path) -> None:
    with pytest.raises(
        dsv41_rows.RowsError, match="auto, uring, aio, pread; found telepathy"
    ) as error:
        dsv41_rows.RowStore.open(str(path), engine="telepathy", **RIGHT)
    assert error.value.kind == "unsupported"


@pytest.mark.parametrize("bounds", [[5, 3], list(range(8))])
def test_order_bounds_must_ascend_and_be_few(path: Path, bounds: list[int]) -> None:
    with pytest.raises(dsv41_rows.RowsError, match="order bounds"):
        dsv41_rows.RowStore.open(str(path), order_bounds=bounds, **RIGHT)


def reopen(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(dsv41_rows.RowsError) as error:
        dsv41_rows.RowStore.open(str(path), **RIGHT)
    return error.value.kind


def test_damaged_files_are_refused_at_open(path: Path, tmp_path: Path) -> None:
    data, copy = path.read_bytes(), tmp_path / path.name
    assert reopen(copy, b"") == "truncated"
    assert reopen(copy, data[:4096]) == "truncated"
    assert reopen(copy, data[:-1]) == "truncated"
    assert reopen(copy, data[:-4096]) == "truncated"
    assert reopen(copy, data + b"\0") == "malformed"
    assert reopen(copy, b"\0" * len(data)) == "malformed"
    assert reopen(copy, data[:100] + b"\1" + data[101:]) == "corrupt"
    with pytest.raises(dsv41_rows.RowsError, match="errno 2") as error:
        dsv41_rows.RowStore.open(str(tmp_path / "absent"), **RIGHT)
    assert error.value.kind == "io"
    with pytest.raises(dsv41_rows.RowsError):
        dsv41_rows.RowStore.open(str(tmp_path), **RIGHT)


def test_a_flipped_row_is_never_returned(path: Path, tmp_path: Path) -> None:
    data, copy = bytearray(path.read_bytes()), tmp_path / path.name
    data[4096 + 2 * 256 + 9] ^= 4  # page 0, slot 2
    copy.write_bytes(data)
    store = dsv41_rows.RowStore.open(str(copy), **RIGHT)
    ids = np.array([OWNED.to_global(1, local) for local in (2, 0, 1, 3, 20, 21)], np.int64)
    weights, scales = arrays(6)
    with pytest.raises(dsv41_rows.RowsError, match=f"row {ids[0]}, page 0, offset 4096") as error:
        store.lookup(ids, weights, scales)
    assert error.value.kind == "corrupt"
    assert (weights[0] == 0xAA).all()
    store.lookup(ids[1:], weights[1:], scales[1:])
    stats = store.stats()
    assert (stats["crc_failures"], stats["crc_retries"], stats["failed_batches"]) == (2, 1, 1)


def test_a_cut_file_is_noticed_while_open(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    store = dsv41_rows.RowStore.open(str(copy), **RIGHT)
    os.truncate(copy, 8192)
    for local in (OWNED.local_rows(1) - 1, 0, 0):  # also rows before the cut, from then on
        with pytest.raises(dsv41_rows.RowsError) as error:
            store.lookup(np.array([OWNED.to_global(1, local)], np.int64), *arrays(1))
        assert error.value.kind == "truncated"


def test_a_cut_between_two_checks_is_a_truncated_file(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    store = dsv41_rows.RowStore.open(str(copy), **RIGHT)
    store.lookup(draw_ids(1), *arrays(1))  # the next check is a second away
    os.truncate(copy, 8192)
    last = np.array([OWNED.to_global(1, OWNED.local_rows(1) - 1)], np.int64)
    with pytest.raises(dsv41_rows.RowsError, match="expected 4096 bytes, found 0") as error:
        store.lookup(last, *arrays(1))
    assert error.value.kind == "truncated"


def test_a_file_that_somebody_touches_is_counted(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    store = dsv41_rows.RowStore.open(str(copy), **RIGHT)
    assert store.stats()["file_changed"] is False
    copy.chmod(0o600)
    store.lookup(draw_ids(10), *arrays(10))
    assert store.stats()["file_changed"] is True


def test_a_replaced_file_stays_readable(path: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / path.name, tmp_path / "other"
    copy.write_bytes(path.read_bytes())
    other.write_bytes(b"new")
    store = dsv41_rows.RowStore.open(str(copy), **RIGHT)
    other.rename(copy)
    store.lookup(draw_ids(100), *arrays(100))
    assert store.stats()["file_unlinked"] is True


def test_open_shard_names_what_is_missing_or_foreign(
    checkpoint: Checkpoint, folder: Path, tmp_path: Path
) -> None:
    right: dict[str, Any] = {"engram": SMALL, "partition": "weighted", "shard": Shard(rank=1, tp=3)}
    with pytest.raises(CheckFailed, match="D029"):
        rows.open_shard(rows_dir=tmp_path, checkpoint=checkpoint.path, **right)
    other = write_checkpoint(tmp_path / "other", seed=1)  # same header, other rows
    with pytest.raises(CheckFailed, match=r"D021 .*checkpoint identity"):
        rows.open_shard(rows_dir=folder, checkpoint=other.path, **right)
    with pytest.raises(UsageError, match="D031"):
        rows.open_shard(rows_dir=folder, checkpoint=checkpoint.path, engine="psychic", **right)
