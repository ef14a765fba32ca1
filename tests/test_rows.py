"""Packing, verifying, inspecting: the file on disk and what is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rowsfile
from dsv41 import rows
from dsv41.errors import CheckFailed, UsageError
from dsv41.geometry import PARTITIONS, Engram, Shard, partition
from rowsfix import (
    SHARD,
    SMALL,
    Checkpoint,
    header_of,
    tensors_of,
    write_checkpoint,
    write_safetensors,
)

if TYPE_CHECKING:
    from pathlib import Path

THREE = [Shard(rank=rank, tp=3) for rank in range(3)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def pack(checkpoint: Checkpoint, out: Path, *, shard: Shard = THREE[0], **more: Any) -> list[Path]:
    values: dict[str, Any] = {"engram": SMALL, "partition": "weighted", "shard": shard, **more}
    return rows.pack(checkpoint=checkpoint.path, out=out, **values)


@pytest.mark.parametrize("name", PARTITIONS)
def test_another_program_reads_every_row_of_the_table(
    checkpoint: Checkpoint, tmp_path: Path, name: str
) -> None:
    files = [p for s in THREE for p in pack(checkpoint, tmp_path, shard=s, partition=name)]
    for layer in SMALL.layer_ids:
        seen: set[int] = set()
        for path in (f for f in files if f"-l{layer}-" in f.name):
            found = rowsfile.rows(path)
            assert not seen & found.keys()
            seen |= found.keys()
            for row, (weights, scales) in found.items():
                assert (weights == checkpoint.weights[layer][row]).all()
                assert (scales == checkpoint.scales[layer][row]).all()
        assert seen == set(range(SMALL.rows(layer)))


def test_the_header_names_everything(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = pack(checkpoint, tmp_path, shard=THREE[2], revision="fb2764a5")[1]
    assert path.name == "engram-l14-r2of3-weighted.rows"
    found, own = rows.inspect(path), rowsfile.header(path)
    cut = partition("weighted", engram=SMALL, layer_id=14, tp=3)
    assert (found.layer, found.rank, found.tp, found.partition) == (14, 2, 3, "weighted")
    assert found.total_rows == SMALL.rows(14)
    assert found.local_rows == cut.local_rows(2) == own["local"]
    assert found.ranges == tuple((r.lo, r.hi, r.base) for r in cut.ranges(2))
    assert list(found.ranges) == own["ranges"]
    assert found.complete
    assert found.file_bytes == path.stat().st_size
    data = (checkpoint.path / SHARD).read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    assert found.source.header_sha256 == hashlib.sha256(data[: 8 + length]).hexdigest()
    assert found.source.revision == own["revision"] == "fb2764a5"
    assert found.source.file == SHARD
    offset = found.source.weight_offset
    assert data[offset : offset + 256] == checkpoint.weights[14][0].tobytes()
    assert data[found.source.scale_offset :][:8] == checkpoint.scales[14][0].tobytes()
    assert json.loads(json.dumps(asdict(found)))["source"]["file_bytes"] == len(data)


def test_the_sample_is_64_rows_over_the_table(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = pack(checkpoint, tmp_path)[0]
    digest, last = hashlib.sha256(), SMALL.rows(1) - 1
    for i in range(64):
        digest.update(checkpoint.weights[1][i * last // 63].tobytes())
        digest.update(checkpoint.scales[1][i * last // 63].tobytes())
    assert rows.inspect(path).source.sample_sha256 == digest.hexdigest()


def test_the_bytes_depend_on_the_checkpoint_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    first = pack(checkpoint, tmp_path / "a")
    second = pack(checkpoint, tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(p.name for p in first)


def test_a_complete_file_is_kept_and_any_other_is_replaced(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = pack(checkpoint, tmp_path / "rows")[0]
    wanted, inode = path.read_bytes(), path.stat().st_ino
    pack(checkpoint, tmp_path / "rows")
    assert path.stat().st_ino == inode
    path.write_bytes(b"something else")
    pack(checkpoint, tmp_path / "rows")
    assert path.read_bytes() == wanted
    other = write_checkpoint(tmp_path / "other", seed=1)
    pack(other, tmp_path / "rows")
    assert path.read_bytes() != wanted
    assert (rowsfile.rows(path)[0][0] == other.weights[1][0]).all()


def test_a_complete_file_needs_no_writable_folder(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    path = pack(checkpoint, folder)[0]
    before = folder.stat().st_mtime_ns
    pack(checkpoint, folder)
    assert folder.stat().st_mtime_ns == before  # not even a lock was made
    path.with_name(f"{path.name}.journal").write_bytes(b"left behind")
    pack(checkpoint, folder)
    assert not path.with_name(f"{path.name}.journal").exists()


def test_progress_ends_at_the_size_of_the_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    told: list[tuple[Path, int, int]] = []
    files = pack(checkpoint, tmp_path, progress=lambda *now: told.append(now))
    assert {path for path, _, _ in told} == set(files)
    assert told[-1] == (files[-1], files[-1].stat().st_size, files[-1].stat().st_size)


def test_an_interrupt_leaves_no_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(checkpoint, tmp_path, progress=interrupt)
    assert not list(tmp_path.glob("*.rows"))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bucket=st.integers(3, 60),
    heads=st.integers(1, 4),
    tp=st.integers(1, 8),
    name=st.sampled_from(PARTITIONS),
    data=st.data(),
)
def test_any_geometry_packs_and_verifies(
    tmp_path_factory: pytest.TempPathFactory,
    bucket: int,
    heads: int,
    tp: int,
    name: str,
    data: st.DataObject,
) -> None:
    engram = Engram(
        layer_ids=(1,), bucket=bucket, compressed_vocab=6, multipliers=((3, 5, 7, 9),), heads=heads
    )
    folder = tmp_path_factory.mktemp("any")
    made = write_checkpoint(folder / "checkpoint", engram)
    shard = Shard(rank=data.draw(st.integers(0, tp - 1)), tp=tp)
    path = pack(made, folder, engram=engram, partition=name, shard=shard)[0]
    cut = partition(name, engram=engram, layer_id=1, tp=tp)
    found = rowsfile.rows(path)
    assert sorted(found) == [
        cut.to_global(shard.rank, i) for i in range(cut.local_rows(shard.rank))
    ]
    assert all((found[row][0] == made.weights[1][row]).all() for row in found)
    assert rows.verify([path])[0].ok
    opened = rows.open_shard(
        rows_dir=folder, engram=engram, partition=name, shard=shard, checkpoint=made.path
    )[1]
    ids = np.concatenate([np.arange(engram.rows(1)), [-1]])
    weights, scales = np.ones((len(ids), 256), np.uint8), np.ones((len(ids), 8), np.uint8)
    opened.lookup(ids, weights, scales)
    mine = np.isin(ids, list(found))[:, None]
    assert (weights == np.where(mine, made.weights[1][ids], 0)).all()
    assert (scales == np.where(mine, made.scales[1][ids], 0)).all()


def refusal(folder: Path, header: dict[str, Any], tail: int = 0) -> str:
    tensors = tensors_of(SMALL)
    write_checkpoint(folder)
    write_safetensors(folder / SHARD, tensors, header)
    if tail:
        whole = (folder / SHARD).read_bytes()
        (folder / SHARD).write_bytes(whole[:-tail])
    broken = Checkpoint(path=folder, weights={}, scales={})
    with pytest.raises(CheckFailed) as error:
        pack(broken, folder / "rows")
    assert error.value.code == "D028"
    assert not (folder / "rows").exists()
    return error.value.says


def test_wrong_tensors_are_refused_naming_expected_and_found(tmp_path: Path) -> None:
    header = header_of(tensors_of(SMALL))
    stem, count = "layers.1.engram.embed", SMALL.rows(1)
    weight, scale = header[f"{stem}.weight"], header[f"{stem}.scale"]
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "type": (
            {f"{stem}.weight": {**weight, "dtype": "BF16"}},
            "expected F8_E4M3 [rows, 256], found BF16",
        ),
        "width": ({f"{stem}.scale": {**scale, "shape": [count, 4]}}, f"found F8_E8M0 [{count}, 4]"),
        "rank": ({f"{stem}.scale": {**scale, "shape": [count]}}, f"found F8_E8M0 [{count}]"),
        "offsets": (
            {f"{stem}.weight": {**weight, "data_offsets": [0, 9]}},
            "bytes apart, found [0, 9]",
        ),
        "rows": (
            {
                f"{stem}.scale": {
                    **scale,
                    "shape": [count - 1, 8],
                    "data_offsets": [0, 8 * (count - 1)],
                }
            },
            f"weight has {count} rows, the scale has {count - 1}",
        ),
    }
    for name, (change, says) in cases.items():
        assert says in refusal(tmp_path / name, {**header, **change})
    without = {k: v for k, v in header.items() if not k.endswith("l.1")} | {f"{stem}.scale": None}
    assert "found none" in refusal(tmp_path / "absent", without)
    assert "ends at" in refusal(tmp_path / "short", header, tail=1)


def test_a_broken_safetensors_header_is_refused(tmp_path: Path) -> None:
    made = write_checkpoint(tmp_path / "checkpoint")
    for text in (b"{", b'{"a": }', b"[]", b'{"a": "\x01"}', b"{} x", b'{"a": "\\q"}', b"nul"):
        (made.path / SHARD).write_bytes(struct.pack("<Q", len(text)) + text)
        with pytest.raises(CheckFailed, match="D028"):
            pack(made, tmp_path)
    for data in (b"", b"1234567", struct.pack("<Q", 2**62), struct.pack("<Q", 50) + b"{}"):
        (made.path / SHARD).write_bytes(data)
        with pytest.raises(CheckFailed, match="D028"):
            pack(made, tmp_path)


def test_an_index_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    made = write_checkpoint(tmp_path / "checkpoint")
    index = made.path / rows.INDEX
    found = json.loads(index.read_text())
    for change in ({"layers.1.engram.embed.scale": "other.safetensors"}, None):
        weight_map = {**found["weight_map"], **change} if change else {}
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckFailed, match="D028"):
            pack(made, tmp_path)
    index.unlink()
    with pytest.raises(CheckFailed, match="D028"):
        pack(made, tmp_path)


def test_the_table_must_have_the_rows_of_the_configuration(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    other = Engram(
        layer_ids=(1,), bucket=103, compressed_vocab=6, multipliers=((3, 5, 7, 9),), heads=2
    )
    with pytest.raises(CheckFailed) as error:
        pack(checkpoint, tmp_path, engram=other)
    assert error.value.code == "D021"
    assert f"expected {other.rows(1)} rows, found {SMALL.rows(1)}" in error.value.says


def test_names_that_do_not_fit_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 63 bytes"):
        pack(checkpoint, tmp_path, revision="x" * 64)


def test_the_revision_is_what_the_download_recorded(tmp_path: Path) -> None:
    assert rows.revision_of(tmp_path) == ""
    snapshot = tmp_path / "snapshots" / "dba1be0a"
    snapshot.mkdir(parents=True)
    assert rows.revision_of(snapshot) == "dba1be0a"
    record = tmp_path / rows.DOWNLOAD_RECORD
    record.parent.mkdir(parents=True)
    record.write_text("fb2764a5\netag\n1730000000.0\n")
    assert rows.revision_of(tmp_path) == "fb2764a5"
