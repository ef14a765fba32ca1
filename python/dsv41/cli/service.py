"""The commands of a running service: stop, status, logs, smoke."""

from __future__ import annotations

import time
from argparse import Namespace
from http.client import UNAUTHORIZED
from pathlib import Path
from typing import Any

from dsv41 import host, observe, run
from dsv41.api import Endpoint
from dsv41.cli import crews, defaults, standing
from dsv41.cli.talk import Talk
from dsv41.errors import CheckFailed
from dsv41.plan import Plan

REFRESH = 0.2  # seconds between two looks at the logs


def stop(args: Namespace, talk: Talk) -> int:
    """Stop the service; nothing to stop is fine."""
    defaults.of_service(args, "stop")
    if args.fleet is not None:
        return crews.stop(args, talk)
    state = run.RunDir.of(args.state_dir)
    pid = state.supervisor()
    if args.dry_run:
        talk.put(f"would stop pid {pid}" if pid else "nothing runs")
        return 0
    says = run.stop_service(args.state_dir)
    if args.json:
        talk.document("stop", status=says, pid=pid)
    else:
        talk.put(says)
    return 0


def status(args: Namespace, talk: Talk) -> int:
    """One line a rank, from evidence: the lock, the processes, the endpoint; 1 unless it serves."""
    defaults.of_service(args, "status")
    if args.fleet is not None:
        return crews.status(args, talk)
    state = run.RunDir.of(args.state_dir)
    found = observe.look(state)
    if args.json:
        talk.document("status", **found)
    else:
        talk.put(standing.headline(found))
        for rank in found["ranks"]:
            where = f"rank {rank['rank']}  {rank['role']:6}  {rank['state']}"
            said = observe.tail(state.log_file(rank["rank"]), lines=standing.TAIL)
            talk.put(f"{where}  {standing.last_said(said)}".rstrip())
    return 0 if found["status"] == "serving" else CheckFailed.exit_status


def logs(args: Namespace, talk: Talk) -> int:
    """Print the end of each rank's log, and go on with --follow."""
    defaults.of_service(args, "logs")
    if args.fleet is not None:
        return crews.logs(args, talk)
    state = run.RunDir.of(args.state_dir)
    plan = state.plan()
    ranks = observe.check_rank(plan, args.rank)
    if args.json:
        tails = {str(rank): observe.tail(state.log_file(rank), lines=args.lines) for rank in ranks}
        talk.document("logs", ranks=tails)
        return 0
    for rank in ranks:
        for line in observe.tail(state.log_file(rank), lines=args.lines):
            talk.put(line)
    if args.follow:
        follow(state, talk, list(ranks))
    return 0


def smoke(args: Namespace, talk: Talk) -> int:
    """Ask questions with known answers, print a line a step, write a receipt."""
    if args.fleet is not None:
        return crews.smoke(args, talk)
    key = None
    if args.api_key_file is not None:
        from dsv41.local.http import keys  # noqa: PLC0415 - only there with the local engine

        key = keys.read_keys(args.api_key_file).bearer()
    return climb(Endpoint(url=args.url, key=key), args, talk)


def climb(endpoint: Endpoint, args: Namespace, talk: Talk) -> int:
    """Go up the ladder, a line a step, and write a receipt; 1 when a step failed."""
    from dsv41 import smoke as ladder  # noqa: PLC0415 - keeps the other commands light

    started = host.utc_now()
    steps = []
    for step in ladder.climb(endpoint):
        steps.append(step)
        if not args.json:
            talk.put(step_line(step))
    passed = all(step["ok"] for step in steps)
    result = {"status": "ok" if passed else "fail", "url": endpoint.url, "steps": steps}
    receipt = _write_receipt(args, result, started=started)
    talk.say(f"receipt: {receipt}")
    if not passed and endpoint.key is None and endpoint.status("/v1/models") == UNAUTHORIZED:
        talk.say("  fix: the server wants a key: give --api-key-file FILE")
    if args.json:
        talk.document("smoke", **result, receipt=str(receipt))
    return 0 if passed else CheckFailed.exit_status


def step_line(step: dict[str, Any]) -> str:
    """A step of the ladder in a line."""
    mark = "ok" if step["ok"] else "FAIL"
    return f"{mark:4}  {step['name']:12} {step['seconds']:6.2f} s  {step['says']}"


def _write_receipt(args: Namespace, result: dict[str, Any], *, started: str) -> Path:
    name = f"smoke-{started.replace(':', '')}.json"
    path: Path = args.receipt or host.unused(args.state_dir / "receipts" / name)
    host.make_folder(path.absolute().parent)
    return host.write_receipt(
        path, command=f"dsv41 smoke --url {result['url']}", started=started, result=result
    )


def show_logs(state: run.RunDir, plan: Plan, talk: Talk, *, lines: int) -> None:
    """Show the end of every log of a service."""
    for rank in (None, *range(len(plan.ranks))):
        for line in observe.tail(state.log_file(rank), lines=lines):
            talk.log(f"  {line}")


def follow(state: run.RunDir, talk: Talk, ranks: list[int | None]) -> None:
    """Print new log lines as they come, for as long as the service lives."""
    places = {rank: host.size_of(state.log_file(rank)) for rank in ranks}
    lives = True
    while lives:
        lives = state.supervisor() is not None
        for rank, place in places.items():
            lines, places[rank] = observe.lines_since(state.log_file(rank), place)
            for line in lines:
                talk.log(line)
        if lives:
            time.sleep(REFRESH)
