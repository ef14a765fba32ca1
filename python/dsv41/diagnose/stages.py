"""The stages of an engine's boot, by the lines that it writes when it reaches them.

SGLang's lines are those of a published three-Spark boot log of `sglang:dev-dsv41`
(2026-09-11, 766 s from start to ready), vLLM's those of its V1 engine and of the sparkring cycle's
runbook. Usual times are of those boots; `longest` is how long a healthy boot was seen silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dsv41.diagnose.log import Line


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage: `line` shows that it was reached; `waits` is what happens in it, with its time."""

    name: str
    line: re.Pattern[str]
    waits: str


def _stages(*rows: tuple[str, str, str]) -> tuple[Stage, ...]:
    return tuple(Stage(name=name, line=re.compile(line), waits=waits) for name, line, waits in rows)


_MEETING = (
    "the ranks meet and NCCL connects (1-2 s); when it hangs here, a rank never started, an HCA "
    "or GID "
    "is wrong, or /etc/nccl.conf in the image sets NCCL_IB_USE_INLINE or "
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS"
)
_TUNING = (
    "kernels are tuned and compiled: 12 s with warm caches, but about 36 min of silence were "
    "healthy "
    "after a change of the NCCL topology (caches are keyed by it); do not end the boot"
)
_LOADING = "48 shards are read: 4 min from local NVMe on vLLM, 482-616 s with SGLang's stock loader"

STAGES = {
    "sglang": _stages(
        (
            "start",
            r"server_args=|launch_server|Auto-detected DSV4",
            "arguments are resolved (10 s)",
        ),
        ("dist-init", r"Init torch distributed begin", _MEETING),
        ("dist-ready", r"Init torch distributed ends", "the model is built (1 s)"),
        ("weights", r"Load weight begin|loading shards: +\d", _LOADING),
        (
            "weights-ready",
            r"Load weight end",
            "experts are repacked, the draft head is loaded (75 s)",
        ),
        (
            "kv-pool",
            r"(?i:dsv4) memory calculation:|Memory pool end",
            "the KV pool is laid out (7 s)",
        ),
        ("autotune", r"Running FlashInfer autotune", _TUNING),
        ("graphs", r"Capture .{0,40}CUDA graph begin", "CUDA graphs are captured (14 s and 4 s)"),
        (
            "limits",
            r"max_total_num_tokens=\d|Tree cache initialized",
            "the HTTP server starts (3 s)",
        ),
        ("http", r"Uvicorn running|Application startup complete", "a warm-up request runs (15 s)"),
        (
            "ready",
            r"The server is fired up|Dummy health check server started",
            "requests are served",
        ),
    ),
    "vllm": _stages(
        ("start", r"non-default args|API server version", "arguments are resolved (10 s)"),
        ("dist-init", r"Initializing a V1 LLM engine|distributed_init_method=", _MEETING),
        ("dist-ready", r"is assigned as (?:DP )?rank", "the model is built"),
        ("weights", r"Starting to load model|checkpoint shards: +\d", _LOADING),
        ("weights-ready", r"Model loading took", "the draft head and the memory profile (57 s)"),
        ("kv-pool", r"Available KV cache memory|GPU KV cache size", "the KV pool is laid out"),
        ("autotune", r"(?i:running.{0,20}autotun)", _TUNING),
        ("graphs", r"Capturing CUDA graphs", "CUDA graphs are captured (2 min with autotune)"),
        ("limits", r"Graph capturing finished|init engine \(profile", "the HTTP server starts"),
        (
            "http",
            r"Starting vLLM (?:API )?server|Waiting for application startup",
            "the HTTP server",
        ),
        ("ready", r"Application startup complete", "requests are served"),
    ),
    "local": _stages(
        ("weights", r"loaded rows and weights in", "the ranks meet"),
        ("ready", r"\bready at http", "requests are served"),
    ),
}
# one search a line instead of one a stage: most lines of a long log show no stage
_ANY = {
    engine: re.compile("|".join(f"(?:{stage.line.pattern})" for stage in stages))
    for engine, stages in STAGES.items()
}
# a rank without the HTTP server is up with its last own line
_WORKER_READY = {"sglang": "ready", "vllm": "limits", "local": "weights"}
_SHARDS = re.compile(r"(\d{1,3})/(\d{1,3}) \[")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """How far a boot came: the furthest stage, its first line, and how far each rank came."""

    stage: Stage | None
    line: Line | None
    ready: bool
    ranks: dict[int, str]
    shards: str = ""


def reached(lines: Iterable[Line], *, engine: str, worker: bool) -> Reached:
    """The furthest stage in the lines of one boot."""
    stages = STAGES[engine]
    best, at, shards = -1, None, ""
    ranks: dict[int, int] = {}
    for line in lines:
        if not _ANY[engine].search(line.text):
            continue
        place = max((i for i, s in enumerate(stages) if s.line.search(line.text)), default=-1)
        if place > best:
            best, at = place, line
        if place >= 0 and line.rank is not None:
            ranks[line.rank] = max(place, ranks.get(line.rank, -1))
        if place >= 0 and (count := _SHARDS.search(line.text)):
            shards = f"{count[1]} of {count[2]} shards"
    last = _WORKER_READY[engine] if worker else "ready"
    names = [stage.name for stage in stages]
    return Reached(
        stage=stages[best] if best >= 0 else None,
        line=at,
        ready=best >= names.index(last),
        ranks={rank: names[place] for rank, place in sorted(ranks.items())},
        shards=shards,
    )
