"""`dsv41 pack`: the rows of the local engine's ranks, or of one rank of a Plan on its own host."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41 import run
from dsv41.cli import verbs
from dsv41.engines.container import MODEL, ROWS
from dsv41.errors import UsageError
from dsv41.geometry import Shard
from dsv41.switches import SWITCHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41.cli.talk import Talk
    from dsv41.plan import Plan

_GIB = 2**30
_SHOWN_EVERY = 5 * _GIB  # bytes between two lines of progress: a rank of four has 47 GiB


def pack(args: Namespace, talk: Talk) -> int:
    """Pack every rank's rows of profile local, or one rank's of a Plan."""
    if args.plan is None and args.rank is None:
        return verbs.pack(args, talk)
    if args.plan is None or args.rank is None:
        raise UsageError(
            "D107", "--plan and --rank have no effect without each other.", fix="give both of them"
        )
    files = _pack_rank(args, talk)
    if args.json:
        talk.document("pack", files=[str(file) for file in files])
    else:
        for file in files:
            talk.put(str(file))
    return 0


def _pack_rank(args: Namespace, talk: Talk) -> list[Path]:
    from dsv41 import rows  # noqa: PLC0415 - needs the row-store extension

    plan = run.read_plan(args.plan)
    checkpoint, out, partition = _of_rank(plan, args.rank)
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


def _of_rank(plan: Plan, number: int) -> tuple[Path, Path, str]:
    """Folder of the checkpoint, folder of the rows and the partition of one rank."""
    if not 0 <= number < len(plan.ranks):
        raise UsageError(
            "D107",
            f"--rank is {number}; the Plan has ranks 0 to {len(plan.ranks) - 1}.",
            fix="give one of its ranks",
        )
    rank = plan.ranks[number]
    sources = {target: source for source, target, *_ in (m.split(":") for m in rank.mounts)}
    partition = rank.env.get(SWITCHES["engram_partition"].env)
    if partition is None or not {MODEL, ROWS} <= sources.keys():
        raise UsageError(
            "D107",
            f"The Plan of profile {plan.profile} reads its rows from its own state folder.",
            fix=f"dsv41 pack --profile {plan.profile}",
        )
    return Path(sources[MODEL]), Path(sources[ROWS]), partition


def _progress(talk: Talk) -> Callable[[Path, int, int], object]:
    """A line for every few GiB of a file."""
    shown: dict[Path, int] = {}

    def say(path: Path, done: int, total: int) -> None:
        if done - shown.get(path, 0) >= _SHOWN_EVERY:
            shown[path] = done
            talk.say(f"{path.name}: {done / _GIB:.1f} of {total / _GIB:.1f} GiB")

    return say
