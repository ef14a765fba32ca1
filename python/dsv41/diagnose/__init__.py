"""What an engine's log or a running service tells. Pure: text in, findings out.

    judge_log(text, expect)      stage reached, requested and effective limits, known failures
    judge_samples(samples)       wedged, busy, idle or serving

Nothing here asks a machine or reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsv41.diagnose.expect import CHECKPOINT_BYTES, LIMITS, Expect
from dsv41.diagnose.limits import Limits, judge_limits, read_limits
from dsv41.diagnose.log import Line, engine_of, last_boot, read
from dsv41.diagnose.pattern import Match, Pattern, match
from dsv41.diagnose.patterns import PATTERNS
from dsv41.diagnose.power import GpuRow, judge_power, read_gpu_rows
from dsv41.diagnose.ring import judge_ring
from dsv41.diagnose.samples import Sample, Verdict, judge_samples, read_samples
from dsv41.diagnose.stages import STAGES, Reached, reached
from dsv41.finding import Finding, ranked, worst

__all__ = [
    "CHECKPOINT_BYTES",
    "JUDGED",
    "LIMITS",
    "PATTERNS",
    "STAGES",
    "Diagnosis",
    "Expect",
    "GpuRow",
    "Pattern",
    "Sample",
    "Verdict",
    "judge_log",
    "judge_power",
    "judge_samples",
    "read_gpu_rows",
    "read_samples",
]

# what is judged besides the known failures: code -> what, and the user reports that it answers
JUDGED = {
    "D300": ("how far the boot came", ("P32", "P33")),
    "D302": ("requested against effective limits", ("P05",)),
    "D303": ("limits asked for against those of the profile", ()),
    "D338": ("rings only", ("P22",)),
    "D340": ("wedged, busy, idle or serving", ("P72",)),
    "D341": ("samples that stand still at the end", ("P72",)),
    "D342": ("lines that are no samples", ()),
    "D343": ("low-power state in nvidia-smi rows", ("P73",)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What one log tells of its last boot.

    `restart` is False where starting again would harm, or would only repeat what was seen.
    """

    engine: str
    reached: Reached
    limits: Limits
    restart: bool
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        """The worst level."""
        return worst(self.findings)

    @property
    def recognized(self) -> bool:
        """Whether anything in the log tells something: a stage of a boot or a known failure."""
        return self.reached.stage is not None or self.status != "unknown"

    def document(self) -> dict[str, Any]:
        """The body of `dsv41.diagnose/1` for a log, without the schema."""
        stage = self.reached.stage
        return {
            "status": self.status,
            "engine": self.engine,
            "stage": stage.name if stage else None,
            "ready": self.reached.ready,
            "ranks": {str(rank): name for rank, name in self.reached.ranks.items()},
            "requested": self.limits.requested,
            "effective": {**self.limits.effective, "available_gib": self.limits.available_gib},
            "restart": self.restart if self.recognized else None,
            "findings": [finding.document() for finding in self.findings],
        }


def judge_log(text: str, expect: Expect, *, rank: int | None = None) -> Diagnosis:
    """The diagnosis of an engine log against what its profile promises.

    `rank` is whose log it is, where that is known: a worker has no HTTP server to wait for.
    """
    lines = last_boot(read(text))
    engine = engine_of(lines) or expect.engine
    worker = bool(rank) or (rank is None and _is_worker(lines))
    came = reached(lines, engine=engine, worker=worker)
    limits = _with_plan(read_limits(lines, engine=engine), expect)
    matches = tuple(match(lines, PATTERNS, engine=engine))
    findings = (
        *_known(matches, came),
        *judge_power(read_gpu_rows(text), code="D343"),
        *judge_ring(lines, expect, ready=came.ready),
        *judge_limits(limits, expect),
        *_stage(lines, came, matches, expect),
    )
    return Diagnosis(
        engine=engine,
        reached=came,
        limits=limits,
        restart=all(m.pattern.restart for m in matches),
        findings=ranked(findings),
    )


def _is_worker(lines: tuple[Line, ...]) -> bool:
    ranks = {line.rank for line in lines if line.rank is not None}
    return bool(ranks) and 0 not in ranks


def _with_plan(limits: Limits, expect: Expect) -> Limits:
    """The limits, with the plan's where the log does not echo what was asked for."""
    return Limits(
        requested={**expect.limits(), **limits.requested},
        effective=limits.effective,
        available_gib=limits.available_gib,
        capped_by=limits.capped_by,
    )


def _known(matches: tuple[Match, ...], came: Reached) -> Iterator[Finding]:
    ready_at = came.line.number if came.ready and came.line else None
    return (found.finding(ready_at=ready_at) for found in matches)


def _stage(
    lines: tuple[Line, ...], came: Reached, matches: tuple[Match, ...], expect: Expect
) -> Iterator[Finding]:
    """D300: how far the boot came, and what was going on when the log ends."""
    if came.stage is None:
        yield Finding(
            code="D300",
            level="unknown",
            says=f"No line of a boot of {expect.engine} is in the log ({len(lines)} lines).",
            fix="give the engine's own log of rank 0: what podman logs or docker logs prints on "
            "the head",
        )
        return
    if came.ready:
        yield Finding(code="D300", level="ok", says="The boot became ready.")
        return
    shards = f" ({came.shards})" if came.shards and came.stage.name == "weights" else ""
    behind = sorted(r for r, name in came.ranks.items() if name != came.stage.name)
    late = f"; ranks {behind} are behind it" if behind else ""
    yield Finding(
        code="D300",
        level="info" if any(m.pattern.level == "fail" for m in matches) else "unknown",
        says=f"The log ends in stage {came.stage.name}{shards}{late}. What happens there: "
        f"{came.stage.waits}.",
        fix="if it stays there: diagnose the logs of the other ranks",
    )
