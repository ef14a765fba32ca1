"""Effects on a machine: locks, ports, processes. Knows nothing of ranks or plans."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import platform
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dsv41 import __version__
from dsv41.errors import Unsafe, UsageError

_PR_SET_PDEATHSIG = 1  # prctl(2), linux/prctl.h
KILLED = 5.0  # seconds for the kernel to end what got a KILL


class Lock:
    """An exclusive flock on a file that holds its owner's pid; freed by the kernel with the owner.

    The open file can be inherited by a child (`pass_fds`), which then owns the lock as well.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def take(cls, path: Path) -> Lock | None:
        """The lock, or None when somebody holds it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # a look by `owner` holds the lock for microseconds: ask again before giving up
        for pause in (0.02, 0.05, 0.0):
            if _flock(fd, fcntl.LOCK_EX):
                os.ftruncate(fd, 0)  # the pid of an earlier owner may be somebody else's by now
                return cls(path, fd)
            time.sleep(pause)
        os.close(fd)
        return None

    @classmethod
    def inherited(cls, path: Path, fd: int) -> Lock:
        """The lock that a parent took and passed on; its own children do not get it."""
        os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library's signature
        return cls(path, fd)

    def write_owner(self, pid: int) -> None:
        """Record who holds the lock; read by `owner`.

        In one write over the pid before, as wide as any: a reader never finds the file empty.
        """
        os.pwrite(self.fd, f"{pid:<10}\n".encode(), 0)

    def close(self) -> None:
        """Let go of this descriptor; a child that inherited it keeps the lock."""
        os.close(self.fd)


def owner(path: Path) -> int | None:
    """The pid in a lock file that is held now; None when nobody holds it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # who has just taken the lock is about to write its pid
        for pause in (0.02, 0.1, 0.0):
            if _flock(fd, fcntl.LOCK_SH):
                return None
            text = os.pread(fd, 32, 0).strip()
            if text.isdigit():
                return int(text)
            time.sleep(pause)
        return None
    finally:
        os.close(fd)


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def size_of(path: Path) -> int:
    """A file's bytes; 0 when there is none."""
    return path.stat().st_size if path.is_file() else 0


def make_folder(path: Path) -> Path:
    """The folder, made when absent; UsageError D060 when it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            "D060",
            f"The folder {path} cannot be written: {error.strerror}.",
            fix="give another one with --state-dir",
        ) from error
    return path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader sees the old or the new text, never half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def refuse_taken_port(address: str, port: int) -> None:
    """Unsafe D061 when somebody listens on the port."""
    if not port_is_free(address, port):
        raise Unsafe(
            "D061",
            f"Port {port} on {address} is in use by another program.",
            fix=f"serve with --port {free_port(address, port + 1)}, or end the program that has it",
        )


def port_is_free(address: str, port: int) -> bool:
    """Whether a listener could bind the port now (as it will, with SO_REUSEADDR)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(address: str, first: int) -> int:
    """The first free port from `first` up."""
    return next(p for p in range(first, 65536) if port_is_free(address, p))


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel for a TERM when the parent ends (prctl PR_SET_PDEATHSIG; Linux only).

    `parent` is the pid of the process that started this one: when it has ended already, before the
    kernel was asked, this process gets its TERM now.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def start(
    argv: Sequence[str],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program; its output goes to the end of `log` (or where ours goes), input is empty.

    No descriptor but those in `pass_fds` is inherited.
    """
    with contextlib.ExitStack() as stack:
        out: Any = stack.enter_context(log.open("ab")) if log else None
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT if out else None,
            env=None if env is None else {**os.environ, **env},
            pass_fds=pass_fds,
            start_new_session=new_session,
        )


def end(pid: int, *, gone: Callable[[], bool], patience: float) -> bool:
    """TERM, wait up to `patience` seconds until `gone()`, then KILL; True when TERM was enough."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if wait_until(gone, seconds=patience):
        return True
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(gone, seconds=KILLED)
    return False


def wait_until(true: Callable[[], bool], *, seconds: float, every: float = 0.05) -> bool:
    """Whether `true()` became true within the time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


class Terminated(BaseException):
    """Raised by a TERM inside `term_raises`."""


@contextlib.contextmanager
def term_raises() -> Iterator[None]:
    """Turn a TERM into `Terminated`, as Python turns an INT into KeyboardInterrupt."""

    def interrupt(*_: object) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def unused(path: Path) -> Path:
    """The path, or the first of `name-2`, `name-3`, ... that does not exist."""
    names = (path.with_stem(f"{path.stem}-{n}") for n in itertools.count(2))
    return path if not path.exists() else next(p for p in names if not p.exists())


def write_receipt(path: Path, *, command: str, started: str, result: Mapping[str, Any]) -> Path:
    """Record a measurement: what was run, where, when, and what came out."""
    receipt = {
        "schema": "dsv41.receipt/1",
        "command": command,
        "started": started,
        "version": __version__,
        "machine": machine(),
        "result": result,
    }
    write_atomically(path, json.dumps(receipt, indent=1, ensure_ascii=False) + "\n")
    return path


def machine() -> dict[str, str | int]:
    """What a receipt says of this machine: system, architecture, cores, memory in bytes."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": pages,
        "python": platform.python_version(),
    }


def utc_now() -> str:
    """The time of day in UTC, ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
