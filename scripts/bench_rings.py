"""Measure what the io_uring engine could do otherwise: `python scripts/bench_rings.py`.

Ways take turns within a round, on one made row file, as contenders of `dsv41 rows bench` do. A way
is another value in csrc/src/engine_uring.cpp, which a library compiled for it takes from the
environment, or another use of the store. Figures are medians over the rounds; ratios are medians of
the ratios to the first way of a group within the rounds. `sleeps_per_row` counts how often a thread
gave its core away, as getrusage(2) has it: what a wait batch saves.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import dsv41_rows
import numpy as np

from dsv41.rows.abi import Library
from dsv41.rows.bench import _machine
from dsv41.rows.bench.place import GIB, IDENTITY, made_file
from dsv41.rows.bench.runs import _cpu
from dsv41.rows.build import variant

if TYPE_CHECKING:
    from collections.abc import Sequence

BURST, CHUNK = 48, 32_768
ONE_RING = {"SHARED_ROWS": 2**31}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to read: the values of csrc/src/engine_uring.cpp, how it is opened and asked."""

    name: str
    values: dict[str, int] = field(default_factory=dict)
    engine: str = "uring"
    depth: int = 0
    stores: int = 1
    call: str = "lookup"
    module: bool = False  # the extension, whose `lookup` reads up to four rows itself


GROUPS: dict[str, tuple[int, tuple[Way, ...]]] = {
    "wait batch, chunk": (
        CHUNK,
        (
            Way(name="wait 1", values={"WAIT_FULL": 1}),
            *(Way(name=f"wait {n}", values={"WAIT_FULL": n}) for n in (8, 16, 32, 64)),
            Way(name="send 16", values={"WAIT_FULL": 1, "SUBMIT": 16}),
            Way(name="aio", engine="aio"),
        ),
    ),
    "wait batch, burst": (
        BURST,
        (
            Way(name="wait 1"),
            *(Way(name=f"wait {n}", values={"WAIT_TAIL": n}) for n in (8, 16, 48)),
            Way(name="aio", engine="aio"),
        ),
    ),
    "rings, chunk": (
        CHUNK,
        (
            Way(name="two rings, 128 each"),
            Way(name="two rings, 64 each", depth=64),
            Way(name="one ring, 128", values=ONE_RING),
            Way(name="one ring, 256", values=ONE_RING, depth=256),
        ),
    ),
    "both layers, burst": (
        BURST,
        (
            Way(name="a ring a layer", stores=2, call="both"),
            Way(name="one ring", call="both"),
            Way(name="one after the other", stores=2, call="each"),
        ),
    ),
    "hand-over, one row": (
        1,
        (
            Way(name="read by the caller", module=True),
            Way(name="by the ring's thread", module=True, call="ticket"),
        ),
    ),
}


class Stores:
    """One row file opened a way, with memory for a call."""

    def __init__(self, way: Way, path: Path, *, library: Path, count: int) -> None:
        opener = (dsv41_rows if way.module else Library(library)).RowStore
        self.way, self.count = way, count
        os.environ |= {name: str(value) for name, value in way.values.items()}
        self.stores = [
            opener.open(str(path), engine=way.engine, depth=way.depth, **IDENTITY)  # type: ignore[arg-type]
            for _ in range(way.stores)
        ]
        some = np.arange(CHUNK)  # the second ring is made by the first large batch
        self.stores[0].lookup(
            some, np.zeros((CHUNK, 256), np.uint8), np.zeros((CHUNK, 8), np.uint8)
        )
        for name in way.values:
            del os.environ[name]
        self.weights = np.zeros((2, count, 256), np.uint8)
        self.scales = np.zeros((2, count, 8), np.uint8)

    def call(self, one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> int:
        """Look rows up; how many."""
        first, last = self.stores[0], self.stores[-1]
        if self.way.call == "lookup":
            first.lookup(one, self.weights[0], self.scales[0])
            return self.count
        ticket = first.submit(one, self.weights[0], self.scales[0])
        if self.way.call == "each":
            ticket.wait()
        if self.way.call != "ticket":
            last.submit(two, self.weights[1], self.scales[1]).wait()
        ticket.wait()
        return self.count if self.way.call == "ticket" else 2 * self.count

    def run(self, seconds: float, draw: np.random.Generator, rows: int) -> dict[str, float]:
        """Calls for some seconds."""
        calls = 400 if self.count < 1000 else 6
        ids = draw.integers(0, rows, (2, calls, self.count))
        used, slept = _cpu(), _sleeps()
        began, done = time.perf_counter(), 0
        times: list[float] = []
        while (now := time.perf_counter()) - began < seconds:
            turn = len(times) % calls
            done += self.call(ids[0, turn], ids[1, turn])
            times.append(time.perf_counter() - now)
        took = time.perf_counter() - began
        return {
            "rows_per_second": done / took,
            "cpu_us_per_row": (_cpu() - used) / done * 1e6,
            "sleeps_per_row": (_sleeps() - slept) / done,
            "p50_us": median(times) * 1e6,
        }


def _sleeps() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def measure(options: argparse.Namespace, path: Path, folder: Path) -> dict[str, Any]:
    """All groups, way by way within a round."""
    library = variant(folder / "tuned.so", "-DDSV41_TUNED")
    draw, rows, found = np.random.default_rng(), (path.stat().st_size // 4096 - 1) * 15, {}
    for name in options.group or GROUPS:
        count, ways = GROUPS[name]
        opened = [Stores(way, path, library=library, count=count) for way in ways]
        runs: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
        for number in range(options.rounds + 1):
            for one in opened[number % len(ways) :] + opened[: number % len(ways)]:
                run = one.run(options.seconds, draw, rows)
                if number:  # the first one warms up
                    runs[one.way.name].append(run)
        found[name] = figures(runs)
        say(f"{name}: {json.dumps(found[name], indent=1)}")
        for one in opened:
            for store in one.stores:
                store.close()
    return found


def figures(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians of every way, and of its ratios to the first one within the rounds."""
    first = next(iter(runs.values()))
    made = {}
    for name, rounds in runs.items():
        made[name] = {key: round(median(run[key] for run in rounds), 3) for key in first[0]}
        for key in ("rows_per_second", "cpu_us_per_row"):
            ratios = [run[key] / base[key] for run, base in zip(rounds, first, strict=True)]
            made[name][f"{key}_ratio"] = round(median(ratios), 3)
    return made


def say(text: str) -> None:
    """A line to stderr."""
    sys.stderr.write(text + "\n")


def main(argv: Sequence[str]) -> int:
    """Measure and write the receipt."""
    parser = argparse.ArgumentParser(prog="scripts/bench_rings.py", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/rings.json"))
    parser.add_argument("--folder", type=Path, default=Path(".cache"))
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--group", action="append", choices=list(GROUPS))
    options = parser.parse_args(argv)
    loads = [os.getloadavg()[0]]
    with (
        tempfile.TemporaryDirectory() as folder,
        made_file(options.folder, span=round(options.gib * GIB), say=say) as path,
    ):
        found = measure(options, path, Path(folder))
    receipt = {
        "schema": "dsv41.bench-rings/1",
        "command": "python scripts/bench_rings.py",
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "machine": _machine(),
        "load_average": [round(load, 1) for load in (*loads, os.getloadavg()[0])],
        "span_gib": options.gib,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "figures": found,
    }
    options.out.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
