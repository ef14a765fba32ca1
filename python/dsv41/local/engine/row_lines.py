"""A line of row statistics into the rank's log, every so many seconds."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self

from dsv41.rows.statistics import line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsv41.geometry import Shard


class RowLines:
    """Says a line a layer after every `seconds` in which rows were looked up; 0 says none.

    `stats` gives the counters of every layer's store; it is called by a thread of its own.
    """

    def __init__(
        self,
        stats: Callable[[], Mapping[int, Mapping[str, Any]]],
        *,
        shard: Shard,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._stats, self._shard, self._seconds, self._say = stats, shard, seconds, say
        self._before: Mapping[int, Mapping[str, Any]] = {}
        self._told = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="row-lines", daemon=True)

    def __enter__(self) -> Self:
        if self._seconds > 0:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Say what the last part of an interval gave, and end."""
        if self._seconds > 0:
            self._over.set()
            self._thread.join()
            self.tell()

    def tell(self) -> None:
        """Say what was done since the last time."""
        now, stats = time.monotonic(), self._stats()
        for layer, counters in stats.items():
            said = line(
                counters,
                self._before.get(layer, {}),
                layer=layer,
                rank=self._shard.rank,
                tp=self._shard.tp,
                seconds=now - self._told,
            )
            if said:
                self._say(said)
        self._before, self._told = stats, now

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self.tell()
