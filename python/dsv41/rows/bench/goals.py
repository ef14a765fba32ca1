"""The goals R1 to R9 and what the runs say to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

Run = Mapping[str, Any]
Figures = dict[str, dict[str, dict[str, float]]]
MIB = 1 << 20


def rate(run: Run) -> float:
    """Rows per second."""
    return float(run["rows"] / run["seconds"])


def cpu(run: Run) -> float:
    """Processor microseconds per row."""
    return float(run["cpu_seconds"] / run["rows"] * 1e6)


class Found:
    """Runs by shape, contender and round."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.by: dict[tuple[str, str], dict[int, Run]] = {}
        for run in runs:
            self.by.setdefault((run["shape"], run["name"]), {})[run["round"]] = run

    def has(self, shape: str, *names: str) -> bool:
        """Were all of these measured?"""
        return all((shape, name) in self.by for name in names)

    def ratio(self, shape: str, one: str, two: str, of: Callable[[Run], float] = rate) -> float:
        """Median over the rounds of one to two."""
        ours, others = self.by[shape, one], self.by[shape, two]
        return median(of(ours[number]) / of(others[number]) for number in ours)

    def more(self, shape: str, one: str, two: str, of: Callable[[Run], float]) -> float:
        """Median over the rounds of one less two: a disk that changes between rounds is in both."""
        ours, others = self.by[shape, one], self.by[shape, two]
        return median(of(ours[number]) - of(others[number]) for number in ours)

    def middle(self, shape: str, name: str, of: Callable[[Run], float]) -> float:
        """Median over the rounds."""
        return median(of(run) for run in self.by[shape, name].values())


def judge(runs: Sequence[Run], *, memory: Mapping[str, int]) -> list[dict[str, Any]]:
    """Every goal: name, what it says, what was found, whether it is met (None: not measured)."""
    found = Found(runs)
    return [
        *_against_fio(found),
        *_against_pool(found),
        *_reads(found),
        *_unique(found),
        *_checks(found),
        *_fallback(found),
        _goal("R9", "page cache growth, MiB", memory["page_cache_bytes"] / MIB, most=8),
        _goal("R9", "growth of the process, MiB", memory["rss_bytes"] / MIB, most=16),
    ]


def _goal(
    name: str,
    says: str,
    value: float | None,
    *,
    least: float | None = None,
    most: float | None = None,
) -> dict[str, Any]:
    met = None
    if value is not None:
        met = (least is None or value >= least) and (most is None or value <= most)
    rounded = None if value is None else round(value, 3)
    return {"name": name, "says": says, "found": rounded, "least": least, "most": most, "met": met}


def _against_fio(found: Found) -> list[dict[str, Any]]:
    goals = []
    for name, shape in (("R1", "chunk"), ("R2", "burst")):
        value = found.ratio(shape, "uring", "fio") if found.has(shape, "fio") else None
        goals.append(_goal(name, f"{shape}: rows/s to fio", value, least=0.9))
    return goals


def _against_pool(found: Found) -> list[dict[str, Any]]:
    goals = [
        _goal(
            "R3", "burst: rows/s to the pool", found.ratio("burst", "uring", "pread96"), least=1.3
        )
    ]
    for shape, part, most in (("burst", 0.25, 4.0), ("chunk", 0.5, 3.0)):
        value = found.ratio(shape, "uring", "pread96", cpu)
        goals.append(_goal("R4", f"{shape}: CPU to the pool", value, most=part))
        value = found.middle(shape, "uring", cpu)
        goals.append(_goal("R4", f"{shape}: CPU us/row", value, most=most))
    return goals


def _reads(found: Found) -> list[dict[str, Any]]:
    goals = []
    for shape in ("burst", "chunk"):
        value = found.middle(shape, "uring", lambda run: run["reads"] / run["unique"])
        goals.append(_goal("R5", f"{shape}: reads per unique row", value, least=1.0, most=1.0))
        value = found.ratio(shape, "uring", "two-read")
        goals.append(_goal("R5", f"{shape}: rows/s to two reads a row", value, least=1.8))
    return goals


def _unique(found: Found) -> list[dict[str, Any]]:
    goals = []
    for name in sorted(name for _, name in found.by if name.startswith("unique")):
        part = float(name.split()[1])
        value = found.middle("chunk", name, lambda run: run["reads"] / run["unique"])
        goals.append(_goal("R6", f"{name}: reads per unique row", value, least=1.0, most=1.0))
        value = found.ratio("chunk", name, "uring") * part
        goals.append(_goal("R6", f"{name}: gain in rows/s, of 1/u", value, least=0.8))
    return goals


def _checks(found: Found) -> list[dict[str, Any]]:
    goals = []
    for shape in ("burst", "chunk"):
        known = found.has(shape, "unchecked")
        value = found.ratio(shape, "checked", "unchecked") if known else None
        goals.append(_goal("R7", f"{shape}: rows/s to unchecked rows", value, least=0.9))
        value = found.more(shape, "checked", "unchecked", cpu) if known else None
        goals.append(_goal("R7", f"{shape}: CPU us/row of the check", value, most=0.3))
    return goals


def _fallback(found: Found) -> list[dict[str, Any]]:
    return [
        _goal("R8", f"{shape}: aio to uring", found.ratio(shape, "aio", "uring"), least=0.85)
        for shape in ("burst", "chunk")
    ]


def spread(runs: Sequence[Run]) -> Figures:
    """Median, least and most of every contender: rows/s, CPU us/row, reads per row."""
    figures: Figures = {}
    kinds: dict[str, Callable[[Run], float]] = {
        "rows_per_second": rate,
        "cpu_us_per_row": cpu,
        "reads_per_row": lambda run: run["reads"] / run["rows"],
    }
    for (shape, name), rounds in Found(runs).by.items():
        for kind, of in kinds.items():
            values = [of(run) for run in rounds.values()]
            named = {"median": median(values), "min": min(values), "max": max(values)}
            digits = 0 if kind == "rows_per_second" else 3
            figures.setdefault(f"{shape} {name}", {})[kind] = {
                key: round(value, digits) for key, value in named.items()
            }
    return figures
