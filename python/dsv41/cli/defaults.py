"""What follows from --profile, --fleet and --state-dir, given or left out, in every command."""

from __future__ import annotations

import shlex
import tomllib
from argparse import Namespace
from pathlib import Path

from dsv41 import digests, profile
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


def image_name(chosen: profile.Profile) -> str:
    """The flake's name of a profile's image: a file's is that of the profile which it extends."""
    base = chosen.name
    if base not in profile.names():
        own = Path(chosen.where).read_text(encoding="utf-8")
        base = tomllib.loads(own).get("extends", base)
    return digests.image_name(base, tree=chosen.tree)


def known_image(chosen: profile.Profile) -> str | None:
    """The image of a profile by the flake's digest; None where that is not known."""
    return digests.known().get(image_name(chosen))


def require_local(chosen: profile.Profile, *, fix: str) -> None:
    """UsageError D002 for a profile that no command without --fleet can serve or find."""
    if chosen.engine != LOCAL:
        raise UsageError(
            "D002",
            f"Profile {chosen.name} needs a fleet file, which names its machines; only local runs "
            "without one.",
            fix=fix,
        )
