"""Run a chore of a rank on its own machine, in a container of the rank's image."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from dsv41 import containers, digests, host
from dsv41.errors import EngineFailed
from dsv41.foreground import NOT_STARTED, cannot_start, clear
from dsv41.plan import Plan, Rank


def carry_out(plan: Plan, rank: Rank, chore: Rank, *, what: str, environ: Mapping[str, str]) -> int:
    """Run it to its end with our stdout and stderr; its exit status.

    Unsafe D180 without the image's digest, EngineFailed D133 when no container could be started.
    """
    digests.require(rank.image, profile=plan.profile)
    program = rank.container or "podman"
    name = f"{containers.name_of(rank)}-{what}"
    clear(program, name, environ)
    words = containers.attached(program, chore, name=name)
    try:
        with host.term_raises():
            status = subprocess.call(words, stdin=subprocess.DEVNULL, env=dict(environ))
    except host.Terminated:
        return EngineFailed.exit_status
    except OSError as error:
        raise cannot_start(program, error) from error
    finally:
        clear(program, name, environ)  # a killed client leaves its container running
    if status in NOT_STARTED:
        raise EngineFailed(
            "D133",
            f"{program} could not start {name} of image {rank.image}: status {status}.",
            fix="see the lines above: the image or a folder is absent",
        )
    return status if status >= 0 else EngineFailed.exit_status
