"""--profile and --state-dir where they are left out, and what a fleet file has to decide."""

from __future__ import annotations

import shlex
from argparse import Namespace

from dsv41 import profile
from dsv41.cli.parser import DEFAULT_STATE_DIR
from dsv41.errors import UsageError
from dsv41.plan import LOCAL


def of_profile(args: Namespace, command: str) -> None:
    """Fill in --profile: local here; UsageError D107 with a fleet, whose profile is never guessed.

    The tiny model runs on Sparks as well, and nobody who left a word out means that.
    """
    if args.profile is None and args.fleet is not None:
        fleet = shlex.quote(str(args.fleet))
        raise UsageError(
            "D107",
            "--fleet needs --profile: which model its nodes serve is not guessed.",
            fix=f"dsv41 {command} --profile tp3 --fleet {fleet}, or another profile",
        )
    args.profile = args.profile or LOCAL


def of_state(args: Namespace) -> None:
    """Fill in --state-dir; UsageError D107 with a fleet, whose nodes have the fleet file's."""
    if args.state_dir is not None and args.fleet is not None:
        raise UsageError(
            "D107",
            "--state-dir has no effect beside --fleet: the fleet file has the state_dir of its "
            "nodes.",
            fix=f"leave out --state-dir, or set state_dir in {args.fleet}",
        )
    args.state_dir = args.state_dir or DEFAULT_STATE_DIR


def of_service(args: Namespace, command: str) -> None:
    """Both for a service that runs; UsageError D002 where it cannot be on this machine."""
    of_state(args)
    args.profile = args.profile or LOCAL
    if args.fleet is None:
        require_local(profile.load(args.profile), fix=f"dsv41 {command} --fleet fleet.toml")


def require_local(chosen: profile.Profile, *, fix: str) -> None:
    """UsageError D002 for a profile that no command without --fleet can serve or find."""
    if chosen.engine != LOCAL:
        raise UsageError(
            "D002",
            f"Profile {chosen.name} needs a fleet file, which names its machines; only local runs "
            "without one.",
            fix=fix,
        )
