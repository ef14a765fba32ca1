"""What a check is, and how one is run: evidence first, then a verdict.

A check whose probe is missing is `unknown`, never `ok`. A check that finds nothing readable in its
probe raises NoEvidence, which is `unknown` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dsv41.diagnose import Expect
from dsv41.doctor.bundle import Capture
from dsv41.doctor.probes import ADDED
from dsv41.finding import Finding
from dsv41.fleet import Fleet, Node

AGAIN = "dsv41 doctor --fleet FLEET --profile PROFILE --collect DIR"


class NoEvidence(Exception):
    """A probe's text has nothing in it that the check can read; `cause` is that of `Finding`."""

    def __init__(self, says: str, *, cause: str | None = None) -> None:
        super().__init__(says)
        self.cause = cause


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One node under examination."""

    fleet: Fleet
    expect: Expect
    rank: int
    capture: Capture

    @property
    def node(self) -> Node:
        """The node as the fleet file has it."""
        return self.fleet.nodes[self.rank]

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    def text(self, probe: str) -> str:
        """The output of a probe. NoEvidence when there is none."""
        if probe not in self.capture.texts:
            raise NoEvidence(f"there is no {probe}", cause=self.cause(probe))
        return self.capture.texts[probe]

    def cause(self, *probes: str) -> str | None:
        """The code of what is wrong with the node as a whole, where the probes lack for it."""
        capture = self.capture
        if not capture.texts and not capture.errors:
            return "D201"
        gone = capture.unreachable
        return "D068" if gone and any(capture.errors.get(p, gone) == gone for p in probes) else None

    def has(self, probe: str) -> bool:
        """Whether a probe was captured."""
        return probe in self.capture.texts


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a check says; `rank` is set by checks of the fleet that speak of one node.

    `cause` is that of `Finding`.
    """

    level: str
    says: str
    fix: str = ""
    rank: int | None = None
    cause: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCheck:
    """A check of each node by itself.

    Attributes:
        code: its code; codes.toml explains it.
        name: what it looks at, in a few words.
        probes: the evidence it needs.
        judge: the verdicts on a node that has the evidence.
        reports: the user reports that it answers (P numbers).
        required: `serve` refuses when it is unknown.
    """

    code: str
    name: str
    probes: tuple[str, ...]
    judge: Callable[[Case], Iterator[Verdict]]
    reports: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetCheck:
    """A check that compares nodes. `partial`: it can compare those nodes that have the evidence."""

    code: str
    name: str
    probes: tuple[str, ...]
    judge: Callable[[tuple[Case, ...]], Iterator[Verdict]]
    reports: tuple[str, ...] = ()
    required: bool = False
    partial: bool = False


Check = NodeCheck | FleetCheck


def run(check: Check, cases: tuple[Case, ...]) -> Iterator[Finding]:
    """The findings of one check on all nodes."""
    whole = tuple(case for case in cases if all(map(case.has, check.probes)))
    for case in cases:
        if not all(map(case.has, check.probes)):
            yield _missing(check, case)
    if isinstance(check, NodeCheck):
        for case in whole:
            yield from _node(check, case)
    elif len(whole) == len(cases) or (check.partial and len(whole) > 1):
        yield from _fleet(check, whole)


def _missing(check: Check, case: Case) -> Finding:
    absent = [probe for probe in check.probes if not case.has(probe)]
    said = [case.capture.errors[probe] for probe in absent if probe in case.capture.errors]
    untried = not said and all(probe in ADDED for probe in absent)
    cause = case.cause(*absent)
    why = f" ({'; '.join(said)})" if said else ""
    return Finding(
        code=check.code,
        level="info" if untried else "unknown",
        says=f"Not checked: {check.name}; the bundle has no {', '.join(absent)}{why}.",
        fix="" if untried or cause else f"{AGAIN} captures it again",
        node=case.name,
        rank=case.rank,
        cause=cause,
    )


def _node(check: NodeCheck, case: Case) -> Iterator[Finding]:
    try:
        for verdict in check.judge(case):
            yield _finding(check.code, verdict, case)
    except NoEvidence as reason:
        says = f"Not checked: {check.name}; {reason}."
        verdict = Verdict(level="unknown", says=says, cause=reason.cause)
        yield _finding(check.code, verdict, case)


def _fleet(check: FleetCheck, cases: tuple[Case, ...]) -> Iterator[Finding]:
    by_rank = {case.rank: case for case in cases}
    try:
        for verdict in check.judge(cases):
            yield _finding(
                check.code, verdict, by_rank.get(-1 if verdict.rank is None else verdict.rank)
            )
    except NoEvidence as reason:
        says = f"Not checked: {check.name}; {reason}."
        yield _finding(check.code, Verdict(level="unknown", says=says), None)


def _finding(code: str, verdict: Verdict, case: Case | None) -> Finding:
    return Finding(
        code=code,
        level=verdict.level,
        says=verdict.says,
        fix=verdict.fix,
        node=case.name if case else None,
        rank=case.rank if case else None,
        cause=verdict.cause,
    )
