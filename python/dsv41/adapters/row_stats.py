"""Statistics of an engine's row stores: a line a minute, and counters where the engine shows them.

A process opens one store per Engram layer. `watch` starts one thread for all of them. Counters go
to the default registry of prometheus_client when PROMETHEUS_MULTIPROC_DIR is set: with
--enable-metrics SGLang sets it before it starts its schedulers, and the node's own /metrics adds up
what all processes of the node wrote there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsv41.rows.statistics import COUNTS, QUANTILES, increments, line

if TYPE_CHECKING:
    from dsv41.rows.abi import RowStore

log = logging.getLogger(__name__)
TICK = 5.0  # seconds between two updates of the counters


class Reporter:
    """Tells of the stores it was given; a store that was closed is left out."""

    def __init__(self, *, seconds: float, metrics: Metrics | None) -> None:
        self.seconds, self.metrics = seconds, metrics
        self.stores: list[RowStore] = []
        self.before: dict[RowStore, dict[str, Any]] = {}
        self.told = time.monotonic()

    def tell(self, now: float) -> list[str]:
        """Update the counters; the lines of all stores when `seconds` have passed since the last.

        Args:
            now: time.monotonic().
        """
        passed = now - self.told
        due = 0 < self.seconds <= passed
        lines = []
        for store in [store for store in self.stores if store.handle]:
            stats = store.stats()
            if self.metrics is not None:
                self.metrics.update(store, stats)
            if due:
                lines.append(self._line(store, stats, passed))
                self.before[store] = stats
        if due:
            self.told = now
        return [said for said in lines if said]

    def _line(self, store: RowStore, stats: Mapping[str, Any], seconds: float) -> str:
        before = self.before.get(store, {})
        where = {"layer": store.layer, "rank": store.rank, "tp": store.tp}
        return line(stats, before, **where, seconds=seconds)

    def run(self) -> None:
        """Tell for ever; a failure is logged once and ends the telling, not the engine."""
        try:
            while True:
                time.sleep(min(TICK, self.seconds or TICK))
                for said in self.tell(time.monotonic()):
                    log.info("%s", said)
        except Exception:
            log.exception("dsv41: statistics of the row store ended")


class Metrics:
    """The counters of all stores in prometheus_client's default registry."""

    def __init__(self) -> None:
        import prometheus_client as prometheus  # noqa: PLC0415 - it reads its variable at import

        labels = ("layer", "rank")
        self.counters = {
            name: prometheus.Counter(f"dsv41_engram_{name}", says, labels)
            for name, says in COUNTS.items()
        }
        self.latency = prometheus.Gauge(
            "dsv41_engram_lookup_seconds",
            "wall time of a lookup since start, by quantile",
            (*labels, "quantile"),
            multiprocess_mode="mostrecent",
        )
        self.before: dict[RowStore, Mapping[str, Any]] = {}

    def update(self, store: RowStore, stats: Mapping[str, Any]) -> None:
        """Add what a store counted since the last call."""
        labels = {"layer": str(store.layer), "rank": str(store.rank)}
        for name, gained in increments(stats, self.before.get(store, {})).items():
            self.counters[name].labels(**labels).inc(gained)
        self.before[store] = stats
        for quantile, key in QUANTILES.items():
            self.latency.labels(**labels, quantile=quantile).set(stats["wall_seconds"][key])


_reporters: list[Reporter] = []


def watch(store: RowStore, *, seconds: float) -> Reporter:
    """Tell of a store from now on: a line every so many seconds (0 or less for none), and counters.

    The first call of a process decides about the seconds and starts the thread.
    """
    if not _reporters:
        shown = bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
        seconds = max(seconds, 0.0)  # an operator's -1 means none as well
        reporter = Reporter(seconds=seconds, metrics=Metrics() if shown else None)
        _reporters.append(reporter)
        if seconds or shown:
            threading.Thread(target=reporter.run, name="dsv41-row-stats", daemon=True).start()
    _reporters[0].stores.append(store)
    return _reporters[0]
