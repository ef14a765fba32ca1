"""The commands of a service that runs on a fleet: stop, status, logs, smoke."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsv41 import fleet as fleets
from dsv41.api import Endpoint
from dsv41.cli import gate, lines, standing
from dsv41.cli import service as here
from dsv41.errors import CheckFailed, Error, Unreachable, UsageError
from dsv41.guards import keys
from dsv41.run import fleet, ready

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41.cli.talk import Talk
    from dsv41.plan import Plan


@contextmanager
def crew_of(path: Path) -> Iterator[fleet.Crew]:
    """The nodes of a fleet file; the connections end with this."""
    crew = fleet.Crew.of(fleets.load(path))
    try:
        yield crew
    finally:
        crew.close()


def plan_of(crew: fleet.Crew) -> Plan:
    """The Plan that the head has; UsageError D439 when nothing was started there."""
    found = crew.plan_of(crew.hosts[0])
    if found is None:
        raise UsageError(
            "D439",
            f"{crew.hosts[0].name} has no Plan: nothing was started on this fleet.",
            fix="dsv41 serve --profile P --fleet FLEET",
        )
    return found


def key_of(crew: fleet.Crew, plan: Plan) -> str | None:
    """A key that the endpoint accepts, from the file on the head; None when there are none."""
    if plan.api_key_file is None:
        return None
    text = crew.hosts[0].ask(["cat", plan.api_key_file], sudo=True)
    return keys.parse(plan.api_key_file, text.encode()).bearer()


def stop(args: Namespace, talk: Talk) -> int:
    """Stop the head, then the workers; those that cannot be reached are named, and 3 returned."""
    with crew_of(args.fleet) as crew:
        if args.dry_run:
            for host in crew.hosts:
                talk.put(f"would stop the rank of {host.name}")
            return 0
        found = crew.tried(crew.stop, ranks=[0])
        found |= crew.tried(crew.stop, ranks=range(1, len(crew.hosts)))
        names = [host.name for host in crew.hosts]
    failed = [error for error in found.values() if isinstance(error, Error)]
    told = {
        names[rank]: f"{said.code} {said.says}" if isinstance(said, Error) else said
        for rank, said in found.items()
    }
    if args.json:
        says = "stopped" if not failed else "partly"
        talk.document("stop", status=says, nodes=told)
    else:
        for name, said in told.items():
            talk.put(f"{name}  {said}")
    return _worst(failed)


def _worst(failed: list[Error]) -> int:
    if any(isinstance(error, Unreachable) for error in failed):
        return Unreachable.exit_status
    return max((error.exit_status for error in failed), default=0)


def status(args: Namespace, talk: Talk) -> int:
    """One line a rank, from evidence: rank, container, endpoint; 1 unless it serves."""
    with crew_of(args.fleet) as crew:
        looks = crew.tried(crew.look)
        last_lines(crew, looks)
        ranks = [_rank(crew, rank, look) for rank, look in looks.items()]
        gone = [look for look in looks.values() if isinstance(look, Unreachable)]
        head = looks[0]
        plan = None if isinstance(head, Error) else crew.plan_of(crew.hosts[0])
        accepted = [] if isinstance(head, Error) else gate.kept(crew)
    found = {**_judged(plan, ranks), "accepted": accepted, "ranks": ranks}
    if args.json:
        talk.document("status", **found)
    else:
        talk.put(standing.headline(found))
        for rank in ranks:
            where = f"rank {rank['rank']}  {rank['node']:12}  {rank['role']:6}  {rank['state']:9}"
            talk.put(f"{where} round {rank['round']}  {rank['says']}".rstrip())
        for taken in accepted:
            talk.put(f"accepted {taken['code']} {taken['node']}: {taken['says']}")
    if gone:
        return Unreachable.exit_status
    return 0 if found["status"] == "serving" else CheckFailed.exit_status


def last_lines(crew: fleet.Crew, looks: dict[int, Any]) -> None:
    """Give each rank its last line that tells how it stands; ask for more where it only counts."""
    last = {r: str(k.get("last_line") or "") for r, k in looks.items() if not isinstance(k, Error)}
    more = lines.ends(crew, [r for r in last if standing.counts(last[r])], lines=standing.TAIL)
    for rank, line in last.items():
        found = more.get(rank)
        looks[rank]["last_line"] = standing.last_said(found if isinstance(found, list) else [line])


def _rank(crew: fleet.Crew, rank: int, look: dict[str, Any] | Error) -> dict[str, Any]:
    place = {
        "rank": rank,
        "node": crew.hosts[rank].name,
        "role": "worker" if rank else "head",
    }
    if isinstance(look, Error):
        lost = "lost" if isinstance(look, Unreachable) else "unknown"
        gone = {"alive": None, "plan": None, "round": None, "fingerprint": None, "container": None}
        return {**place, **gone, "state": lost, "code": look.code, "says": look.says}
    kept = [
        "alive",
        "state",
        "round",
        "plan",
        "fingerprint",
        "pid",
        "exit",
        "code",
        "since",
        "container",
    ]
    says = str(look["says"] or look.get("last_line") or "")
    return {**place, **{key: look.get(key) for key in kept}, "says": says}


def _judged(plan: Plan | None, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the evidence of all ranks and of the endpoint comes to."""
    if plan is None:
        lost = any(rank["state"] == "lost" for rank in ranks)
        says = "the head cannot be asked" if lost else "nothing was started"
        return {"status": "unknown" if lost else "stopped", "says": says, "url": None}
    whole = {"url": plan.url, "digest": plan.digest}
    alive = [rank for rank in ranks if rank["alive"]]
    if not alive:
        failed = [rank for rank in ranks if rank.get("exit")]
        says = f"rank {failed[0]['rank']} ended with {failed[0]['exit']}" if failed else ""
        return {**whole, "status": "failed" if failed else "stopped", "says": says}
    others = [rank for rank in alive if rank["plan"] not in (None, plan.digest)]
    down = [rank for rank in ranks if rank["state"] != "running" or _empty(rank)]
    wrong = ready.why_not(plan)
    if others:
        names = ", ".join(rank["node"] for rank in others)
        return {**whole, "status": "failed", "says": f"another Plan runs on {names}"}
    if down:
        names = ", ".join(
            f"rank {rank['rank']} {'without its container' if _empty(rank) else rank['state']}"
            for rank in down
        )
        return {**whole, "status": "starting", "says": names}
    return {**whole, "status": "starting" if wrong else "serving", "says": wrong}


