"""How fast rows come from a disk: `dsv41 rows bench`.

A run asks for rows in one shape with one contender. Contenders take turns within a round, and a
goal is judged by the median of the ratios within the rounds: what a neighbor does to the disk then
meets both sides. The shapes are those of a decode step and of a prefill chunk.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41.rows.bench.goals import judge, spread
from dsv41.rows.bench.place import GIB, check_span, check_system, made_file
from dsv41.rows.bench.runs import FRACTIONS, Bench

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = "dsv41.rows-bench/1"

__all__ = ["GIB", "SCHEMA", "Options", "run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What to measure.

    Attributes:
        file: a row file; None makes one of `span` bytes in `folder` and removes it.
        span: bytes of the file made, and the least that a given one must have.
        rounds: alternated rounds.
        seconds: of one run.
        burst: rows of one decode call.
        chunk: rows of one prefill call.
        fio: also run fio with the same shapes.
        force: measure on a memory file system and on a small file as well.
    """

    file: Path | None = None
    folder: Path = field(default_factory=Path.cwd)
    span: int = 8 * GIB
    rounds: int = 7
    seconds: float = 2.0
    burst: int = 48
    chunk: int = 32_768
    fio: bool = False
    force: bool = False


def run(options: Options, *, say: Callable[[str], object]) -> dict[str, Any]:
    """Measure and judge.

    Returns:
        The report: machine, runs, medians, goals with what was found.

    Raises:
        CheckFailed: D470 on a memory file system, D471 for a small file.
        Error: D472 when fio is asked for and cannot run; as `rows.pack` and `rows.open_shard`.
    """
    place = options.file or options.folder
    if not options.force:
        check_system(place)
    if options.file is not None:
        if not options.force:
            check_span(options.file, least=options.span)
        return _report(options, options.file, say)
    with made_file(options.folder, span=options.span, say=say) as path:
        return _report(options, path, say)


def _report(options: Options, path: Path, say: Callable[[str], object]) -> dict[str, Any]:
    bench = Bench(path, options)
    try:
        found = bench.all_rounds(say)
        memory = bench.memory()
    finally:
        bench.close()
    goals = judge(found, memory=memory)
    return {
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "status": "fail" if any(goal["met"] is False for goal in goals) else "ok",
        "machine": _machine(),
        "drive": bench.drive,
        "span_bytes": path.stat().st_size,
        "rounds": options.rounds,
        "shapes": {"burst": options.burst, "chunk": bench.chunk, "fractions": list(FRACTIONS)},
        "engines": bench.engines,
        "goals": goals,
        "figures": spread(found),
        "memory": memory,
        "runs": found,
    }


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_average": round(os.getloadavg()[0], 1),
    }
