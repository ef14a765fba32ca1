"""What a local service finds on disk: made when absent, mended when damaged."""

import os
import shutil
from pathlib import Path

from dsv41.local.fixture import prepare


def test_damaged_rows_are_packed_again(tmp_path: Path, checkpoint: Path, rows_dir: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "checkpoints" / "fixture", copy_function=os.link)
    said: list[str] = []
    first = prepare.prepare(tmp_path, tp=1, partition="weighted", say=said.append)
    assert first == prepare.row_files(tmp_path, tp=1, partition="weighted")
    bytes_of = [path.read_bytes() for path in first]
    assert bytes_of == [(rows_dir / path.name).read_bytes() for path in first]
    damaged = bytearray(bytes_of[0])
    damaged[4096 * 11 + 7] ^= 1
    first[0].write_bytes(damaged)
    before = first[1].stat().st_ino
    said.clear()
    prepare.prepare(tmp_path, tp=1, partition="weighted", say=said.append)
    assert said[0] == f"{first[0].name} was damaged; it is packed again"
    assert [path.read_bytes() for path in first] == bytes_of
    assert first[1].stat().st_ino == before
