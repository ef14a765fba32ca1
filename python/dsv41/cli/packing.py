"""`dsv41 pack`: the rows of the local engine's ranks, or of one rank of a Plan on its own host."""

from __future__ import annotations

import os
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41 import chores, run
from dsv41.cli import defaults, verbs
from dsv41.engines.container import MODEL, ROWS
from dsv41.errors import UsageError
from dsv41.geometry import Shard
from dsv41.run import node

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41.cli.talk import Talk
    from dsv41.plan import Plan, Rank

_GIB = 2**30
_SHOWN_EVERY = 5 * _GIB  # bytes between two lines of progress: a rank of four has 47 GiB


def pack(args: Namespace, talk: Talk) -> int:
    """Pack every rank's rows of profile local or of a fleet, or one rank's of a Plan."""
    defaults.of_profile(args, "pack")
    defaults.of_state(args)
    if args.fleet is not None:
        from dsv41.cli import preparing  # noqa: PLC0415 - keeps the other commands light

        return preparing.pack(args, talk)
    if args.plan is None and args.rank is None:
        return verbs.pack(args, talk)
    if args.plan is None or args.rank is None:
        raise UsageError(
            "D107", "--plan and --rank have no effect without each other.", fix="give both of them"
        )
    plan = run.read_plan(args.plan)
    rank = node.one_of(plan, args.rank)
    if rank.container and not args.dry_run and find_spec("dsv41_rows") is None:
        return _in_image(plan, rank, chores.packing(plan, rank), talk, what="pack")
    files = _pack_rank(args, plan, rank, talk)
    if args.json:
        talk.document("pack", files=[str(file) for file in files])
    else:
        for file in files:
            talk.put(str(file))
    return 0


def weights(args: Namespace, talk: Talk) -> int:
    """Make the checkpoint of a rank's node, where the image makes it."""
    plan = run.read_plan(args.plan)
    rank = node.one_of(plan, args.rank)
    chore = chores.weights(plan, rank)
    if chore is None or rank.container is None:
        raise UsageError(
            "D107",
            f"The checkpoint of profile {plan.profile} is not made in an image.",
            fix=f"dsv41 weights fetch --profile {plan.profile} --fleet fleet.toml",
        )
    return _in_image(plan, rank, chore, talk, what="weights")


def _in_image(plan: Plan, rank: Rank, chore: Rank, talk: Talk, *, what: str) -> int:
    """This Python has no row store; the rank's image has."""
    from dsv41.run import chores as here  # noqa: PLC0415 - keeps the other commands light

    talk.say(f"{what} of rank {rank.rank} in {rank.image}")
    return here.carry_out(plan, rank, chore, what=what, environ=os.environ)


def _pack_rank(args: Namespace, plan: Plan, rank: Rank, talk: Talk) -> list[Path]:
    from dsv41 import rows  # noqa: PLC0415 - needs the row-store extension

    places = chores.folders(rank)
    if not {MODEL, ROWS} <= places.keys():
        raise UsageError(
            "D107",
            f"The Plan of profile {plan.profile} reads its rows from its own state folder.",
            fix=f"dsv41 pack --profile {plan.profile}",
        )
    checkpoint, out = Path(places[MODEL]), Path(places[ROWS])
    partition = chores.partition_of(plan, rank)
    engram = rows.geometry_of(checkpoint)
    shard = Shard(rank=args.rank, tp=len(plan.ranks))
    if args.dry_run:
        names = (
            rows.file_name(layer=layer, rank=shard.rank, tp=shard.tp, partition=partition)
            for layer in engram.layer_ids
        )
        return [out / name for name in names]
    return rows.pack(
        checkpoint=checkpoint,
        out=out,
        engram=engram,
        partition=partition,
        shard=shard,
        progress=_progress(talk),
    )


def _progress(talk: Talk) -> Callable[[Path, int, int], object]:
    """A line for every few GiB of a file."""
    shown: dict[Path, int] = {}

    def say(path: Path, done: int, total: int) -> None:
        if done - shown.get(path, 0) >= _SHOWN_EVERY:
            shown[path] = done
            talk.say(f"{path.name}: {done / _GIB:.1f} of {total / _GIB:.1f} GiB")

    return say
