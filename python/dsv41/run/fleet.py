"""The ranks of a Plan on their nodes: push what they need, start, look, stop. By `Host` alone.

A node runs our own command as one file, sent beside the Plan; its verbs `rank start`, `rank look`
and `rank stop` do what touches the rank.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dsv41 import zipped
from dsv41.errors import CheckFailed, EngineFailed, Error, Unreachable, Unsafe, UsageError
from dsv41.fleet import Fleet
from dsv41.host.reach import Host, each
from dsv41.plan import Plan, parse
from dsv41.run import RunDir
from dsv41.run.node import STOP_LONGEST
from dsv41.run.wire import new_key

T = TypeVar("T")
LOOKED = 30.0  # seconds for a look at a node
STOPPED = STOP_LONGEST + 20.0  # and for the end of its rank, with the start of our command there
HELD = "held"
_OLD = "import sys; sys.exit(sys.version_info < (3, 11))"
_LOCK = 'printf "%s\\n" "$1" >"$2"; echo held; while echo; do sleep 1; done'
_KINDS: Mapping[int, type[Error]] = {
    kind.exit_status: kind for kind in (UsageError, Unreachable, EngineFailed, Unsafe, CheckFailed)
}


@dataclass(kw_only=True)
class Crew:
    """The nodes of a fleet, by rank. `program` is what they run; made once."""

    fleet: Fleet
    hosts: tuple[Host, ...]
    program: bytes = field(default_factory=zipped.program, repr=False)
    installed: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def of(cls, fleet: Fleet) -> Crew:
        """Not connected yet; `close` ends the connections."""
        hosts = (Host(name=n.name, destination=n.ssh, sudo=n.sudo) for n in fleet.nodes)
        return cls(fleet=fleet, hosts=tuple(hosts))

    def close(self) -> None:
        """End the shared connections."""
        for host in self.hosts:
            host.close()

    @property
    def run(self) -> RunDir:
        """The run folder, which has the same path on every node."""
        return RunDir.of(self.fleet.state_dir)

    @property
    def named(self) -> dict[str, Host]:
        """The hosts by the names of their nodes."""
        return {host.name: host for host in self.hosts}

    def path(self) -> str:
        """Where the command lies on a node."""
        return f"{self.fleet.state_dir}/bin/{zipped.name_of(self.program)}"

    def each(
        self, call: Callable[[int, Host], T], *, ranks: Sequence[int] | None = None
    ) -> list[T]:
        """Call once a rank, all at once; the first error is raised, an unreachable node first."""
        found = self.tried(call, ranks=ranks)
        failed = [e for e in found.values() if isinstance(e, Error)]
        for error in sorted(failed, key=lambda e: not isinstance(e, Unreachable)):
            raise error
        return [result for result in found.values() if not isinstance(result, Error)]

    def tried(
        self, call: Callable[[int, Host], T], *, ranks: Sequence[int] | None = None
    ) -> dict[int, T | Error]:
        """Call once a rank, all at once; what each gave, or its error."""
        chosen = list(range(len(self.hosts)) if ranks is None else ranks)
        rank_of = {host.name: rank for rank, host in enumerate(self.hosts)}
        hosts = [self.hosts[rank] for rank in chosen]
        found = each(hosts, lambda host: call(rank_of[host.name], host), at_once=len(hosts) or 1)
        return {rank: found[self.hosts[rank].name] for rank in chosen}

    def install(self, host: Host) -> None:
        """Put the command on a node; CheckFailed D430 when its Python is too old for it."""
        if host.name in self.installed:
            return
        there = f"python3 -c {shlex.quote(_OLD)} || exit 3; test -s {shlex.quote(self.path())}"
        status = host.run(["sh", "-c", there], sudo=True).status
        if status == 3:
            raise CheckFailed(
                "D430",
                f"{host.name} has no python3 of 3.11 or newer, which the ranks are started by.",
                fix=f"install one there: {host.shell()}",
            )
        if status:
            host.put(self.program, self.path(), mode=0o755, sudo=True)
        self.installed.add(host.name)

    def words(self, *words: str) -> list[str]:
        """The command line of one of our verbs on a node."""
        return ["python3", self.path(), *words]

    def verb(self, host: Host, *words: str, seconds: float = LOOKED) -> dict[str, Any]:
        """What one of our verbs says on a node, its JSON; its own error is raised here."""
        done = host.run(self.words(*words, "--json"), seconds=seconds, sudo=True)
        try:
            said: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
        except ValueError:
            said = {}
        if done.status == 0 and said:
            return said
        kind = _KINDS.get(done.status, CheckFailed)
        says = str(said.get("says") or done.last_word)
        raise kind(
            str(said.get("code", "D431")),
            f"{host.name}: {says}",
            fix=str(said.get("fix") or f"run it there by hand: {host.shell()}"),
        )

    # -- what a node has and runs ------------------------------------------------

    def plan_of(self, host: Host) -> Plan | None:
        """The Plan that lies on a node; None when there is none that can be read."""
        done = host.run(["cat", str(self.run.plan_file)], seconds=LOOKED, sudo=True)
        try:
            return parse(done.stdout, where=host.name) if done.status == 0 else None
        except UsageError:
            return None

    def look(self, rank: int, host: Host) -> dict[str, Any]:
        """How a rank is: `dsv41.rank/1`, with `planned`, the digest of the Plan that lies there."""
        lies = self.plan_of(host)
        if lies is None or rank >= len(lies.ranks):
            return {"alive": False, "state": "stopped", "says": "nothing was started", "plan": None}
        self.install(host)
        which = ("--plan", str(self.run.plan_file), "--rank", str(rank))
        return {**self.verb(host, "rank", "look", *which), "planned": lies.digest}

    def start(self, rank: int, host: Host) -> int:
        """Start a rank; the pid of its `rank exec`."""
        which = ("--plan", str(self.run.plan_file), "--rank", str(rank))
        key = ("--control-key", str(self.run.control_key))
        return int(self.verb(host, "rank", "start", *which, *key, seconds=60)["pid"])

    def stop(self, _rank: int, host: Host) -> str:
        """Stop what runs from the node's state folder: stopped, killed or nothing runs."""
        if host.run(["test", "-d", str(self.run.path)], sudo=True).status:
            return "nothing runs"
        self.install(host)
        words = ("rank", "stop", "--state-dir", self.fleet.state_dir)
        return str(self.verb(host, *words, seconds=STOPPED)["status"])

    # -- what a node gets ----------------------------------------------------------

    def push(self, plan: Plan, *, key: bytes) -> None:
        """Folders, Plan and control key to every node; a failure is fatal."""

        def one(rank: int, host: Host) -> None:
            host.ask(["mkdir", "-p", *folders(self.fleet, plan, rank)], sudo=True)
            host.put(key, str(self.run.control_key), mode=0o600, sudo=True)
            host.put(plan.to_json().encode(), str(self.run.plan_file), sudo=True)

        self.each(one)

    def control_key(self, alive: Sequence[int]) -> bytes:
        """The key of the ranks that run already, else a new one."""
        for rank in alive:
            return self.hosts[rank].ask(["cat", str(self.run.control_key)], sudo=True).encode()
        return new_key().encode()

    @contextmanager
    def claimed(self, who: str) -> Iterator[None]:
        """Hold the fleet while it is started; Unsafe D063 when another `serve` does.

        The lock lies on the head and ends with this process or its connection.
        """
        head, file = self.hosts[0], str(self.run.path / "serve.lock")
        head.ask(["mkdir", "-p", str(self.run.path)], sudo=True)
        held = ["flock", "--nonblock", "--close", file, "sh", "-c", _LOCK, "sh", who, file]
        lines = head.follow(held, sudo=True)
        try:
            if next(lines, "") != HELD:
                other = head.run(["cat", file], sudo=True).stdout.strip() or "somebody"
                raise Unsafe(
                    "D063",
                    f"{head.name}: {other} is starting this fleet already.",
                    fix="wait for it, or follow it with dsv41 logs --follow --fleet FLEET",
                )
            yield
        finally:
            lines.close()  # type: ignore[attr-defined]


