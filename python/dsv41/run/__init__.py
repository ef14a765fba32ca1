"""Carry out a Plan on this machine: start its ranks, watch them, stop them together.

A service is one supervisor process that holds the lock of its state folder, and one
`dsv41 rank exec` per rank below it. Tensor parallelism is synchronous: when one rank ends,
all end. Whoever dies takes its children along (PR_SET_PDEATHSIG), so `kill -9` leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv41 import host
from dsv41.errors import EngineFailed, Unsafe, UsageError
from dsv41.foreground import TERM_PATIENCE
from dsv41.plan import Plan, parse

STOP_PATIENCE = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDir:
    """The folder of the service that runs (or ran) from one state folder."""

    path: Path

    @classmethod
    def of(cls, state_dir: str | Path) -> RunDir:
        """The run folder below a state folder."""
        return cls(path=Path(state_dir) / "run")

    @property
    def plan_file(self) -> Path:
        """The Plan that the ranks carry out."""
        return self.path / "plan.json"

    @property
    def lock_file(self) -> Path:
        """Held by the supervisor for as long as the service lives."""
        return self.path / "lock"

    @property
    def ended_file(self) -> Path:
        """Why and with which exit status the last service ended."""
        return self.path / "ended.json"

    @property
    def pids_file(self) -> Path:
        """The pid of each rank's `rank exec`, written by the supervisor."""
        return self.path / "ranks.json"

    def log_file(self, rank: int | None = None) -> Path:
        """A rank's log, or the supervisor's own."""
        return self.path / ("serve.log" if rank is None else f"rank{rank}.log")

    def state_file(self, rank: int) -> Path:
        """What a rank last wrote about itself (`dsv41.rank/1`)."""
        return self.path / f"rank{rank}.json"

    def rank_lock(self, rank: int) -> Path:
        """Held by the `rank exec` that is this rank, unless a supervisor watches it."""
        return self.path / f"rank{rank}.lock"

    @property
    def control_key(self) -> Path:
        """Where the key of the control connection lies unless a flag says otherwise."""
        return self.path / "control.key"

    def supervisor(self) -> int | None:
        """The pid of the supervisor that lives now."""
        return host.owner(self.lock_file)

    def plan(self) -> Plan:
        """The Plan of the service; UsageError D062 when none was ever made here."""
        return read_plan(self.plan_file)

    def ended(self) -> dict[str, Any]:
        """What `ended_file` says; empty when there is none or it is not readable JSON."""
        try:
            data: dict[str, Any] = json.loads(self.ended_file.read_text())
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}


