"""Importing the packed shards of other projects."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import dsv41_rows
import numpy as np
import pytest

from dsv41 import rows
from dsv41.errors import CheckFailed, UsageError
from dsv41.geometry import PARTITIONS, REAL_ENGRAM, Shard, column_owners, partition
from rowsfix import RIGHT, SMALL, Checkpoint, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TOTAL = SMALL.rows(1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def records(checkpoint: Checkpoint) -> NDArray[np.uint8]:
    """All rows as [rows, 264]."""
    return np.concatenate([checkpoint.weights[1], checkpoint.scales[1]], axis=1)


def write_dense(
    folder: Path, checkpoint: Checkpoint, *, head: dict[int, int] | None = None, rank: int = 1
) -> Path:
    """As the SGLang recipe packs rank 1 of 3; `head` changes single header numbers."""
    lo, hi = TOTAL * rank // 3, TOTAL * (rank + 1) // 3
    numbers = [0x31344E4531565344, 1, lo, hi, TOTAL, 264]
    for at, value in (head or {}).items():
        numbers[at] = value
    path = folder / f"engram-l1-r{rank}of3.bin"
    data = struct.pack("<6Q", *numbers).ljust(4096, b"\0") + records(checkpoint)[lo:hi].tobytes()
    path.write_bytes(data)
    return path


def write_sparse(
    folder: Path, checkpoint: Checkpoint, *, mode: str, change: dict[str, Any] | None = None
) -> Path:
    """As the vLLM cycle packs rank 1 of 3: sparse, with one manifest range per column."""
    name = {"balanced": "strided", "contiguous": "contiguous-columns"}[mode]
    owners = column_owners(name, engram=SMALL, tp=3)
    columns = [column for column, owner in enumerate(owners) if owner == 1]
    offsets, primes = SMALL.offsets(1), SMALL.primes(1)
    ranges = [[offsets[c], offsets[c] + primes[c]] for c in columns]
    path = folder / "engram-l1-packed.bin"
    with path.open("wb") as file:
        file.truncate(TOTAL * 264)
        for lo, hi in ranges:
            file.seek(lo * 264)
            file.write(records(checkpoint)[lo:hi].tobytes())
    said: dict[str, Any] = {
        "layer": 1,
        "rows": TOTAL,
        "row_bytes": 264,
        "dim": 256,
        "sb": 8,
        "tp": 3,
        "rank": 1,
    }
    said |= {"mode": mode, "cols": columns, "ranges": ranges, "source": "x", "built": "y"}
    path.with_name(path.name + ".json").write_text(json.dumps(said | (change or {})))
    return path


def packed(checkpoint: Checkpoint, out: Path, name: str) -> bytes:
    shard = Shard(rank=1, tp=3)
    files = rows.pack(
        checkpoint=checkpoint.path, out=out, engram=SMALL, partition=name, shard=shard
    )
    return files[0].read_bytes()


def bring(path: Path, out: Path, checkpoint: Checkpoint | None) -> Path:
    where = checkpoint.path if checkpoint else None
    return rows.import_shard(path, out=out, engram=SMALL, checkpoint=where)


def refusal(path: Path, out: Path, checkpoint: Checkpoint | None = None) -> tuple[str, str]:
    with pytest.raises(CheckFailed) as error:
        bring(path, out, checkpoint)
    assert not list(out.glob("*.rows"))
    return error.value.code, error.value.says


def test_a_dense_shard_becomes_the_file_that_pack_would_write(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = write_dense(tmp_path, checkpoint)
    assert path.read_bytes()[:8] == b"DSV1EN41"
    made = bring(path, tmp_path / "rows", checkpoint)
    assert made.name == "engram-l1-r1of3-contiguous-rows.rows"
    assert made.read_bytes() == packed(checkpoint, tmp_path / "packed", "contiguous-rows")


@pytest.mark.parametrize(
    ("mode", "name"), [("balanced", "strided"), ("contiguous", "contiguous-columns")]
)
def test_a_sparse_file_becomes_the_file_that_pack_would_write(
    checkpoint: Checkpoint, tmp_path: Path, mode: str, name: str
) -> None:
    made = bring(write_sparse(tmp_path, checkpoint, mode=mode), tmp_path / "rows", checkpoint)
    assert made.name == f"engram-l1-r1of3-{name}.rows"
    assert made.read_bytes() == packed(checkpoint, tmp_path / "packed", name)


def test_without_the_checkpoint_the_file_is_bound_to_none(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    made = bring(write_dense(tmp_path, checkpoint), tmp_path, None)
    source = rows.inspect(made).source
    assert (source.file, source.file_bytes, source.revision) == ("engram-l1-r1of3.bin", 0, "")
    assert rows.verify([made])[0].ok
    right = RIGHT | {"partition": "contiguous-rows"}
    with pytest.raises(dsv41_rows.RowsError, match="imported without their checkpoint"):
        dsv41_rows.RowStore.open(str(made), source_digest="0" * 64, **right)
    store = dsv41_rows.RowStore.open(str(made), **right)
    ids = np.arange(TOTAL, dtype=np.int64)
    weights, scales = np.zeros((TOTAL, 256), np.uint8), np.zeros((TOTAL, 8), np.uint8)
    store.lookup(ids, weights, scales)
    mine = slice(TOTAL // 3, TOTAL * 2 // 3)
    assert (weights[mine] == checkpoint.weights[1][mine]).all()
    assert not weights[: TOTAL // 3].any()
    # bound later, when the checkpoint is there
    bound = bring(write_dense(tmp_path, checkpoint), tmp_path, checkpoint)
    assert bound == made
    assert rows.inspect(bound).source.file_bytes


@pytest.mark.parametrize("at", [0, 255, 256, 263])
def test_a_row_that_differs_from_the_checkpoint_is_named(
    checkpoint: Checkpoint, tmp_path: Path, at: int
) -> None:
    path = write_dense(tmp_path, checkpoint)
    data = bytearray(path.read_bytes())
    data[4096 + 264 * 50 + at] ^= 1
    path.write_bytes(data)
    code, says = refusal(path, tmp_path / "rows", checkpoint)
    assert code == "D021"
    assert f"row {TOTAL // 3 + 50}" in says


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ({0: int.from_bytes(b"DSV41EN1", "little")}, "expected magic 0x31344e4531565344"),
        ({1: 14}, "expected layer by its name 1, found 14"),
        ({2: 0}, f"expected first row {TOTAL // 3}, found 0"),
        ({3: TOTAL}, f"expected end row {TOTAL * 2 // 3}"),
        ({4: TOTAL + 1}, f"expected rows of the table {TOTAL}, found {TOTAL + 1}"),
        ({5: 272}, "expected bytes of a row 264, found 272"),
    ],
)
def test_a_wrong_dense_header_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, head: dict[int, int], says: str
) -> None:
    code, found = refusal(write_dense(tmp_path, checkpoint, head=head), tmp_path / "rows")
    assert code == "D033"
    assert says in found


def test_other_dense_files_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = write_dense(tmp_path, checkpoint)
    data = path.read_bytes()
    for name in ("engram-l1-r2of3.bin", "engram-l1-r1of4.bin", "shard.bin", "engram-l1-r3of3.bin"):
        other = tmp_path / name
        other.write_bytes(data)
        assert refusal(other, tmp_path / "rows")[0] == "D033", name
    for cut in (data[:-1], data + b"\0", data[:30], b""):
        path.write_bytes(cut)
        assert refusal(path, tmp_path / "rows")[0] == "D033"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": TOTAL - 1}, "expected rows"),
        ({"row_bytes": 272}, "expected row_bytes 264, found 272"),
        ({"mode": "other"}, "expected mode balanced or contiguous, found other"),
        ({"rank": 0}, "expected cols"),
        ({"rank": 3}, "expected a rank below 3"),
        ({"tp": 2}, "expected cols"),
        ({"layer": 7}, "of a layer of"),
        ({"cols": [1]}, "expected cols"),
        ({"ranges": [[101, 150]]}, "are in none of its ranges"),
        ({"ranges": [[1]]}, "expected whole numbers"),
        ({"tp": "3"}, "expected whole numbers"),
        ({"ranges": None}, "expected a manifest"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    path = write_sparse(tmp_path, checkpoint, mode="balanced", change=change)
    code, found = refusal(path, tmp_path / "rows")
    assert code == "D033"
    assert says in found


def test_a_hole_where_rows_should_be_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = write_sparse(tmp_path, checkpoint, mode="balanced")
    with path.open("r+b") as file:  # the last owned rows were never written
        file.truncate(SMALL.offsets(1)[4] * 264 + 8192)
        file.truncate(TOTAL * 264)
    code, says = refusal(path, tmp_path / "rows")
    assert code == "D023"
    assert "found a hole at" in says


@pytest.mark.parametrize("engine", ["sglang", "vllm", "local"])
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5])
def test_the_partitions_an_engine_can_put_together(engine: str, tp: int) -> None:
    """SGLang adds the ranks' answers; vLLM gathers them column by column, equally wide."""
    for name in PARTITIONS:
        cuts = partition(name, engram=REAL_ENGRAM, layer_id=1, tp=tp)
        sizes = list(zip(REAL_ENGRAM.offsets(1), REAL_ENGRAM.primes(1), strict=True))
        owners = [{cuts.owner(lo), cuts.owner(lo + n - 1)} for lo, n in sizes]
        whole = all(len(found) == 1 for found in owners)
        even = {sum(found == {rank} for found in owners) for rank in range(tp)}
        legal = engine != "vllm" or (whole and len(even) == 1 and name != "contiguous-rows")
        given: dict[str, Any] = {"engine": engine, "partition": name, "engram": REAL_ENGRAM}
        if legal:
            rows.check_partition(tp=tp, **given)
        else:
            with pytest.raises(UsageError, match="D032"):
                rows.check_partition(tp=tp, **given)
