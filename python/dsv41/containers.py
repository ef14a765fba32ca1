"""The command lines that start one rank's container and that end it; docker and podman alike.

The image's own entry point is not relied on: the Plan says what runs. Host names and folders that
the command needs are all in the Plan, so it reads the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsv41.plan import Rank

PLACEHOLDER = "IMAGE"  # stands where no digest is known
RESTART = "--restart="


def name_of(rank: Rank) -> str:
    """The container's name; one service a host, so the rank is enough."""
    return f"dsv41-rank{rank.rank}"


def detached(program: str, rank: Rank) -> list[str]:
    """Start it and return: for a person's own use."""
    return _run(program, rank, name=name_of(rank), how=["--detach"], options=rank.options)


def attached(program: str, rank: Rank, *, name: str) -> list[str]:
    """Stay with it until it ends, passing on signals, output and exit status; then remove it.

    Whoever runs this starts it again or not, so the Plan's restart policy stays out.
    """
    kept = [word for word in rank.options if not word.startswith(RESTART)]
    return _run(program, rank, name=name, how=["--rm"], options=kept)


def removed(program: str, name: str) -> list[str]:
    """End it if it runs, and remove it."""
    return [program, "rm", "--force", name]


def _run(
    program: str, rank: Rank, *, name: str, how: Sequence[str], options: Sequence[str]
) -> list[str]:
    command = [program, "run", *how, f"--name={name}", "--pull=never", *options]
    command += [f"--env={key}={value}" for key, value in sorted(rank.env.items())]
    command += [f"--volume={mount}" for mount in rank.mounts]
    return [*command, f"--entrypoint={rank.argv[0]}", rank.image or PLACEHOLDER, *rank.argv[1:]]
