"""The engine log of each node: what the last boot came to, and every finding in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dsv41.doctor.check import Case, NodeCheck, Verdict
from dsv41.doctor.live import diagnosis
from dsv41.finding import Finding


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


CHECKS = (
    NodeCheck(
        code="D264",
        name="the last boot",
        probes=("engine-log",),
        judge=last_boot,
        reports=("P32",),
    ),
)
