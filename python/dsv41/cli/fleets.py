"""`dsv41 serve`: here, on a fleet, or only the steps that would be done there."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dsv41.cli import defaults, verbs
from dsv41.cli import serve as here
from dsv41.errors import UsageError

if TYPE_CHECKING:
    from dsv41.cli.talk import Talk

_OF_A_FLEET = ("image", "accept", "skip_smoke")


def serve(args: Namespace, talk: Talk) -> int:
    """Serve profile local here; with a fleet file serve on its nodes, or print the steps."""
    defaults.of_profile(args, "serve")
    defaults.of_state(args)
    if args.fleet is None:
        _refuse_alone(args)
        return here.serve(args, talk)
    from dsv41.cli import gate, preparing  # noqa: PLC0415 - keeps a local start light

    gate.checks(args.accept)  # before anything is asked of a node
    made = preparing.made(args)
    if not args.dry_run:
        from dsv41.cli import bringing  # noqa: PLC0415

        return bringing.serve(args, made, talk)
    if args.json:
        talk.put(made.plan.to_json().rstrip("\n"))
    else:
        verbs.show_steps(made.plan, talk)
    return 0


def _refuse_alone(args: Namespace) -> None:
    """UsageError D107 for an option that only a fleet has."""
    for name in _OF_A_FLEET:
        if getattr(args, name):
            raise UsageError(
                "D107",
                f"--{name.replace('_', '-')} has no effect without --fleet.",
                fix="give --fleet fleet.toml as well, or leave it out",
            )
