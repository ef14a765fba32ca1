"""The engine log of each node: what the last boot came to, and every finding in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dsv41.doctor.check import Case, FleetCheck, NodeCheck, Verdict
from dsv41.doctor.live import diagnosis
from dsv41.finding import Finding

# "Engram layer=1 lookups=6040 hit_rate=0.0% reads=6040 ...", one line a layer and minute
_READS = re.compile(r"Engram layer=\d{1,3} .{0,80}\breads=(\d{1,12})")
# a 16K prefill: 320,066 reads on one rank, 60,664 on another with columns cut contiguously
ENOUGH_READS = 10_000
UNEVEN = 2


def last_boot(case: Case) -> Iterator[Verdict]:
    """How far the last boot came, in a line. A boot that did not end well is no finding here."""
    text = case.text("engine-log")
    if not text.strip():
        yield Verdict(level="info", says="No engine has started on this node yet.")
        return
    came = diagnosis(text, case.expect, case.rank).reached
    stage = came.stage.name if came.stage else "none"
    if came.ready:
        yield Verdict(level="ok", says="The last boot became ready.")
    else:
        yield Verdict(level="info", says=f"The last boot came to stage {stage}.")


def findings(case: Case) -> Iterator[Finding]:
    """The findings of the engine log, on this node. An unfinished boot is history, not a doubt."""
    if not case.has("engine-log") or not case.text("engine-log").strip():
        return
    for found in diagnosis(case.text("engine-log"), case.expect, case.rank).findings:
        level = "info" if found.code == "D300" and found.level == "unknown" else found.level
        yield replace(found, level=level, node=case.name, rank=case.rank)


def row_reads(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """Row reads of the ranks, by their own counts: the rank that reads most lets others wait."""
    reads = {case.rank: sum(map(int, _READS.findall(case.text("engine-log")))) for case in cases}
    least, most = min(reads.values()), max(reads.values())
    if least < ENOUGH_READS:
        says = "The engine logs have too few row reads to compare the ranks."
        yield Verdict(level="info", says=says)
    elif most > UNEVEN * least:
        rank = max(reads, key=lambda r: reads[r])
        yield Verdict(
            level="warn",
            says=f"Rank {rank} has read {most:,} rows, another one {least:,}: the others wait "
            "for it.",
            fix='partition = "weighted" in the profile, then pack the rows again on every node',
            rank=rank,
        )
    else:
        yield Verdict(level="ok", says=f"The ranks have read {least:,} to {most:,} rows.")


CHECKS = (
    NodeCheck(
        code="D264",
        name="the last boot",
        probes=("engine-log",),
        judge=last_boot,
        reports=("P32",),
    ),
    FleetCheck(
        code="D265",
        name="row reads of the ranks",
        probes=("engine-log",),
        judge=row_reads,
        reports=("P39",),
    ),
)
