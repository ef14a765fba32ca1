"""The `rows` commands on real files: inspect, verify, import."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv41 import rows
from dsv41.cli import main

LAYER = 1
MAGIC = 0x31344E4531565344


def document(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main(["rows", *arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def dense_shard(folder: Path, checkpoint: Path) -> Path:
    """The packed shard that the three-Spark recipe would make of the fixture at one rank."""
    source = rows.source_file(checkpoint, layer=LAYER)
    data = source.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    parts = []
    for name in ("weight", "scale"):
        entry = header[f"layers.{LAYER}.engram.embed.{name}"]
        low, high = (8 + size + offset for offset in entry["data_offsets"])
        parts.append(np.frombuffer(data[low:high], np.uint8).reshape(entry["shape"]))
    total = rows.geometry_of(checkpoint).rows(LAYER)
    table = np.concatenate(parts, axis=1)[:total]
    path = folder / f"engram-l{LAYER}-r0of1.bin"
    head = struct.pack("<6Q", MAGIC, LAYER, 0, total, total, 264)
    path.write_bytes(head.ljust(4096, b"\0") + table.tobytes())
    return path


def test_an_imported_shard_is_the_packed_file(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = dense_shard(tmp_path, checkpoint)
    found = document(
        capsys, "import", str(shard), "--out", str(tmp_path), "--checkpoint", str(checkpoint)
    )
    path = found["files"][0]
    assert Path(path).name == "engram-l1-r0of1-contiguous-rows.rows"
    assert document(capsys, "inspect", path)["partition"] == "contiguous-rows"
    assert document(capsys, "verify", path)["status"] == "ok"
    damaged = bytearray(shard.read_bytes())
    damaged[4096 + 264 * 77] ^= 1
    shard.write_bytes(damaged)
    Path(path).unlink()
    refused = document(
        capsys,
        "import",
        str(shard),
        "--out",
        str(tmp_path),
        "--checkpoint",
        str(checkpoint),
        status=1,
    )
    assert refused["code"] == "D021"
    assert not Path(path).exists()


def test_what_is_no_shard_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "engram-l1-r0of3.bin"
    path.write_bytes(b"DSV41EN1".ljust(4096, b"\0"))
    refused = document(capsys, "import", str(path), "--out", str(tmp_path), status=1)
    assert refused["code"] == "D033"


def test_a_flipped_bit_is_found(
    tmp_path: Path, rows_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "engram-l1-r0of1-weighted.rows"
    data = bytearray((rows_dir / name).read_bytes())
    data[4096 * 5 + 100] ^= 4
    (tmp_path / name).write_bytes(data)
    found = document(capsys, "verify", str(tmp_path / name), str(rows_dir / name), status=1)
    assert [file["ok"] for file in found["files"]] == [False, True]
    assert main(["rows", "verify", str(tmp_path / name)]) == 1
    out = capsys.readouterr().out
    assert "    page 4 row " in out
    assert "-1" not in out


def test_a_file_that_is_no_row_file_has_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    assert main(["rows", "verify", str(tmp_path / "passwd")]) == 1
    first, problem, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("BAD ")
    assert "page" not in problem
    assert "-1" not in problem
