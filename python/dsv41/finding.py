"""What a check found: where, which code, how bad, in one sentence, and the step that mends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LEVELS = ("ok", "info", "unknown", "warn", "fail")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding; `node` and `rank` are None where it is about the fleet as a whole.

    `fix` is a command or an edit, empty where nothing has to be done. `cause` is the code of the
    finding of the same node of which this one is a mere consequence.
    """

    code: str
    level: str
    says: str
    fix: str = ""
    node: str | None = None
    rank: int | None = None
    cause: str | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level {self.level!r} is not one of {LEVELS}")

    def document(self) -> dict[str, str | int | None]:
        """The finding as its JSON object."""
        found = {
            "node": self.node,
            "rank": self.rank,
            "code": self.code,
            "level": self.level,
            "says": self.says,
            "fix": self.fix,
        }
        return found | ({"cause": self.cause} if self.cause else {})


def worst(findings: Iterable[Finding]) -> str:
    """The worst level among the findings; `unknown` when there are none: nothing was looked at."""
    levels = [LEVELS.index(finding.level) for finding in findings]
    return LEVELS[max(levels)] if levels else "unknown"


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first; within a level in the order given, which is causes before consequences."""
    return tuple(sorted(findings, key=lambda f: -LEVELS.index(f.level)))
