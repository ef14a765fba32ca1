"""Where a measurement means something: a disk, and a file larger than what caches hold."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed
from dsv41.rows.core import extension, row_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GIB = 2**30
PAGE, ROWS_PER_PAGE = 4096, 15
MEMORY_SYSTEMS = ("tmpfs", "ramfs", "ramdisk")
IDENTITY = {"layer": 1, "rank": 0, "tp": 1, "partition": "contiguous-rows"}


def check_system(place: Path) -> None:
    """Refuse a memory file system: it has no reads to measure.

    Raises:
        CheckFailed: D470.
    """
    kind = system_of(place)
    if kind in MEMORY_SYSTEMS:
        raise CheckFailed(
            "D470",
            f"{place} is on {kind}; expected a disk.",
            fix="give --folder on the disk that will hold the rows",
        )


def system_of(place: Path) -> str:
    """Type of the file system of a path as /proc/self/mountinfo names it; empty when unknown."""
    number = place.stat().st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""


def check_span(path: Path, *, least: int) -> None:
    """Refuse a small file: controllers and hosts below keep it in memory.

    Raises:
        CheckFailed: D471.
    """
    found = path.stat().st_size
    if found < least:
        raise CheckFailed(
            "D471",
            f"{path} has {found / GIB:.2f} GiB; expected at least {least / GIB:.2f}.",
            fix="measure a real row file, or lower --span",
        )


@contextmanager
def made_file(folder: Path, *, span: int, say: Callable[[str], object]) -> Iterator[Path]:
    """Make a row file of `span` bytes whose rows follow from their numbers; it is removed after."""
    rows = (span // PAGE - 1) * ROWS_PER_PAGE
    with tempfile.TemporaryDirectory(prefix="rows-bench-", dir=folder) as inside:
        path = Path(inside) / "made.rows"
        say(f"making {path}, {span / GIB:.1f} GiB")
        with row_errors():
            extension().pack(
                source="",
                target=str(path),
                total_rows=rows,
                ranges=[(0, rows, 0)],
                made=True,
                **IDENTITY,
            )
        yield path
