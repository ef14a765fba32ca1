"""Measure the packer against a numpy packer and a plain copy: `make bench-pack`.

Three methods (packers.py) take turns on one synthetic table, each in a process of its own, with the
source out of the page cache and nothing of the target there:

- `packer`: `dsv41_rows.pack`, with its checksums, journal and flushes;
- `numpy`: chunks of 2^18 rows read by np.fromfile, put together as 264-byte records, written
  through the page cache to a partial file, one fsync at the end, one rename. No checksum, no
  journal: the way in which the packers around at the time do it;
- `copy`: as many bytes as the packer reads, copied past the page cache, eight reads and
  writes of 8 MiB at a time, one fdatasync: what the disk gives.

A rate counts the bytes of the source. On a memory file system (`--memory`) the disk drops out, and
what is left is the work of kernel and processor. `transform` is the packer's own part of it, rows
in memory to pages in memory with all checksums, beside numpy's way to put rows together.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dsv41_rows
import numpy as np
from packers import BLOCK, CHUNK, METHODS, ROW, SCALE, WEIGHT, cpu_seconds, join

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS = tuple(METHODS)


def main(argv: Sequence[str]) -> int:
    """Measure, write the receipt, print its figures."""
    parser = argparse.ArgumentParser(prog="scripts/bench_pack.py", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/pack.json"))
    parser.add_argument("--folder", type=Path, default=Path(".state/bench-pack"))
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))  # noqa: S108, is the point
    parser.add_argument("--mib", type=int, default=4096, help="size of the table on the disk")
    parser.add_argument("--memory-mib", type=int, default=1024, help="in memory; 0 = not at all")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(argv)
    places = {"disk": (options.folder, options.mib), "memory": (options.memory, options.memory_mib)}
    found = {
        name: series(folder, mib << 20, rounds=options.rounds)
        for name, (folder, mib) in places.items()
        if mib
    }
    receipt = {
        "schema": "dsv41.bench-pack/1",
        "command": "python scripts/bench_pack.py",
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "machine": machine(),
        "aim": "packer >= 3 x numpy on the disk",
        "figures": {name: figures(runs) for name, runs in found.items()}
        | {"transform": transform()},
        "runs": found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(receipt["figures"], indent=2) + "\n")
    return 0


def series(folder: Path, size: int, *, rounds: int) -> list[dict[str, Any]]:
    """Let the methods take turns; a first round is checked and does not count."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        inside = Path(name)
        source, runs = inside / "table.safetensors", []
        make_table(source, size // ROW)
        for number in range(rounds + 1):
            for turn in range(len(TURNS)):
                method = TURNS[(number + turn) % len(TURNS)]
                run = {"round": number, "load_average": round(os.getloadavg()[0], 1)}
                run |= alone(method, source, packed(inside, method))
                sys.stderr.write(json.dumps(run) + "\n")
                if number:
                    runs.append(run)
                    packed(inside, method).unlink()
            if not number:
                check(source, inside)
                for method in TURNS:
                    packed(inside, method).unlink()
    return runs


def packed(folder: Path, method: str) -> Path:
    """Name what a method writes."""
    return folder / f"{method}.packed"


def make_table(path: Path, rows: int) -> None:
    """Write a table of random bytes in safetensors form, weights first, then scales."""
    stem = "layers.1.engram.embed."
    tensors = {
        stem + "weight": ("F8_E4M3", WEIGHT, 0),
        stem + "scale": ("F8_E8M0", SCALE, rows * WEIGHT),
    }
    header = json.dumps(
        {
            name: {"dtype": dtype, "shape": [rows, width], "data_offsets": [at, at + rows * width]}
            for name, (dtype, width, at) in tensors.items()
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    random = np.random.default_rng(1)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for left in range(rows * ROW, 0, -BLOCK):
            file.write(random.bytes(min(left, BLOCK)))
        file.flush()
        os.fsync(file.fileno())


def alone(method: str, source: Path, target: Path) -> dict[str, Any]:
    """Run one method in a process of its own, when the disk has nothing else to do for us."""
    os.sync()
    with source.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    argv = [sys.executable, str(Path(__file__).with_name("packers.py")), method, source, target]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def transform() -> dict[str, float]:
    """Bytes of rows per second of processor time, in memory: the best of five passes."""
    said = subprocess.run(["csrc/tests/run.sh", "transform"], stdout=subprocess.PIPE, check=True)
    rows = (512 << 20) // ROW
    random = np.random.default_rng(1)
    weights = np.frombuffer(random.bytes(rows * WEIGHT), np.uint8).reshape(rows, -1)
    scales = np.frombuffer(random.bytes(rows * SCALE), np.uint8).reshape(rows, -1)

    def numpy_pass() -> float:
        before = cpu_seconds()
        for at in range(0, rows, CHUNK):
            join(weights[at : at + CHUNK], scales[at : at + CHUNK])
        return cpu_seconds() - before

    best = min(numpy_pass() for _ in range(5))
    return {
        "packer_mb_per_cpu_second": round(int(said.stdout) / 1e6),
        "numpy_mb_per_cpu_second": round(rows * ROW / best / 1e6),
    }


def check(source: Path, folder: Path) -> None:
    """Hold the two packed forms to the table, byte by byte."""
    table = dsv41_rows.source(str(source), 1)
    rows = table["rows"]
    found = dsv41_rows.verify(str(packed(folder, "packer")))
    if not found["ok"] or found["rows"] != rows:
        raise SystemExit(f"the packer's file is wrong: {found}")
    weights = np.memmap(source, np.uint8, "r", table["weight_offset"], (rows, WEIGHT))
    scales = np.memmap(source, np.uint8, "r", table["scale_offset"], (rows, SCALE))
    records = np.memmap(packed(folder, "numpy"), np.uint8, "r", shape=(rows, ROW))
    pages = np.memmap(packed(folder, "packer"), np.uint8, "r", 4096).reshape(-1, 4096)
    step = 15 << 14
    for at in range(0, rows, step):
        part = slice(at, min(rows, at + step))
        some, count = pages[at // 15 : -(-part.stop // 15)], part.stop - at
        same = (
            np.array_equal(records[part, :WEIGHT], weights[part]),
            np.array_equal(records[part, WEIGHT:], scales[part]),
            np.array_equal(some[:, :3840].reshape(-1, WEIGHT)[:count], weights[part]),
            np.array_equal(some[:, 3840:3960].reshape(-1, SCALE)[:count], scales[part]),
        )
        if not all(same):
            raise SystemExit(f"a packed file differs from the table after row {at}: {same}")


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Give medians, extremes, and the ratios within each round."""
    by_round: dict[int, dict[str, float]] = {}
    rates: dict[str, list[float]] = {method: [] for method in TURNS}
    cpu: dict[str, list[float]] = {method: [] for method in TURNS}
    for run in runs:
        by_round.setdefault(run["round"], {})[run["method"]] = run["seconds"]
        rates[run["method"]].append(run["bytes"] / run["seconds"] / 1e6)
        cpu[run["method"]].append(run["cpu_seconds"] / run["bytes"] * 1e9)
    ratios = {
        other: [took[other] / took["packer"] for took in by_round.values()]
        for other in TURNS
        if other != "packer"
    }
    return {
        "rounds": len(by_round),
        "bytes": runs[0]["bytes"],
        "mb_per_second": {method: spread(found, 0) for method, found in rates.items()},
        "cpu_seconds_per_gb": {method: spread(found, 2) for method, found in cpu.items()},
        "packer_to": {other: spread(found, 2) for other, found in ratios.items()},
    }


def spread(values: list[float], digits: int) -> dict[str, float]:
    """Give median, least and greatest."""
    named = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in named.items()}


def machine() -> dict[str, Any]:
    """Say where this ran."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
