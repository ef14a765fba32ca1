"""How far each rank of a start has come, from its log: one line a rank."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field

from dsv41.diagnose.stages import STAGES, Stage
from dsv41.host.reach import Host

SHOWN = 100  # characters of a log's last line


@dataclass(kw_only=True)
class Track:
    """One rank: the stage that its log last showed, and since when."""

    name: str
    rank: int
    engine: str
    stage: Stage | None = None
    since: float = field(default_factory=time.monotonic)
    last_line: str = ""
    state: str = ""

    def hear(self, line: str) -> None:
        """Take a line of the log; a start over shows earlier stages again."""
        if not line.strip():
            return
        self.last_line = line.strip()[:SHOWN]
        reached = [stage for stage in STAGES[self.engine] if stage.line.search(line)]
        if reached and reached[-1] is not self.stage:
            self.stage, self.since = reached[-1], time.monotonic()

    @property
    def says(self) -> str:
        """The rank in a few words, without the time: two that are equal need one line."""
        stage = f"{self.stage.name}: {self.stage.waits}" if self.stage else "no stage yet"
        return f"rank {self.rank}  {self.name:12}  {self.state or 'starting':9} {stage}"

    def line(self) -> str:
        """The same with the seconds that it has been there."""
        return f"{self.says}  {time.monotonic() - self.since:.0f} s"


def watch(host: Host, log: str, track: Track, *, over: threading.Event) -> threading.Thread:
    """Feed a track with a node's log from a thread, from its beginning until `over`."""

    def read() -> None:
        lines = host.follow(["tail", "--lines=+1", "-F", log], sudo=True)
        with contextlib.closing(lines):  # type: ignore[type-var]
            for line in lines:
                if over.is_set():
                    return
                track.hear(line)

    thread = threading.Thread(target=read, name=f"log of {track.name}", daemon=True)
    thread.start()
    return thread
