"""Wedged, busy, idle or serving: a verdict from samples of a running service.

A wedged engine answers its health checks and shows 95 % GPU load for hours: ranks spin in a
collective. What gives it away is that nothing is generated while requests run, at the power of an
idle GPU (16 to 27 W, against 45 to 90 W at work; user report P72). A long prefill generates nothing
either, but makes progress and draws power.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsv41.diagnose import fixes
from dsv41.finding import Finding

LEAST_SAMPLES = 5
LEAST_SECONDS = 40.0
WEDGED_BELOW_WATT = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One look at the service: seconds, token counters, requests, percent, W.

    `prefill_progress`: prefill advanced since the sample before.
    """

    t: float
    generated: float
    prompt: float
    running: float
    queued: float = 0.0
    gpu_util: float | None = None
    power: float | None = None
    prefill_progress: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """wedged, busy, idle or serving (None without a sample), and whether a restart helps."""

    verdict: str | None
    restart: bool
    samples: int
    seconds: float
    findings: tuple[Finding, ...]

    def document(self) -> dict[str, Any]:
        """The body of `dsv41.diagnose/1` for samples, without the schema."""
        return {
            "status": self.findings[0].level if self.findings else "unknown",
            "verdict": self.verdict,
            "restart": self.restart,
            "samples": self.samples,
            "seconds": self.seconds,
            "findings": [finding.document() for finding in self.findings],
        }


def read_samples(text: str) -> tuple[tuple[Sample, ...], int]:
    """The samples of a file of JSON lines in order of time, and how many lines were none."""
    lines = [line for line in text.splitlines() if line.strip()]
    samples = [sample for line in lines if (sample := _sample(line))]
    return tuple(sorted(samples, key=lambda s: s.t)), len(lines) - len(samples)


def _sample(line: str) -> Sample | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    needed = ("t", "generated_tokens_total", "prompt_tokens_total", "running")
    t, generated, prompt, running = (_number(data.get(name)) for name in needed)
    if t is None or generated is None or prompt is None or running is None:
        return None
    return Sample(
        t=t,
        generated=generated,
        prompt=prompt,
        running=running,
        queued=_number(data.get("queued")) or 0.0,
        gpu_util=_number(data.get("gpu_util")),
        power=_number(data.get("power_w")),
        prefill_progress=data.get("prefill_progress") is True,
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def judge_samples(
    samples: Sequence[Sample], *, bad_lines: int = 0, least_seconds: float = LEAST_SECONDS
) -> Verdict:
    """The verdict on one window of samples, in order of time; the window is all of them."""
    if samples and wedged(samples, least_seconds=least_seconds):
        word = "wedged"
    elif samples and _advanced(samples):
        word = "serving"
    elif any(s.running > 0 or s.queued > 0 or s.prefill_progress for s in samples):
        word = "busy"
    else:
        word = "idle"
    seconds = samples[-1].t - samples[0].t if samples else 0.0
    return Verdict(
        verdict=word if samples else None,
        restart=word == "wedged",
        samples=len(samples),
        seconds=seconds,
        findings=tuple(_findings(samples, word, bad_lines=bad_lines)),
    )


def wedged(samples: Sequence[Sample], *, least_seconds: float = LEAST_SECONDS) -> bool:
    """Requests run, both counters stand, no prefill advances, at less than 30 W, all the time.

    At least 5 samples over at least `least_seconds`; a sample without power is no evidence.
    """
    if len(samples) < LEAST_SAMPLES or samples[-1].t - samples[0].t < least_seconds:
        return False
    return not _advanced(samples) and all(
        s.running > 0
        and not s.prefill_progress
        and s.power is not None
        and s.power < WEDGED_BELOW_WATT
        for s in samples
    )


def _advanced(samples: Sequence[Sample]) -> bool:
    return len({(s.generated, s.prompt) for s in samples}) > 1


_SAYS = {
    "wedged": (
        "fail",
        "Requests run, but nothing is generated or read, at the power of an idle GPU.",
    ),
    "busy": (
        "info",
        "Requests wait or run without a new token in this window: a prefill, or too short a look.",
    ),
    "idle": ("ok", "No request runs."),
    "serving": ("ok", "Tokens are made."),
}


def _findings(samples: Sequence[Sample], word: str, *, bad_lines: int) -> Iterator[Finding]:
    if not samples:
        yield Finding(code="D340", level="unknown", says="There is no readable sample.")
        return
    level, says = _SAYS[word]
    fix = fixes.ALL_AGAIN if word == "wedged" else ""
    yield Finding(code="D340", level=level, says=says, fix=fix)
    tail = _standing(samples)
    if word == "serving" and wedged(tail):
        yield Finding(
            code="D341",
            level="info",
            says=f"The last {tail[-1].t - tail[0].t:g} s of the window stand still, as a wedged "
            "engine does.",
            fix="judge the last minute alone: tail -n 12 FILE",
        )
    if bad_lines:
        yield Finding(code="D342", level="info", says=f"{bad_lines} lines are no samples.")


def _standing(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples at the end whose counters are those of the last one."""
    last = (samples[-1].generated, samples[-1].prompt)
    start = len(samples)
    while start and (samples[start - 1].generated, samples[start - 1].prompt) == last:
        start -= 1
    return samples[start:]