def _empty(rank: dict[str, Any]) -> bool:
    """Whether the rank believes that it runs, and docker or podman knows better."""
    return rank["state"] == "running" and rank["container"] in ("ended", "none")


def logs(args: Namespace, talk: Talk) -> int:
    """The end of each rank's log with its node's name, and what comes with --follow."""
    with crew_of(args.fleet) as crew:
        size = len(crew.hosts)
        if args.rank is not None and not 0 <= args.rank < size:
            raise UsageError(
                "D064",
                f"The fleet has ranks 0 to {size - 1}, not {args.rank}.",
                fix=f"give --rank a number from 0 to {size - 1}",
            )
        ranks = list(range(size)) if args.rank is None else [args.rank]
        found = lines.ends(crew, ranks, lines=args.lines)
        failed = [said for said in found.values() if isinstance(said, Error)]
        if args.json:
            told = {str(r): [] if isinstance(s, Error) else s for r, s in found.items()}
            talk.document("logs", ranks=told)
        else:
            for rank, said in found.items():
                for line in [said.says] if isinstance(said, Error) else said:
                    talk.put(f"{crew.hosts[rank].name} | {line}")
        if args.follow and not args.json:
            try:
                return lines.follow(crew, talk, ranks=ranks)
            except KeyboardInterrupt:
                return 0
    return _worst(failed)


def smoke(args: Namespace, talk: Talk) -> int:
    """The ladder at the endpoint of the Plan that the head has, with a key of its file."""
    with crew_of(args.fleet) as crew:
        plan = plan_of(crew)
        key = key_of(crew, plan)
    return here.climb(Endpoint(url=plan.url, key=key, timeout=600), args, talk)
