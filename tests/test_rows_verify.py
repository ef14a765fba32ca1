"""`rows verify`: every byte of a row file is checked."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

import rowsfile
from dsv41 import rows
from dsv41.errors import Error
from dsv41.geometry import Shard, partition
from rowsfix import SMALL, Checkpoint, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def pack(checkpoint: Checkpoint, out: Path) -> list[Path]:
    shard = Shard(rank=0, tp=3)
    return rows.pack(
        checkpoint=checkpoint.path, out=out, engram=SMALL, partition="weighted", shard=shard
    )


def test_verify_finds_every_flip_in_a_page_and_the_header(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = pack(checkpoint, tmp_path)[0]
    data = bytearray(path.read_bytes())
    assert rows.verify([path]) == [
        rows.Verification(
            path=str(path),
            ok=True,
            pages=len(data) // 4096 - 1,
            rows=rows.inspect(path).local_rows,
            problem_count=0,
            problems=(),
        )
    ]
    # header, first page and the last one, which has unused slots; the C++ tests flip every bit
    spans = (range(4096), range(4096, 8192), range(len(data) - 4096, len(data)))
    with path.open("r+b") as file:
        for at in (at for span in spans for at in span[::17]):
            os.pwrite(file.fileno(), bytes([data[at] ^ 1 << at % 8]), at)
            assert not rows.verify([path])[0].ok, at
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert rows.verify([path])[0].ok


def test_verify_names_page_and_row(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = pack(checkpoint, tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[4096 * 3 + 5 * 256] ^= 1  # page 2, slot 5 -> local row 35
    path.write_bytes(data)
    found = rows.verify([path])[0]
    row = partition("weighted", engram=SMALL, layer_id=1, tp=3).to_global(0, 35)
    assert [(p.page, p.row) for p in found.problems] == [(2, -1), (2, row)]


def test_verify_says_what_is_no_row_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = pack(checkpoint, tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert f"expected {len(whole)} bytes" in rows.verify([path])[0].problems[0].says
    path.write_bytes(b"x" * 8192)
    assert "not a row file" in rows.verify([path])[0].problems[0].says
    with pytest.raises(Error, match="D025"):
        rows.verify([tmp_path / "absent"])


def test_swapped_pages_and_rows_are_found(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = pack(checkpoint, tmp_path)[0]
    data = np.fromfile(path, np.uint8).reshape(-1, 4096)
    pages = data.copy()
    pages[[1, 2]] = pages[[2, 1]]
    pages.tofile(path)
    assert {(p.page, p.says) for p in rows.verify([path])[0].problems} >= {
        (0, "page number 1"),
        (1, "page number 0"),
    }
    swapped = data.copy()  # rows 0 and 1 of page 0 change places, their CRCs with them
    for at, size in ((0, 256), (3840, 8), (3960, 4)):
        first, second = swapped[1, at : at + size].copy(), swapped[1, at + size : at + 2 * size]
        swapped[1, at : at + size] = second
        swapped[1, at + size : at + 2 * size] = first
    crc = rowsfile.crc32c(swapped[1, :4028].tobytes() + swapped[1, 4032:].tobytes())
    swapped[1, 4028:4032] = np.frombuffer(struct.pack("<I", crc), np.uint8)
    swapped.tofile(path)
    assert [p.row for p in rows.verify([path])[0].problems][:2] == [0, 1]
