"""`dsv41 serve --fleet`: what would be done on every node. Nothing is carried out over ssh yet."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dsv41.cli import planning, verbs
from dsv41.cli import serve as here
from dsv41.errors import UsageError

if TYPE_CHECKING:
    from dsv41.cli.talk import Talk

# what `plan` takes and `serve` leaves to the fleet file and the profile
_OF_THE_FILES: Mapping[str, object] = {
    "api_key_file": None,
    "eager": False,
    "image": None,
    "port": None,
    "reserve_gib": None,
    "set": [],
    "state_dir": None,
    "text_only": False,
    "tree": None,
}


def serve(args: Namespace, talk: Talk) -> int:
    """Serve profile local here; of a fleet, print the steps."""
    if args.fleet is None:
        return here.serve(args, talk)
    made = planning.make(Namespace(**{**vars(args), **_OF_THE_FILES}))
    if not args.dry_run:
        raise UsageError(
            "D002",
            f"Profile {args.profile} runs on a fleet, and this version starts ranks only on this "
            "machine.",
            fix="on each node, workers first: dsv41 pack, then dsv41 rank exec, both with "
            "--plan FILE --rank N",
        )
    if args.json:
        talk.put(made.plan.to_json().rstrip("\n"))
    else:
        verbs.show_steps(made.plan, talk)
    return 0