def folders(fleet: Fleet, plan: Plan, rank: int) -> list[str]:
    """Folders that a rank's mounts and files need; the checkpoint's may be a share, and stays."""
    node = fleet.nodes[rank]
    sources = [mount.split(":")[0] for mount in plan.ranks[rank].mounts]
    below = re.compile(rf"{re.escape(fleet.cache_dir)}/[0-9a-f]{{16}}")
    caches = [source for source in sources if below.fullmatch(source)]
    return [str(RunDir.of(fleet.state_dir).path), node.rows_dir, node.model_dir, *caches]


def streamed(crew: Crew, host: Host, *words: str, heard: Callable[[str], object]) -> int:
    """Run one of our verbs on a node, hand on its lines as they come; its exit status.

    Unreachable D068 when the connection ends before the command does.
    """
    script = '"$@"; echo "dsv41-exit $?"'
    last = ""
    for line in host.follow(["sh", "-c", script, "sh", *crew.words(*words)], sudo=True):
        found = re.fullmatch(r"dsv41-exit (\d+)", line)
        if found:
            return int(found[1])
        last = line
        heard(line)
    raise Unreachable(
        "D068",
        f"{host.name} ({host.destination}) went away: {last or 'it said nothing'}.",
        fix=f"{host.shell()} true, then the same command again: it goes on from there",
    )


def failed(host: Host, what: str, status: int, last: str) -> Error:
    """The error of a verb that ended with `status` on a node, of the same kind as there."""
    kind = _KINDS.get(status, CheckFailed)
    return kind(
        "D434",
        f"{host.name}: {what} ended with {status}: {last or 'it gave no reason'}.",
        fix="mend what the lines above say, then run the same command again: it goes on",
    )
