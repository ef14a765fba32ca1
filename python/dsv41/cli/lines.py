"""The logs of a fleet's ranks: their ends, and new lines as they come."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from dsv41.errors import Error
from dsv41.host.reach import clean

if TYPE_CHECKING:
    from dsv41.cli.talk import Talk
    from dsv41.host.reach import Host
    from dsv41.run.fleet import Crew


def ends(crew: Crew, ranks: list[int], *, lines: int) -> dict[int, list[str] | Error]:
    """The last lines of each rank's log, without control codes."""

    def one(rank: int, host: Host) -> list[str]:
        asked = ["tail", f"--lines={lines}", "--", str(crew.run.log_file(rank))]
        done = host.run(asked, sudo=True)  # a host that cannot be reached is no line of a log
        said = done.stderr if done.status else done.stdout
        return [clean(line) for line in said.splitlines()]

    return crew.tried(one, ranks=ranks)


def follow(crew: Crew, talk: Talk, *, ranks: list[int] | None = None, quiet: bool = False) -> int:
    """Print new lines of all logs, each with its rank's name, until every connection has ended."""
    chosen = list(range(len(crew.hosts))) if ranks is None else ranks
    heard: queue.Queue[tuple[int, str | None]] = queue.Queue()

    def read(rank: int) -> None:
        log = str(crew.run.log_file(rank))
        for line in crew.hosts[rank].follow(["tail", "--lines=0", "-F", "--", log], sudo=True):
            heard.put((rank, line))
        heard.put((rank, None))

    for rank in chosen:
        threading.Thread(target=read, args=(rank,), daemon=True).start()
    if not quiet:
        talk.say("Ctrl-C ends this and leaves the service running")
    left = set(chosen)
    while left:
        rank, line = heard.get()
        if line is None:
            left.discard(rank)
            talk.say(f"{crew.hosts[rank].name}: its log cannot be followed any more")
        else:
            talk.log(f"{crew.hosts[rank].name} | {line}")
    return 3
