"""The commands of one rank on its own machine, as ssh, units and `serve` call them."""

from __future__ import annotations

import os
from argparse import Namespace

from dsv41 import run
from dsv41.cli.talk import Talk
from dsv41.run import node


def execute(args: Namespace, talk: Talk) -> int:
    """Run one rank of a Plan in the foreground."""
    from dsv41.run import rank  # noqa: PLC0415 - keeps the other commands light

    return rank.exec_rank(
        run.read_plan(args.plan),
        args.rank,
        environ=os.environ,
        parent=args.parent,
        say=talk.say,
        given=rank.Given(plan_file=args.plan, control_key=args.control_key, lock_fd=args.lock_fd),
    )


def start(args: Namespace, talk: Talk) -> int:
    """Start a rank and leave it alone; prints its pid."""
    plan = run.read_plan(args.plan)
    pid = node.start(plan, args.rank, plan_file=args.plan, control_key=args.control_key)
    if args.json:
        talk.document("rank-start", pid=pid)
    else:
        talk.put(str(pid))
    return 0


def stop(args: Namespace, talk: Talk) -> int:
    """Stop the ranks of a state folder; none is fine."""
    found = node.stop(args.state_dir)
    if args.json:
        talk.document("rank-stop", **found)
    else:
        talk.put(found["status"])
    return 0


def look(args: Namespace, talk: Talk) -> int:
    """Say how a rank is."""
    found = node.look(run.read_plan(args.plan), args.rank)
    if args.json:
        talk.document("rank", **found)
    else:
        number = f", round {found['round']}" if found["round"] else ""
        code = f"{found['code']} " if found["code"] else ""
        talk.put(f"{found['state']}{number}  {code}{found['says']}".rstrip())
    return 0
