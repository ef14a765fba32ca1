"""The methods that bench_pack.py compares: `python packers.py METHOD SOURCE TARGET`.

Prints one line of JSON: bytes of the source, seconds, processor seconds.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dsv41_rows
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

WEIGHT, SCALE = 256, 8  # bytes of a row
ROW = WEIGHT + SCALE
CHUNK = 1 << 18  # rows of a chunk of the numpy packer, as upstream has it
BLOCK, THREADS = 8 << 20, 8  # of the copy, as the packer has them


def main(argv: Sequence[str]) -> int:
    """Run one method here."""
    method, source, target = argv
    table = dsv41_rows.source(source, 1)
    before, began = cpu_seconds(), time.perf_counter()
    METHODS[method](Path(source), Path(target), table)
    said = {
        "method": method,
        "bytes": table["rows"] * ROW,
        "seconds": round(time.perf_counter() - began, 3),
        "cpu_seconds": round(cpu_seconds() - before, 3),
    }
    sys.stdout.write(json.dumps(said) + "\n")
    return 0


def by_packer(source: Path, target: Path, table: dict[str, Any]) -> None:
    """Pack with the row store's packer: the whole table as the rows of the one rank."""
    rows = table["rows"]
    dsv41_rows.pack(
        source=str(source),
        target=str(target),
        layer=1,
        rank=0,
        tp=1,
        partition="contiguous-rows",
        total_rows=rows,
        ranges=[(0, rows, 0)],
    )


def by_numpy(source: Path, target: Path, table: dict[str, Any]) -> None:
    """Pack as a numpy program does."""
    partial = target.with_suffix(".partial")
    with source.open("rb") as weights, source.open("rb") as scales, partial.open("wb") as out:
        weights.seek(table["weight_offset"])
        scales.seek(table["scale_offset"])
        for left in range(table["rows"], 0, -CHUNK):
            rows = min(left, CHUNK)
            record = join(
                np.fromfile(weights, np.uint8, rows * WEIGHT).reshape(rows, -1),
                np.fromfile(scales, np.uint8, rows * SCALE).reshape(rows, -1),
            )
            record.tofile(out)
        out.flush()
        os.fsync(out.fileno())
    partial.rename(target)


def join(weights: Bytes, scales: Bytes) -> Bytes:
    """Put weights and scales together: [n, 256] and [n, 8] give [n, 264]."""
    record = np.empty((len(weights), ROW), np.uint8)
    record[:, :WEIGHT] = weights
    record[:, WEIGHT:] = scales
    return record


def by_copy(source: Path, target: Path, table: dict[str, Any]) -> None:
    """Copy as many bytes as the table has, past the page cache."""
    size = table["rows"] * ROW // 4096 * 4096
    reader = os.open(source, os.O_RDONLY | os.O_DIRECT)
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
    os.posix_fallocate(writer, 0, size)

    def copy(first: int) -> None:
        memory = memoryview(mmap.mmap(-1, BLOCK))
        for at in range(first, size, THREADS * BLOCK):
            part = memory[: min(BLOCK, size - at)]
            done = os.preadv(reader, [part], at), os.pwrite(writer, part, at)
            if done != (len(part), len(part)):
                raise OSError(f"{source} or {target} gave a short read or write at {at}")

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(copy, range(0, THREADS * BLOCK, BLOCK)))
    os.fdatasync(writer)


def cpu_seconds() -> float:
    """Processor seconds of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


METHODS = {"packer": by_packer, "numpy": by_numpy, "copy": by_copy}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
