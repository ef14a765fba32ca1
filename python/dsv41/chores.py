"""What a rank's image does beside serving: make the tiny checkpoint, pack the rank's rows.

Each chore is the rank itself with another command and with the folder that it fills writable; the
image compiles the row store, so a node needs nothing but a container engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsv41.engines.container import KEY_FILE, MODEL, ROWS
from dsv41.engines.trees import TREES
from dsv41.errors import UsageError
from dsv41.plan import Plan, Rank
from dsv41.switches import SWITCHES

_WORDS = "--partition"


# engine -> the module of its image that makes the checkpoint, where it is no published one
_MAKERS: Mapping[str, str] = {tree.engine: tree.maker for tree in TREES.values() if tree.maker}


def weights(plan: Plan, rank: Rank) -> Rank | None:
    """Make the checkpoint in the node's model_dir; None where a published one is fetched."""
    maker = _MAKERS.get(plan.engine)
    if maker is None:
        return None
    argv = (rank.argv[0], "-m", maker, "--into", MODEL, "--geometry", "fixture")
    return _chore(rank, argv, writable=MODEL)


def packing(plan: Plan, rank: Rank) -> Rank:
    """Pack the rank's rows from the node's model_dir into its rows_dir."""
    argv = (
        *(rank.argv[0], "-m", "dsv41.rows.packing"),
        *("--checkpoint", MODEL),
        *("--out", ROWS),
        *("--partition", partition_of(plan, rank)),
        *("--rank", str(rank.rank)),
        *("--tp", str(len(plan.ranks))),
    )
    return _chore(rank, argv, writable=ROWS)


def partition_of(plan: Plan, rank: Rank) -> str:
    """Which rank owns which rows; UsageError D107 where the rank does not say."""
    found = rank.env.get(SWITCHES["engram_partition"].env)
    if found is None and _WORDS in rank.argv:
        found = rank.argv[rank.argv.index(_WORDS) + 1]
    if found is None:
        raise UsageError(
            "D107",
            f"Rank {rank.rank} of profile {plan.profile} reads no packed rows.",
            fix="dsv41 plan --profile tp3 --fleet fleet.toml",
        )
    return found


def folders(rank: Rank) -> dict[str, str]:
    """Folder in the container -> folder of the node."""
    return {target: source for source, target, *_ in (m.split(":") for m in rank.mounts)}


def _chore(rank: Rank, argv: Sequence[str], *, writable: str) -> Rank:
    """The rank with another command: no keys, no accelerator, one folder to write."""
    mounts = tuple(
        f"{source}:{writable}" if target == writable else mount
        for mount in rank.mounts
        for source, target, *_ in [mount.split(":")]
        if target != KEY_FILE
    )
    return replace(rank, argv=tuple(argv), mounts=mounts, options=(), env={})
