"""docs/reference/checks.md, made from the tables of checks, probes and known failures."""

from __future__ import annotations

from collections.abc import Iterator

from dsv41.diagnose import JUDGED, PATTERNS
from dsv41.doctor.check import Check
from dsv41.doctor.checks import CHECKS, NOT_PROBED
from dsv41.doctor.probes import PROBES
from dsv41.errors import explanations

_HEAD = """\
# Checks

What `dsv41 doctor` looks at, what `dsv41 diagnose` knows, and which probe holds the evidence. This
page is made from the tables in the code (`dsv41.doctor.reference`). `dsv41 explain CODE` says more
about each code. P numbers are [user reports](reports.md) that a check answers.

A probe that is missing makes its checks `unknown`, never `ok`. Checks marked *required* keep
`dsv41 serve` from starting when they are unknown. A check of the fleet compares nodes.
"""


def markdown() -> str:
    """The page."""
    parts = [_HEAD, *_checks(), *_diagnose(), *_probes(), *_not_probed()]
    return "\n".join(parts) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _checks() -> Iterator[str]:
    yield "## doctor\n"
    yield _row("code", "what", "evidence", "reports", "")
    yield _row("---", "---", "---", "---", "---")
    for check in sorted(CHECKS, key=lambda c: c.code):
        yield _row(
            check.code, check.name, ", ".join(check.probes), ", ".join(check.reports), _marks(check)
        )
    yield ""


def _marks(check: Check) -> str:
    words = ["fleet"] if hasattr(check, "partial") else []
    return ", ".join([*words, "required"] if check.required else words)


def _diagnose() -> Iterator[str]:
    titles = {code: entry.title for code, entry in explanations().items()}
    yield "## diagnose\n"
    yield _row("code", "what", "level", "engines", "reports")
    yield _row("---", "---", "---", "---", "---")
    for code, (what, reports) in JUDGED.items():
        yield _row(code, what, "by value", "", ", ".join(reports))
    for known in sorted(PATTERNS, key=lambda p: p.code):
        yield _row(
            known.code,
            titles[known.code],
            known.level,
            "" if len(known.engines) > 2 else ", ".join(known.engines),
            ", ".join(known.reports),
        )
    yield ""


def _probes() -> Iterator[str]:
    yield "## Probes\n"
    yield "`NODE/PROBE.txt` of a bundle; *added* ones may be absent from a bundle that is whole.\n"
    yield _row("probe", "command", "")
    yield _row("---", "---", "---")
    for probe in PROBES:
        first, *more = probe.command.splitlines() or ["a measurement put there by hand"]
        words = [w for w, on in (("added", probe.added), ("sudo", probe.root)) if on]
        yield _row(probe.name, f"`{first}`{' …' if more else ''}", ", ".join(words))
    yield ""


def _not_probed() -> Iterator[str]:
    yield "## Reports that no capture can show\n"
    yield _row("report", "why")
    yield _row("---", "---")
    for report, why in NOT_PROBED.items():
        yield _row(report, why)
