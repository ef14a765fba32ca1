"""What /metrics says: the engine's counters, the row stores', and those of the requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from dsv41 import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from dsv41.local.http.settings import Settings

MEMINFO = Path("/proc/meminfo")
# dsv41_* name, key of Engine.stats(), help
_COUNTERS = (
    ("prompt_tokens", "prompt_tokens_total", "Prompt tokens that the model has read."),
    ("generated_tokens", "generated_tokens_total", "Tokens that were generated."),
    ("steps", "steps", "Steps of all ranks."),
    ("prefill_steps", "prefill_steps", "Steps that appended a prompt chunk."),
    ("model_seconds", "model_seconds", "Seconds of rank 0 in model calls."),
    ("collective_seconds", "collective_seconds", "Seconds of rank 0 in collectives."),
    ("rows_asked_ahead", "rows_ahead_asked", "Row ids of rank 0 that were asked for a step early."),
    ("rows_used_ahead", "rows_ahead_used", "Of these, ids whose chunk came."),
    ("rows_dropped_ahead", "rows_ahead_dropped", "Of these, ids whose request was canceled."),
)
_GAUGES = (
    ("requests_running", "running", "Requests that hold a slot."),
    ("requests_queued", "queued", "Requests that wait for a slot."),
    ("slots", "slots", "Requests that can run at once."),
)
# dsv41_* name, key of RowStore.stats(), help
_ROW_COUNTERS = (
    ("rows_read", "device_reads", "Row reads from the disk."),
    ("row_read_bytes", "device_bytes", "Bytes read from the disk for rows."),
    ("row_short_reads", "short_reads", "Reads that ended early."),
    ("row_crc_failures", "crc_failures", "Rows whose checksum was wrong."),
    ("row_io_errors", "io_errors", "Reads that failed."),
)
_ROW_SUMMARIES = (
    ("row_read_seconds", "wall_seconds", "Seconds of one lookup of rows, from call to last row."),
    ("row_wait_seconds", "wait_seconds", "Seconds that a step waited for its rows."),
)


class Running(Protocol):
    """The parts of `dsv41.local.engine.loop.Engine` that are measured."""

    @property
    def alive(self) -> bool:
        """Whether all ranks are there."""

    def stats(self) -> dict[str, Any]:
        """Counters since the start and the present load."""


class Metrics:
    """One registry; `render` reads the engine at the time of the scrape."""

    def __init__(self, engine: Running, settings: Settings) -> None:
        # no second series for every counter
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(_FromEngine(engine, settings))
        self.loop_aborts = Counter(
            "dsv41_loop_aborts",
            "Answers stopped because they repeated themselves.",
            ["kind"],
            registry=self._registry,
        )
        for kind in ("identical", "ngram", "line"):
            self.loop_aborts.labels(kind=kind)
        self.caps = Counter(
            "dsv41_completion_cap",
            "Requests whose own output limit was lowered to the cap.",
            registry=self._registry,
        )
        self.requests = Counter(
            "dsv41_requests",
            "Chat requests by outcome: a finish reason, refused, failed or gone.",
            ["outcome"],
            registry=self._registry,
        )
        self.first_token = Histogram(
            "dsv41_time_to_first_token_seconds",
            "Seconds from the request to its first token.",
            registry=self._registry,
            buckets=[0.0625 * 2**step for step in range(13)],  # 62.5 ms to 256 s
        )

    def render(self) -> bytes:
        """Give the text format of Prometheus."""
        return generate_latest(self._registry)


class _FromEngine(Collector):
    def __init__(self, engine: Running, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    def describe(self) -> list[Metric]:
        """Nothing: the registry need not ask the engine before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the engine now."""
        stats = self._engine.stats()
        yield self._build_info()
        yield self._ranks()
        yield _gauge("memory_available_bytes", "MemAvailable of this host.", available_bytes())
        for name, key, says in _COUNTERS:
            yield CounterMetricFamily(f"dsv41_{name}", says, value=stats[key])
        for name, key, says in _GAUGES:
            yield _gauge(name, says, stats[key])
        yield from _row_metrics(stats["rows"])

    def _build_info(self) -> Metric:
        labels = {"version": __version__, "profile": "local", **self._settings.labels}
        info = GaugeMetricFamily(
            "dsv41_build_info", "What runs here; always 1.", labels=list(labels)
        )
        info.add_metric(list(labels.values()), 1)
        return info

    def _ranks(self) -> Metric:
        up = GaugeMetricFamily("dsv41_rank_up", "Whether a rank takes part.", labels=["rank"])
        for rank in range(self._settings.ranks):
            up.add_metric([str(rank)], int(self._engine.alive))
        return up


def _gauge(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(f"dsv41_{name}", says, value=value)


def _row_metrics(rows: Mapping[int, Mapping[str, Any]]) -> Iterator[Metric]:
    for name, key, says in _ROW_COUNTERS:
        counter = CounterMetricFamily(f"dsv41_{name}", says, labels=["layer"])
        for layer, stats in rows.items():
            counter.add_metric([str(layer)], stats[key])
        yield counter
    for name, key, says in _ROW_SUMMARIES:
        summary = SummaryMetricFamily(f"dsv41_{name}", says, labels=["layer"])
        for layer, stats in rows.items():
            summary.add_metric(
                [str(layer)], count_value=stats[key]["count"], sum_value=stats[key]["sum"]
            )
        yield summary
    depth = GaugeMetricFamily(
        "dsv41_rows_queue_depth", "Most rows in flight at once so far.", labels=["layer"]
    )
    for layer, stats in rows.items():
        depth.add_metric([str(layer)], stats["queue_depth_high"])
    yield depth


def available_bytes(meminfo: Path = MEMINFO) -> int:
    """Give MemAvailable in bytes; 0 where the kernel does not say."""
    for line in meminfo.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return 0
