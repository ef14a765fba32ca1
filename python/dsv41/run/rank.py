"""`rank exec`: one rank of a Plan in the foreground.

A rank on a machine of its own lives in `seat.Seat`, round after round. A rank below the supervisor
of `serve` on one machine runs once: the supervisor ends all ranks together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsv41 import digests, host
from dsv41.foreground import Foreground
from dsv41.plan import Plan, Rank
from dsv41.run import RunDir, as_status, node
from dsv41.run.rounds import Times
from dsv41.run.seat import Seat, run_engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Where things are that are not in the Plan: its file, the control key, the inherited lock."""

    plan_file: Path | None = None
    control_key: Path | None = None
    lock_fd: int | None = None
    times: Times = field(default_factory=Times)


def exec_rank(
    plan: Plan,
    rank: int,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    parent: int | None = None,
    given: Given | None = None,
) -> int:
    """Run one rank of a Plan; its exit status. With `parent`, all ends when that process does.

    An engine of an image runs in a container of it: only where the image is known by its digest
    (Unsafe D180). Without a control address in the Plan there is one round and no other rank.

    Raises:
        UsageError: D064, when the Plan has no such rank; D062, D097, D098 for its file.
        Unsafe: what a new start would not mend: D063, D144, D419 to D423, D428.
        EngineFailed: what it may: D133, D421, D425 to D427, D429.
    """
    here = node.one_of(plan, rank)
    if parent is not None:
        host.die_with_parent(parent)
        return asyncio.run(_below_supervisor(plan, here, environ))
    if here.container:
        digests.require(here.image, profile=plan.profile)
    given = given or Given()
    with _lock(plan, rank, given.lock_fd):
        seat = Seat(
            plan=plan,
            here=here,
            environ=environ,
            say=say,
            plan_file=given.plan_file,
            key_file=given.control_key or RunDir.of(plan.state_dir).control_key,
            times=given.times,
        )
        return asyncio.run(seat.live())


async def _below_supervisor(plan: Plan, here: Rank, environ: Mapping[str, str]) -> int:
    at = Foreground()
    at.listen()
    ran = await run_engine(at, plan, here, environ)
    return 0 if at.stopped and here.container else as_status(ran.status)


@contextlib.contextmanager
def _lock(plan: Plan, rank: int, fd: int | None) -> Iterator[None]:
    """Hold the rank's lock: the one that `rank start` took and passed on, or a new one."""
    if fd is None:
        with node.claim(plan, rank) as lock:
            lock.write_owner(os.getpid())
            yield
        return
    lock = host.Lock.inherited(RunDir.of(plan.state_dir).rank_lock(rank), fd)
    lock.write_owner(os.getpid())
    try:
        yield
    finally:
        lock.close()
