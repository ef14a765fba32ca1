"""A known failure: the line that shows it, its cause, its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dsv41.diagnose.log import Line
from dsv41.finding import Finding


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """One row of the table of known failures.

    Attributes:
        code: its code.
        line: what a line of the log must contain.
        says: the cause, as a sentence; `{0}`, `{1}` are the groups of `line`.
        fix: the command or edit that mends it.
        level: how bad it is on its own.
        engines: whose logs it is looked for in.
        boot: it stops a boot; when the boot became ready all the same, it did no harm.
        restart: False where starting again makes it worse.
        general: its line says little: left out where another pattern tells more of it.
        reports: the user reports it answers (P numbers).
    """

    code: str
    line: re.Pattern[str]
    says: str
    fix: str
    level: str = "fail"
    engines: tuple[str, ...] = ("sglang", "vllm", "local")
    boot: bool = True
    restart: bool = True
    general: bool = False
    reports: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """The first line that a pattern matched, and how many lines it matched in all."""

    pattern: Pattern
    line: Line
    count: int
    last: int
    words: tuple[str, ...]

    def finding(self, *, ready_at: int | None) -> Finding:
        """The finding; `ready_at` is the number of the line with which the boot became ready."""
        pattern = self.pattern
        survived = pattern.boot and ready_at is not None and self.last < ready_at
        more = f", {self.count} times" if self.count > 1 else ""
        says = pattern.says.format(*self.words)
        return Finding(
            code=pattern.code,
            level="info" if survived else pattern.level,
            says=f"{says} ({self.line.quote()}{more}){'; the boot went on' if survived else ''}",
            fix="" if survived else pattern.fix,
        )


def match(lines: Iterable[Line], patterns: tuple[Pattern, ...], *, engine: str) -> Iterator[Match]:
    """The patterns that the lines match, in the order of the table: causes before consequences."""
    wanted = [pattern for pattern in patterns if engine in pattern.engines]
    found: dict[str, Match] = {}
    for line in lines:
        for pattern, hit in _hits(line, wanted):
            words = tuple(group or "?" for group in hit.groups())
            before = found.get(pattern.code)
            found[pattern.code] = Match(
                pattern=pattern,
                line=before.line if before else line,
                count=before.count + 1 if before else 1,
                last=line.number,
                words=before.words if before else words,
            )
    return (found[p.code] for p in wanted if p.code in found)


def _hits(line: Line, wanted: list[Pattern]) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns in one line; a general one only where no other one is."""
    hits = [(pattern, hit) for pattern in wanted if (hit := pattern.line.search(line.text))]
    special = any(not pattern.general for pattern, _ in hits)
    return (pair for pair in hits if not (special and pair[0].general))
