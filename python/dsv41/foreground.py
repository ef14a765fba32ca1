"""One rank in the foreground: a process of this machine, or a container of the pinned image.

A container gets a preflight first: the same image, environment and mounts, with a look at the
engine in place of the engine.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType

from dsv41 import containers
from dsv41.errors import EngineFailed, Unsafe
from dsv41.plan import Rank

TERM_PATIENCE = 8.0  # seconds; a rank answers its running requests within 5 s of a TERM
# an engine of real weights frees them and leaves its ranks; below TimeoutStopSec=60 of the unit
CONTAINER_PATIENCE = 45.0
CLEARED = 30.0  # seconds for the removal of a container
# of `podman run` and `docker run`: 125 their own error, 126 and 127 a program that cannot start
NOT_STARTED = (125, 126, 127)


@dataclass(kw_only=True, slots=True)
class Foreground:
    """Runs one program after another; signals go on to the one that runs.

    One that does not end within `patience` seconds of the first signal is killed. After a signal
    `stopped` is set and no further program starts.
    """

    patience: float = TERM_PATIENCE
    child: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    killer: threading.Timer = field(init=False)

    def __post_init__(self) -> None:
        self.killer = threading.Timer(self.patience, self._kill)
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


def in_container(at: Foreground, rank: Rank, engine: str, environ: Mapping[str, str]) -> int:
    """The exit status of a rank that runs in its image, after its preflight.

    Raises:
        Unsafe: D144, when the engine there cannot carry the adapters that the rank asks for; the
            preflight has said what is missing, on the same stderr.
        EngineFailed: D133, when no container could be started; the next try may find it mended.
    """
    program = rank.container or "podman"
    look = preflight(rank, engine)
    status = _run(at, program, look, name=f"{containers.name_of(rank)}-preflight", environ=environ)
    if status and not at.stopped:
        raise Unsafe(
            "D144",
            f"Rank {rank.rank} was not started: its preflight ended with {status}.",
            fix="see the lines above; take the image of the profile, or turn the adapter off",
        )
    if at.stopped:
        return status
    return _run(at, program, rank, name=containers.name_of(rank), environ=environ)


def preflight(rank: Rank, engine: str) -> Rank:
    """The rank with the preflight in place of the engine: same image, environment and mounts."""
    program = rank.argv[0]
    return replace(rank, argv=(program, "-m", "dsv41.adapters.preflight", "--engine", engine))


def _run(at: Foreground, program: str, rank: Rank, *, name: str, environ: Mapping[str, str]) -> int:
    """Run one container to its end; whatever was left under its name, before or after, is gone.

    A killed client leaves its container running, so the removal is what ends that.
    """
    _remove(program, name, environ)
    try:
        status = at.run(containers.attached(program, rank, name=name), environ)
    finally:
        _remove(program, name, environ)
    if status in NOT_STARTED and not at.stopped:
        raise EngineFailed(
            "D133",
            f"{program} could not start rank {rank.rank} of image {rank.image}: status {status}.",
            fix="see the lines above: the image, the GPU's CDI specification or a folder is absent",
        )
    return status


def _remove(program: str, name: str, environ: Mapping[str, str]) -> None:
    subprocess.run(
        containers.removed(program, name),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environ),
        timeout=CLEARED,
        check=False,
    )
