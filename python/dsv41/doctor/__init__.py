"""Is this fleet fit to serve? Checks over captured text; nothing here touches a machine.

    bundle = read(folder, fleet)                   a folder of captured probes
    report = judge(bundle, fleet, expect)          findings, worst first, and the cabling found
    collect(run, fleet, folder)                    fill the folder, through a callable

A live doctor is collect, read and judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsv41.diagnose import Expect
from dsv41.doctor.bundle import Bundle, Capture, Run, collect, read
from dsv41.doctor.cabling import Cable, End, find_cables
from dsv41.doctor.check import AGAIN, Case, Check, run
from dsv41.doctor.checks import CHECKS, NOT_PROBED, answered, checks_for, probes_for
from dsv41.doctor.history import findings as of_engine_log
from dsv41.doctor.probes import PROBES, Probe, commands
from dsv41.finding import Finding, ranked, worst
from dsv41.fleet import Fleet

__all__ = [
    "CHECKS",
    "NOT_PROBED",
    "PROBES",
    "Bundle",
    "Cable",
    "Capture",
    "Check",
    "End",
    "Probe",
    "Report",
    "Run",
    "answered",
    "collect",
    "commands",
    "judge",
    "probes_for",
    "read",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What doctor found: findings, worst first, and the cabling as it is."""

    findings: tuple[Finding, ...]
    cables: tuple[Cable, ...]

    @property
    def status(self) -> str:
        """The worst level."""
        return worst(self.findings)

    @property
    def exit_status(self) -> int:
        """1 when something failed, else 0."""
        return int(self.status == "fail")

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The nodes that stopped answering while they were asked."""
        return tuple(f.node for f in self.findings if f.code == "D068" and f.node)

    def blocking(self, *, accepted: frozenset[str] = frozenset()) -> tuple[Finding, ...]:
        """What `serve` refuses on: failures and unknowns of required checks, no log of the past."""
        required = {check.code for check in CHECKS if check.required}
        return tuple(
            found
            for found in self.findings
            if found.code not in accepted
            and not found.code.startswith("D3")
            and (found.level == "fail" or (found.level == "unknown" and found.code in required))
        )

    def of(self, rank: int) -> tuple[Finding, ...]:
        """The findings on one rank's node."""
        return tuple(found for found in self.findings if found.rank == rank)

    def document(self) -> dict[str, Any]:
        """The body of `dsv41.doctor/1`, without the schema."""
        return {
            "status": self.status,
            "unreachable": list(self.unreachable),
            "findings": [found.document() for found in self.findings],
            "cables": [cable.document() for cable in self.cables],
        }


def judge(bundle: Bundle, fleet: Fleet, expect: Expect) -> Report:
    """The report on a fleet from what was captured of it."""
    cases = tuple(
        Case(fleet=fleet, expect=expect, rank=rank, capture=bundle.of(node.name))
        for rank, node in enumerate(fleet.nodes)
    )
    asked = checks_for(expect.engine)
    findings = [*_whole(bundle, cases), *_checked(asked, cases)]
    if asked is CHECKS:
        findings += _history(cases)
    return Report(findings=ranked(findings), cables=find_cables(cases))


def _whole(bundle: Bundle, cases: tuple[Case, ...]) -> Iterator[Finding]:
    """D201 for a node without a capture, D068 for one that stopped answering, D202 for a folder."""
    for case in cases:
        if case.capture.unreachable:
            yield Finding(
                code="D068",
                level="unknown",
                says=case.capture.unreachable,
                fix="" if case.node.ssh == "local" else f"ssh {case.node.ssh} true",
                node=case.name,
                rank=case.rank,
            )
        if case.name not in bundle.captures:
            yield Finding(
                code="D201",
                level="unknown",
                says=f"Nothing was captured of {case.name}.",
                fix=AGAIN,
                node=case.name,
                rank=case.rank,
            )
    for name in bundle.strangers:
        yield Finding(code="D202", level="info", says=f"{name} is no node of this fleet.")


def _checked(checks: tuple[Check, ...], cases: tuple[Case, ...]) -> Iterator[Finding]:
    for check in checks:
        yield from run(check, cases)


def _history(cases: tuple[Case, ...]) -> Iterator[Finding]:
    for case in cases:
        yield from of_engine_log(case)
