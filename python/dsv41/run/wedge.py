"""Whether a running engine is wedged: its /metrics as samples for the judge of `diagnose`.

An engine counts as wedged when requests run, no counter of work moves and the GPU draws the power
of an idle one, for `Times.window` seconds (user report P72). Whatever moves while a prompt is read,
tokens computed, memory of the KV pool, steps, is progress: a long prefill is never taken for it.
"""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dsv41.api import Endpoint
from dsv41.diagnose import Sample, judge_samples
from dsv41.errors import Error
from dsv41.plan import LOCAL

POWER = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,power.draw",
    "--format=csv,noheader,nounits",
)
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """What an engine calls it. Of SGLang 0.5.23, vLLM 0.33.0 and `local/http/metrics.py`.

    Attributes:
        ready: the path that answers 200 when requests are served.
        generated, prompt, running, queued: as in `diagnose.Sample`.
        moving: what changes with every step, the reading of a prompt too.
    """

    ready: str
    generated: str
    prompt: str
    running: str
    queued: str
    moving: tuple[str, ...]


NAMES = {
    "sglang": Names(
        ready="/ready",
        generated="sglang:generation_tokens_total",
        prompt="sglang:prompt_tokens_total",
        running="sglang:num_running_reqs",
        queued="sglang:num_queue_reqs",
        moving=(
            "sglang:realtime_tokens_total",
            "sglang:kv_used_tokens",
            "sglang:num_used_tokens",
            "sglang:swa_used_tokens",
            "sglang:decode_sum_seq_lens",
            "sglang:cuda_graph_passes_total",
        ),
    ),
    "vllm": Names(
        ready="/health",
        generated="vllm:generation_tokens_total",
        prompt="vllm:prompt_tokens_total",
        running="vllm:num_requests_running",
        queued="vllm:num_requests_waiting",
        moving=("vllm:kv_cache_usage_perc", "vllm:iteration_tokens_total_count"),
    ),
    LOCAL: Names(
        ready="/ready",
        generated="dsv41_generated_tokens_total",
        prompt="dsv41_prompt_tokens_total",
        running="dsv41_requests_running",
        queued="dsv41_requests_queued",
        moving=("dsv41_steps_total", "dsv41_prefill_steps_total"),
    ),
}


def read(text: str) -> dict[str, float]:
    """The series of a Prometheus text by name, summed over their labels."""
    found: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found


@dataclass(kw_only=True, slots=True)
class Watch:
    """The samples of one round. Pure: the caller looks and says when."""

    engine: str
    window: float
    samples: deque[Sample] = field(default_factory=deque)
    moved: tuple[float | None, ...] | None = None

    def add(self, series: Mapping[str, float], *, now: float, power: float | None) -> str:
        """Take one look; what the judge says of the window, empty unless it is wedged.

        An engine on the CPU has no GPU whose power could tell a spin from work: there its counters
        tell alone.
        """
        names = NAMES[self.engine]
        needed = [series.get(name) for name in (names.generated, names.prompt, names.running)]
        generated, prompt, running = needed
        if generated is None or prompt is None or running is None:
            self.samples.clear()  # a look that failed is no evidence
            return ""
        moved = tuple(series.get(name) for name in names.moving)
        before, self.moved = self.moved, moved
        self.samples.append(
            Sample(
                t=now,
                generated=generated,
                prompt=prompt,
                running=running,
                queued=series.get(names.queued, 0.0),
                power=0.0 if self.engine == LOCAL else power,
                prefill_progress=before is None or moved != before,
            )
        )
        while len(self.samples) > 2 and now - self.samples[1].t >= self.window:
            self.samples.popleft()
        verdict = judge_samples(tuple(self.samples), least_seconds=self.window)
        if not verdict.restart:
            return ""
        return f"{verdict.findings[0].code} {verdict.findings[0].says}"


def ready(url: str, engine: str) -> bool:
    """Whether the engine serves requests."""
    try:
        return Endpoint(url=url, timeout=5.0).status(NAMES[engine].ready) == 200
    except Error:
        return False


def look(url: str) -> dict[str, float]:
    """The series that the engine shows now; none when it does not answer."""
    try:
        return read(Endpoint(url=url, timeout=5.0).text("/metrics"))
    except (Error, ValueError):
        return {}


def power() -> float | None:
    """W that the busiest GPU draws; None where nobody can say."""
    try:
        done = subprocess.run(
            POWER, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = []
    for line in done.stdout.splitlines():
        try:
            found.append(float(line.split(",")[1]))
        except (IndexError, ValueError):
            continue
    return max(found, default=None)