def read_plan(path: Path) -> Plan:
    """The Plan in a file; UsageError D062 when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "D062",
            f"There is no Plan at {path}: {getattr(error, 'strerror', None) or error}.",
            fix="dsv41 serve --profile local",
        ) from error
    return parse(text, where=str(path))


def service_name(plan: Plan) -> str:
    """What the ranks of a Plan call their service: its group, and the name in /ready."""
    return plan.digest[-16:]


@contextlib.contextmanager
def claim(plan: Plan) -> Iterator[host.Lock]:
    """Hold the lock of the state folder; Unsafe D063 when a service lives or starts there already.

    The supervisor inherits the lock, so the service keeps it when this ends.
    """
    run = RunDir.of(plan.state_dir)
    host.make_folder(run.path)
    lock = host.Lock.take(run.lock_file)
    if lock is None:
        raise _second(run, plan)
    lock.write_owner(os.getpid())
    try:
        yield lock
    finally:
        lock.close()


def start_service(plan: Plan, lock: host.Lock) -> subprocess.Popen[bytes]:
    """Start the supervisor of a Plan in its own session; it inherits the lock that `claim` took."""
    run = RunDir.of(plan.state_dir)
    try:
        run.ended_file.unlink(missing_ok=True)
        for log in (None, *range(len(plan.ranks))):
            run.log_file(log).write_bytes(b"")
        host.write_atomically(run.plan_file, plan.to_json())
        argv = [sys.executable, "-m", "dsv41", "rank", "supervise", "--plan", str(run.plan_file)]
        process = host.start(
            [*argv, "--lock-fd", str(lock.fd)],
            log=run.log_file(),
            pass_fds=[lock.fd],
            new_session=True,
        )
        lock.write_owner(process.pid)
    except OSError as error:
        raise UsageError(
            "D060",
            f"The folder {run.path} cannot be written: {error.strerror}.",
            fix="free space or give another folder with --state-dir",
        ) from error
    return process


def _second(run: RunDir, plan: Plan) -> Unsafe:
    at = f"--state-dir {shlex.quote(plan.state_dir)}"
    return Unsafe(
        "D063",
        f"A service already runs from {plan.state_dir} (pid {run.supervisor()}).",
        fix=f"dsv41 stop {at}, or follow it with dsv41 logs --follow {at}",
    )


def supervise(plan: Plan, *, lock_fd: int) -> int:
    """Run all ranks until a TERM or until one ends, then end all; the service's exit status.

    `lock_fd` is the inherited lock of the state folder; it is held until this process ends.
    """
    run = RunDir.of(plan.state_dir)
    host.Lock.inherited(run.lock_file, lock_fd).write_owner(os.getpid())
    asked = _note_signals()
    children = {rank.rank: _start_rank(run, rank.rank) for rank in reversed(plan.ranks)}
    pids = {str(rank): child.pid for rank, child in children.items()}
    host.write_atomically(run.pids_file, json.dumps(pids) + "\n")
    first: int | None = None
    while first is None and not asked.wait(0.1):
        first = next((r for r, child in children.items() if child.poll() is not None), None)
    status = 0 if first is None else as_status(children[first].returncode)
    _end_all(children)
    says = "stopped" if first is None else f"rank {first} ended with exit status {status}"
    ended = {"schema": "dsv41.ended/1", "exit": status, "says": says, "rank": first}
    with contextlib.suppress(OSError):  # a full disk must not hide how the service ended
        host.write_atomically(run.ended_file, json.dumps(ended) + "\n")
    return status


def stop_service(state_dir: str | Path) -> str:
    """End the service of a state folder and say what happened; nothing to do is no error."""
    run = RunDir.of(state_dir)
    pid = run.supervisor()
    if pid is None:
        return "nothing runs"

    _require_supervisor(run, pid)

    def gone() -> bool:
        return run.supervisor() is None

    polite = host.end(pid, gone=gone, patience=STOP_PATIENCE)
    if not gone():
        raise _foreign(run, pid)
    return "stopped" if polite else "killed"


def _require_supervisor(run: RunDir, pid: int) -> None:
    """Unsafe D069 unless the lock's owner is a supervisor or a starting `serve` of ours."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    ours = any(b"dsv41" in word for word in words[:3])
    if not (ours and {b"supervise", b"serve"} & set(words)):
        raise _foreign(run, pid)


def _foreign(run: RunDir, pid: int) -> Unsafe:
    return Unsafe(
        "D069",
        f"{run.lock_file} is held by a process that is no service of ours (it names pid {pid}).",
        fix=f"see who holds it: fuser -v {shlex.quote(str(run.lock_file))}",
    )


def require_alive(run: RunDir) -> None:
    """EngineFailed D065 with the reason when the service has ended."""
    if run.supervisor() is None:
        ended = run.ended()
        raise EngineFailed(
            "D065",
            f"The service has ended: {ended.get('says', 'its supervisor was killed')}.",
            fix=f"read the logs: dsv41 logs --state-dir {run.path.parent}",
        )


def _start_rank(run: RunDir, rank: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "dsv41", "rank", "exec"]
    return host.start(
        [*argv, "--plan", str(run.plan_file), "--rank", str(rank), "--parent", str(os.getpid())],
        log=run.log_file(rank),
    )


def _note_signals() -> threading.Event:
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    return asked


def as_status(code: int) -> int:
    """A rank that a signal ended, here or inside its container (128 and more), has failed."""
    return EngineFailed.exit_status if code < 0 or code > 128 else code


def _end_all(children: Mapping[int, subprocess.Popen[bytes]]) -> None:
    """TERM to all, the head first so that it answers its clients; KILL whoever stays."""
    for rank in sorted(children):
        if children[rank].poll() is None:
            children[rank].terminate()
    deadline = time.monotonic() + TERM_PATIENCE + 1  # one for all: `rank exec` kills after less
    for child in children.values():
        try:
            child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
