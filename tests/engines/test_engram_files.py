"""A row file that is missing, damaged or another one ends the process of its rank by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import engram_table as case
import pytest
from engram_rank import forked
from engram_table import Files, Kinds

from dsv41 import rows
from dsv41.errors import CheckFailed
from dsv41.geometry import Shard, partition
from dsv41.rows import core
from rowsfile import crc32c

pytest_plugins = ("engram_table",)


def first_page(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change the header page of a row file, and give it the checksum of a sound one."""
    with path.open("r+b") as file:
        page = bytearray(file.read(4096))
        change(page)
        page[4092:] = crc32c(bytes(page[:4092])).to_bytes(4, "little")
        file.seek(0)
        file.write(page)


def missing(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)


def unfinished(path: Path) -> None:
    first_page(path, lambda page: page.__setitem__(72, page[72] & ~1))


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(4096, len(content), 4096):
        content[at + 100] ^= 1
    path.write_bytes(content)


def of_another_rank(path: Path) -> None:
    shutil.copy(path.with_name("engram-l1-r2of3-weighted.rows"), path)


def of_another_partition(path: Path) -> None:
    shutil.copy(path.with_name("engram-l1-r1of3-strided.rows"), path)


def of_another_layer(path: Path) -> None:
    shutil.copy(path.with_name("engram-l14-r1of3-weighted.rows"), path)


def of_another_rule(path: Path) -> None:
    """The right name, and rows that another rule gave this rank."""
    path.unlink()
    core.extension().pack(
        source=str(path.parents[1] / "checkpoint" / case.TABLE_FILE),
        target=str(path),
        layer=1,
        rank=1,
        tp=3,
        partition="weighted",
        total_rows=case.TABLES.rows(1),
        ranges=[
            (part.lo, part.hi, part.base)
            for part in partition("strided", engram=case.TABLES, layer_id=1, tp=3).ranges(1)
        ],
        revision="",
    )


def of_another_checkpoint(path: Path) -> None:
    other = case.write(path.parents[1] / "other", low=1, high=255)
    path.unlink()
    rows.pack(
        checkpoint=other,
        out=path.parent,
        engram=case.TABLES,
        partition="weighted",
        shard=Shard(rank=1, tp=3),
    )


def serve(kinds: Kinds, files: Files) -> None:
    """What a rank of the engine does: construct, load, look up."""
    with case.engine(files.checkpoint, rank=1, tp=3):
        made = case.embedding(kinds.ours, 1)
        made.finish_load(label="layer 1")
        made._owned_rows(case.ids(1))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (missing, "D029"),
        (cut_short, "D023"),
        (unfinished, "D023"),
        (damaged, "D024"),
        (of_another_rank, "D021"),
        (of_another_partition, "D021"),
        (of_another_layer, "D021"),
        (of_another_checkpoint, "D021"),
        (of_another_rule, "D146"),
    ],
)
def test_a_wrong_row_file_ends_the_process(
    kinds: Kinds,
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
    code: str,
) -> None:
    mine = Files(checkpoint=tmp_path / "checkpoint", rows=tmp_path / "rows")
    shutil.copytree(files.checkpoint, mine.checkpoint)
    mine.rows.mkdir()
    for file in files.rows.glob("engram-*of3-*.rows"):
        shutil.copy(file, mine.rows)
    monkeypatch.setenv("DSV41_PACKED_DIR", str(mine.rows))
    (sound,) = forked(partial(serve, kinds, mine), folder=tmp_path)
    spoil(mine.rows / "engram-l1-r1of3-weighted.rows")
    (ended,) = forked(partial(serve, kinds, mine), folder=tmp_path)
    assert (sound.status, sound.says) == (0, "")
    assert ended.status == 1
    assert code in ended.says
    assert "engram-l1-r1of3-weighted.rows" in ended.says


def test_a_table_of_another_size_is_refused(kinds: Kinds, files: Files) -> None:
    with case.engine(files.checkpoint):
        count = case.TABLES.rows(1)
        with pytest.raises(
            CheckFailed, match=f"D146 .*rows in the table {count + 1}, found {count}"
        ):
            kinds.ours(count + 1, 256, 1)
        with pytest.raises(CheckFailed, match=r"D146 .*256 values, found 128"):
            kinds.ours(count, 128, 1)
