"""`rank exec`: one rank of a Plan in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from dsv41 import digests, host
from dsv41.foreground import CONTAINER_PATIENCE, Foreground, in_container
from dsv41.plan import LOCAL, Plan, Rank
from dsv41.run import as_status, node, service_name


def exec_rank(
    plan: Plan, rank: int, *, environ: Mapping[str, str], parent: int | None = None
) -> int:
    """Run one rank of a Plan in the foreground; signals go on to it; its exit status.

    An engine of an image runs in a container of it: only where the image is known by its digest
    (Unsafe D180), and after a preflight in it (Unsafe D144 when that says no).
    A rank that a signal killed counts as a failed engine (4). One that does not end within
    TERM_PATIENCE of the first signal is killed. With `parent`, all ends when that process does.
    """
    here = node.one_of(plan, rank)
    if parent is not None:
        host.die_with_parent(parent)
    if plan.engine == LOCAL:
        return as_status(Foreground().run(_command(plan, here), {**environ, **here.env}))
    digests.require(here.image, profile=plan.profile)
    at = Foreground(patience=CONTAINER_PATIENCE)
    status = in_container(at, here, plan.engine, environ)
    return 0 if at.stopped else as_status(status)


def _command(plan: Plan, rank: Rank) -> list[str]:
    """The argv to start; `python` is this interpreter, which has the engine that the Plan names."""
    program, *rest = rank.argv
    if program == "python":
        return [sys.executable, *rest, "--parent", str(os.getpid()), "--group", service_name(plan)]
    return [program, *rest]
