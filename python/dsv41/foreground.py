"""One rank in the foreground: a process of this machine, or a container of the pinned image.

A container gets a preflight first: the same image, environment and mounts, with a look at the
engine in place of the engine. What a program writes goes to our stderr; its end is kept, since a
cause is told from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dsv41 import containers
from dsv41.errors import EngineFailed, Unsafe
from dsv41.plan import LOCAL, Rank

TERM_PATIENCE = 8.0  # seconds; a rank answers its running requests within 5 s of a TERM
# an engine of real weights frees them and leaves its ranks; below TimeoutStopSec=60 of the unit
CONTAINER_PATIENCE = 45.0
CLEARED = 30.0  # seconds for the removal of a container
# of `podman run` and `docker run`: 125 their own error, 126 and 127 a program that cannot start
NOT_STARTED = (125, 126, 127)
KEPT_BYTES = 256 * 1024  # of what a program wrote last; SGLang echoes 16 KiB of arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """How a program ended: its return code (below 0: a signal), its last output, who killed it."""

    status: int
    text: str = ""
    out_of_memory: bool = False


class _Tail:
    """The last bytes that went through."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._bytes = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        while self._bytes - len(self._chunks[0]) >= KEPT_BYTES:
            self._bytes -= len(self._chunks.popleft())

    def text(self) -> str:
        return b"".join(self._chunks).decode(errors="replace")


@dataclass(kw_only=True, slots=True)
class Foreground:
    """Runs one program after another; signals go on to the one that runs.

    One that does not end within `patience` seconds of a signal or of `halt` is killed. `halt` ends
    the program that runs and lets no further one start until `again`; after a signal `stopped` is
    set, `told` is called, and nothing starts any more.
    """

    patience: float = TERM_PATIENCE
    told: Callable[[], None] | None = None
    stopped: bool = False
    halted: bool = False
    child: asyncio.subprocess.Process | None = None
    killer: asyncio.TimerHandle | None = field(default=None)

    def listen(self) -> None:
        """Take the signals that end a program from now on; inside a running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._signaled, number)

    def halt(self, number: int = signal.SIGTERM) -> None:
        """End what runs."""
        self.halted = True
        if self.child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(number)
        if self.killer is None:
            loop = asyncio.get_running_loop()
            self.killer = loop.call_later(self.patience, self._kill, self.child)

    def again(self) -> None:
        """Programs may start again, unless a signal came."""
        self.halted = self.stopped

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> Ran:
        """Run a program to its end; that of a TERM when it may not start.

        EngineFailed D133 when the system cannot start it.
        """
        if self.halted:
            return Ran(status=-signal.SIGTERM)
        read, write = os.pipe()
        tail = _Tail()
        copier = threading.Thread(target=_copy, args=(read, tail), daemon=True)
        copier.start()
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                env=dict(env),
                process_group=0,
            )
        except OSError as error:
            raise cannot_start(argv[0], error) from error
        finally:
            os.close(write)
        self.child = child
        self._pass_on_early_halt()
        status = await child.wait()
        self.child = None
        if self.killer:
            self.killer.cancel()
            self.killer = None
        # a grandchild may hold the pipe open for longer than the program lives
        await asyncio.to_thread(copier.join, 1.0)
        return Ran(status=status, text=tail.text())

    def _pass_on_early_halt(self) -> None:
        if self.halted:  # while the program was being started
            self.halt()

    def _signaled(self, number: int) -> None:
        self.stopped = True
        self.halt(number)
        if self.told:
            self.told()

    def _kill(self, child: asyncio.subprocess.Process) -> None:
        """The whole group: what a program started goes with it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _copy(read: int, tail: _Tail) -> None:
    """Pass on what a program writes; in a thread, so that a slow journal holds up no beat."""
    with open(read, "rb", buffering=0) as pipe:
        while chunk := pipe.read(65536):
            tail.add(chunk)
            with contextlib.suppress(OSError):  # without a reader it is still kept
                os.write(2, chunk)


def cannot_start(program: str, error: OSError) -> EngineFailed:
    """The system has no such program, or no room for one more process."""
    return EngineFailed(
        "D133",
        f"{program} cannot be started: {error.strerror or error}.",
        fix=f"see whether it is there, and what is free: command -v {program}; free -m; ulimit -u",
    )


def clear(program: str, name: str, environ: Mapping[str, str] | None = None) -> None:
    """End and remove a container that may be there, as far as its program does it in time."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            containers.removed(program, name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=None if environ is None else dict(environ),
            timeout=CLEARED,
            check=False,
        )


async def in_container(at: Foreground, rank: Rank, environ: Mapping[str, str]) -> Ran:
    """How a rank ended that ran in its image; EngineFailed D133 when it could not be started."""
    return await _run(at, rank, name=containers.name_of(rank), environ=environ)


async def checked(at: Foreground, rank: Rank, engine: str, environ: Mapping[str, str]) -> None:
    """Run the preflight of a rank in its image; the local engine needs none.

    Raises:
        Unsafe: D144, when the engine there cannot carry the adapters that the rank asks for; the
            preflight has said what is missing, on the same stderr.
        EngineFailed: D133, when no container could be started; the next try may find it mended.
    """
    if engine == LOCAL:
        return
    name = f"{containers.name_of(rank)}-preflight"
    ran = await _run(at, preflight(rank, engine), name=name, environ=environ)
    if ran.status and not at.halted:
        raise Unsafe(
            "D144",
            f"Rank {rank.rank} was not started: its preflight ended with {ran.status}.",
            fix="see the lines above; take the image of the profile, or turn the adapter off",
        )


def preflight(rank: Rank, engine: str) -> Rank:
    """The rank with the preflight in place of the engine: same image, environment and mounts."""
    program = rank.argv[0]
    return replace(rank, argv=(program, "-m", "dsv41.adapters.preflight", "--engine", engine))


async def _run(at: Foreground, rank: Rank, *, name: str, environ: Mapping[str, str]) -> Ran:
    """Run one container to its end; whatever was left under its name, before or after, is gone.

    A killed client leaves its container running, so the removal is what ends that.
    """
    program = rank.container or "podman"
    remove = containers.removed(program, name)
    await _quietly(remove, environ)
    try:
        ran = await at.run(containers.attached(program, rank, name=name), environ)
        # who was told to end needs no cause, and has no time for a question
        asked = ran.status != 0 and not at.halted
        killed = asked and await _out_of_memory(program, name, environ)
    finally:
        await _quietly(remove, environ)
    if ran.status in NOT_STARTED and not at.halted:
        raise EngineFailed(
            "D133",
            f"{program} could not start rank {rank.rank} of image {rank.image}: status "
            f"{ran.status}.",
            fix="see the lines above: the image, the GPU's CDI specification or a folder is absent",
        )
    return replace(ran, out_of_memory=killed)


async def _out_of_memory(program: str, name: str, environ: Mapping[str, str]) -> bool:
    """Whether the kernel ended something in a container, which has not been removed yet."""
    try:
        said = await _quietly(containers.state(program, name), environ)
        return containers.read_state(said).killed_for_memory
    except ValueError:
        return False


async def _quietly(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """What a short command prints; nothing when it fails or hangs."""
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environ),
            process_group=0,
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(CLEARED):
            out, _ = await child.communicate()
    except TimeoutError:
        child.kill()
        await child.wait()
        return ""
    return out.decode(errors="replace").strip()
