"""One rank on this machine, from outside of it: start it, stop it, look at it.

Who holds `run/rankN.lock` is rank N: the kernel frees the lock with its owner, so a pid that
somebody else has by now is never taken for a rank.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dsv41
from dsv41 import containers, host
from dsv41.errors import EngineFailed, Unsafe, UsageError
from dsv41.foreground import CLEARED, CONTAINER_PATIENCE, clear
from dsv41.plan import Plan, Rank
from dsv41.run import RunDir

SCHEMA = "dsv41.rank/1"
# a rank ends its container, removes it, then ends itself: its last looks take 5 s
STOP_PATIENCE = CONTAINER_PATIENCE + CLEARED + 8.0
# the longest `stop` of a rank: a KILL, and the removal here of what that left behind
STOP_LONGEST = STOP_PATIENCE + host.KILLED + CLEARED
TAIL_BYTES = 64 * 1024
ASKED = 10.0  # seconds for docker or podman to say how a container is
STARTED = 10.0  # seconds for a new rank to write down that it lives
_STATE_FILE = re.compile(r"rank(\d{1,3})\.json")


def start(plan: Plan, rank: int, *, plan_file: Path, control_key: Path | None) -> int:
    """Start `rank exec` in a session of its own; its pid.

    Raises:
        UsageError: D064, when the Plan has no such rank; D060, when the folder cannot be written.
        Unsafe: D063, when a rank runs from this state folder already.
    """
    one_of(plan, rank)
    run = RunDir.of(plan.state_dir)
    argv = [*_this_command(), "rank", "exec", "--plan", str(plan_file.absolute())]
    argv += ["--rank", str(rank)]
    argv += ["--control-key", str(control_key.absolute())] if control_key else []
    with claim(plan, rank) as lock:
        run.log_file(rank).write_bytes(b"")
        run.state_file(rank).unlink(missing_ok=True)
        child = host.start(
            [*argv, "--lock-fd", str(lock.fd)],
            log=run.log_file(rank),
            pass_fds=[lock.fd],
            new_session=True,
        )
        lock.write_owner(child.pid)
    host.wait_until(
        lambda: run.state_file(rank).exists() or child.poll() is not None, seconds=STARTED
    )
    return child.pid


def one_of(plan: Plan, rank: int) -> Rank:
    """A rank of the Plan; UsageError D064 when it has no such one."""
    if not 0 <= rank < len(plan.ranks):
        raise UsageError(
            "D064",
            f"The Plan has ranks 0 to {len(plan.ranks) - 1}, not {rank}.",
            fix=f"give --rank a number from 0 to {len(plan.ranks) - 1}",
        )
    return plan.ranks[rank]


@contextlib.contextmanager
def claim(plan: Plan, rank: int) -> Iterator[host.Lock]:
    """Hold the lock of a rank; Unsafe D063 when one runs from the state folder.

    Several ranks of one Plan may share a machine, ranks of two Plans may not.
    """
    run = RunDir.of(plan.state_dir)
    host.make_folder(run.path)
    lock = host.Lock.take(run.rank_lock(rank))
    if lock is None:
        raise _second(plan, f"rank {rank}", host.owner(run.rank_lock(rank)))
    try:
        if run.supervisor() is not None:
            raise _second(plan, "a service", run.supervisor())
        for other in _alive(run, but=rank):
            if read_state(run, other).get("plan") not in (None, plan.digest):
                raise _second(
                    plan, f"rank {other} of another Plan", host.owner(run.rank_lock(other))
                )
        yield lock
    finally:
        lock.close()


def stop(state_dir: str | Path) -> dict[str, Any]:
    """End every rank of a state folder, bounded; {"status": stopped | killed | nothing runs}.

    What a killed rank left behind, its container, is removed here, also when nothing runs.
    """
    run = RunDir.of(state_dir)
    ranks = _alive(run)
    pids = {rank: pid for rank in ranks if (pid := host.owner(run.rank_lock(rank)))}
    killed = [rank for rank, pid in pids.items() if not _end(run, rank, pid)]
    for rank in _known(run):
        words = _container_of(read_state(run, rank))
        if words and host.owner(run.rank_lock(rank)) is None:
            clear(*words)
    status = "killed" if killed else "stopped" if pids else "nothing runs"
    return {"status": status, "ranks": sorted(pids)}


def look(plan: Plan, rank: int) -> dict[str, Any]:
    """The fields of `dsv41.rank/1`, without the schema.

    `state` is waiting, starting, running, stopped or ended; `since` the time in UTC since which.
    `container` is what docker or podman itself says of the rank's container while the rank lives:
    running, ended, none or unknown; None when it has none or does not live.
    """
    one_of(plan, rank)
    run = RunDir.of(plan.state_dir)
    pid = host.owner(run.rank_lock(rank))
    found = read_state(run, rank)
    state = found.get("state")
    says, code = str(found.get("says") or ""), found.get("code")
    if pid is None and state not in ("stopped", "ended"):
        says = "It was killed." if state else "It was never started here."
        state = "ended" if state else "stopped"
    return {
        "alive": pid is not None,
        "pid": pid,
        "state": state or "waiting",
        "round": found.get("round", 0),
        "plan": found.get("plan"),
        "fingerprint": found.get("fingerprint"),
        "exit": found.get("exit"),
        "says": says,
        "code": code,
        "last_line": _last_line(run.log_file(rank)),
        "since": found.get("since"),
        "container": _container(found) if pid is not None and state == "running" else None,
    }


def read_state(run: RunDir, rank: int) -> dict[str, Any]:
    """What a rank wrote about itself last; empty when it wrote nothing that can be read."""
    try:
        data = json.loads(run.state_file(rank).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else {}


class State:
    """The state file of the rank that this process is, written whole at each change."""

    def __init__(self, plan: Plan, rank: int, *, pid: int) -> None:
        here = plan.ranks[rank]
        self._path = RunDir.of(plan.state_dir).state_file(rank)
        container = here.container and [here.container, containers.name_of(here)]
        self._fields: dict[str, Any] = {
            "schema": SCHEMA,
            "pid": pid,
            "state": "waiting",
            "round": 0,
            "plan": plan.digest,
            "fingerprint": here.fingerprint,
            "container": container if here.container else None,
            "exit": None,
            "says": "",
            "code": None,
            "since": None,
        }

    def now(self, state: str, **fields: Any) -> None:
        """Change the state; `says` and `code` are empty where they are not given."""
        same = self._fields["state"] == state and self._fields["since"] is not None
        since = self._fields["since"] if same else host.utc_now()
        self._fields |= {"says": "", "code": None, **fields, "state": state, "since": since}
        with contextlib.suppress(OSError):  # a full disk must not end a rank that serves
            host.write_atomically(self._path, json.dumps(self._fields, ensure_ascii=False) + "\n")

    @property
    def round(self) -> int:
        """The round that was entered last."""
        number: int = self._fields["round"]
        return number


def _this_command() -> list[str]:
    """How this very command is started again: from its archive, or from the package."""
    archive = getattr(getattr(dsv41, "__loader__", None), "archive", None)
    return [sys.executable, str(archive)] if archive else [sys.executable, "-m", "dsv41"]


def _known(run: RunDir) -> list[int]:
    names = run.path.glob("rank*.json") if run.path.is_dir() else ()
    found = (_STATE_FILE.fullmatch(path.name) for path in names)
    return sorted(int(match[1]) for match in found if match)


def _alive(run: RunDir, *, but: int | None = None) -> list[int]:
    locks = run.path.glob("rank*.lock") if run.path.is_dir() else ()
    ranks = (path.stem.removeprefix("rank") for path in locks)
    numbers = sorted(int(rank) for rank in ranks if rank.isdecimal())
    return [r for r in numbers if r != but and host.owner(run.rank_lock(r)) is not None]


def _end(run: RunDir, rank: int, pid: int) -> bool:
    """TERM, wait, KILL; whether the TERM was enough. EngineFailed D429 when nothing ends it."""

    def gone() -> bool:
        return host.owner(run.rank_lock(rank)) != pid

    polite = host.end(pid, gone=gone, patience=STOP_PATIENCE)
    if not gone():
        raise EngineFailed(
            "D429",
            f"Rank {rank} (pid {pid}) lives after a KILL.",
            fix=f"see what it waits for: cat /proc/{pid}/stack; a disk or mount may hang",
        )
    return polite


def _container(found: Mapping[str, Any]) -> str | None:
    words = _container_of(found)
    if words is None:
        return None
    program, name = words
    try:
        done = subprocess.run(
            containers.state(program, name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASKED,
            check=False,
        )
        if done.returncode:
            return "none"
        return "running" if containers.read_state(done.stdout).running else "ended"
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return "unknown"


def _container_of(found: Mapping[str, Any]) -> tuple[str, str] | None:
    """Program and name of the container that a state file tells of."""
    container = found.get("container")
    if not (isinstance(container, list) and len(container) == 2):
        return None
    program, name = map(str, container)
    return program, name


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip("\r")[-500:] for line in reversed(lines) if line.strip()), "")


def _second(plan: Plan, what: str, pid: int | None) -> Unsafe:
    return Unsafe(
        "D063",
        f"From {plan.state_dir} already runs {what} (pid {pid}).",
        fix=f"dsv41 rank stop --state-dir {plan.state_dir}, or dsv41 stop",
    )
