"""One rank's process in the foreground, and the look into its image before it starts."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType

from dsv41.errors import Unsafe
from dsv41.plan import Rank

TERM_PATIENCE = 8.0  # seconds; a rank answers its running requests within 5 s of a TERM


@dataclass(kw_only=True, slots=True)
class Foreground:
    """Runs one program after another; signals go on to the one that runs.

    One that does not end within TERM_PATIENCE of the first signal is killed. After a signal
    `stopped` is set and no further program starts.
    """

    child: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    killer: threading.Timer = field(init=False)

    def __post_init__(self) -> None:
        self.killer = threading.Timer(TERM_PATIENCE, self._kill)
        self.killer.daemon = True
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._forward)

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        """The program's return code; that of a TERM when a signal came before it could start."""
        if self.stopped:
            return -signal.SIGTERM
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=dict(env), process_group=0)
        self.child = child
        self._pass_on_early_stop(child)
        return child.wait()

    def _pass_on_early_stop(self, child: subprocess.Popen[bytes]) -> None:
        if self.stopped:  # by a signal that came while the program was being started
            child.terminate()

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self.stopped = True
        if self.child is not None:
            self.child.send_signal(number)
        if not self.killer.is_alive():
            self.killer.start()

    def _kill(self) -> None:
        if self.child is not None:
            self.child.kill()


def preflight(rank: Rank, engine: str) -> Rank:
    """The rank with the preflight in place of the engine: same image, environment and mounts.

    It runs once, so it takes no restart policy along.
    """
    program = rank.argv[0]
    return replace(
        rank,
        argv=(program, "-m", "dsv41.adapters.preflight", "--engine", engine),
        options=tuple(word for word in rank.options if not word.startswith("--restart=")),
    )


def require_adapters(at: Foreground, rank: Rank, engine: str, environ: Mapping[str, str]) -> None:
    """Unsafe D144 unless the engine there can carry the adapters that the rank asks for.

    The preflight has said what is missing, on the same stderr.
    """
    look = preflight(rank, engine)
    status = at.run(look.argv, {**environ, **look.env})
    if status and not at.stopped:
        raise Unsafe(
            "D144",
            f"Rank {rank.rank} was not started: its preflight ended with {status}.",
            fix=f"see the lines above; run it again by hand: {' '.join(look.argv)}",
        )
