"""A Plan as an engineer would paste or review it: container commands, systemd units, a recipe."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from dsv41 import containers
from dsv41.containers import PLACEHOLDER
from dsv41.errors import UsageError
from dsv41.fleet import Fleet
from dsv41.plan import Plan, Rank
from dsv41.profile import Profile


def render(how: str, made: Plan, profile: Profile, fleet: Fleet) -> str:
    """The Plan in one of `FORMATS`; UsageError D107 where the format does not apply."""
    if not fleet.contained:
        raise UsageError(
            "D107",
            f"Profile {profile.name} runs as processes here; --format {how} is for containers.",
            fix="dsv41 plan --profile local --json",
        )
    return "".join(FORMATS[how](made, profile, fleet))


def _docker(made: Plan, profile: Profile, fleet: Fleet) -> Iterator[str]:
    return _commands("docker", made, profile, fleet)


def _podman(made: Plan, profile: Profile, fleet: Fleet) -> Iterator[str]:
    return _commands("podman", made, profile, fleet)


def _commands(program: str, made: Plan, profile: Profile, fleet: Fleet) -> Iterator[str]:
    """Two comment lines and one command a rank, workers first: the head waits for them."""
    if made.ranks[0].image is None:
        yield f"# put the image's reference for {PLACEHOLDER}, or give --image REF@sha256:...\n"
    for rank in (*made.ranks[1:], made.ranks[0]):
        place = f"rank {rank.rank} of {len(made.ranks)} ({rank.role})"
        yield f"# {rank.node}: {place}, profile {profile.name}\n"
        yield f"# {made.digest}, fingerprint {rank.fingerprint}\n"
        if rank.rank == 0 and fleet.api_key_file:
            yield f"# the keys come by the mounted file {fleet.api_key_file}, never by argv\n"
        sudo = ["sudo"] if fleet.nodes[rank.rank].sudo else []
        yield shlex.join([*sudo, *containers.detached(program, rank)]) + "\n"


# The rank requires its rows: were their unit to fail once, the rank's own start would fail with it,
# for good. RestartMode=direct (systemd 254; Ubuntu 24.04 has 255) tries again without a failure.
_UNITS = {
    "dsv41-rows.service": """\
[Unit]
Description=dsv41: Engram rows of rank {rank} are packed
After=network-online.target remote-fs.target
Wants=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/env dsv41 pack --plan {plan} --rank {rank}
Restart=on-failure
RestartMode=direct
RestartSec=30
RestartPreventExitStatus=2 5
TimeoutStartSec=1h
""",
    "dsv41-rank.service": """\
[Unit]
Description=dsv41: rank {rank} of {size} ({role}), profile {profile}
Requires=dsv41-rows.service
After=dsv41-rows.service network-online.target
StartLimitIntervalSec=0
[Service]
Type=exec
ExecStart=/usr/bin/env dsv41 rank exec --plan {plan} --rank {rank}
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2 5
TimeoutStartSec=45min
TimeoutStopSec=60
LimitMEMLOCK=infinity
OOMScoreAdjust=500
ManagedOOMMemoryPressure=auto
KillMode=mixed
[Install]
WantedBy=dsv41.target
""",
    "dsv41.target": """\
[Unit]
Description=dsv41: {profile}, rank {rank} of {size}
Requires=dsv41-rank.service
After=dsv41-rank.service
[Install]
WantedBy=multi-user.target
""",
}


def units(made: Plan, rank: Rank, fleet: Fleet) -> dict[str, str]:
    """The unit files of one node, by name; all of them run the same commands as ssh does."""
    values: dict[str, Any] = {
        "rank": rank.rank,
        "role": rank.role,
        "size": len(made.ranks),
        "profile": made.profile,
        "plan": fleet.plan_file,
    }
    return {name: text.format(**values) for name, text in _UNITS.items()}


def _systemd(made: Plan, _profile: Profile, fleet: Fleet) -> Iterator[str]:
    for rank in made.ranks:
        for name, text in units(made, rank, fleet).items():
            yield f"# {rank.node}: /etc/systemd/system/{name}\n{text}\n"


def _recipe(made: Plan, profile: Profile, fleet: Fleet) -> Iterator[str]:
    """The fields of sparkring-recipe/v1, for the cycle."""
    if profile.engine != "vllm" or fleet.topology != "ring":
        raise UsageError(
            "D107",
            f"--format recipe is for the cycle on vLLM; profile {profile.name} is "
            f"{profile.engine} on a {fleet.topology}.",
            fix="dsv41 plan --profile tp4-cycle --fleet fleet.toml --format recipe",
        )
    from dsv41.recipe import document  # noqa: PLC0415 - only this format needs it

    yield json.dumps(document(made, profile, fleet), indent=2) + "\n"


FORMATS: dict[str, Callable[[Plan, Profile, Fleet], Iterator[str]]] = {
    "docker": _docker,
    "podman": _podman,
    "systemd": _systemd,
    "recipe": _recipe,
}
