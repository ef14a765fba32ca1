"""A Profile on a Fleet with Pins makes a Plan: ranks, steps and a digest, as canonical JSON.

Pure: the same input gives the same bytes. ssh, systemd and the local profile carry out the
same Plan through `dsv41 rank exec --plan FILE --rank N`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dsv41 import __version__
from dsv41.engines import Launch, renderer
from dsv41.errors import UsageError
from dsv41.fleet import Fleet
from dsv41.profile import Profile

SCHEMA = "dsv41.plan/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One line of a rank's memory ledger, in bytes."""

    item: str
    bytes: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """What one node runs."""

    rank: int
    node: str
    role: str
    image: str | None
    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[str, ...]
    options: tuple[str, ...]
    ledger: tuple[Item, ...]
    fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One command of a Plan and what it does to the node: offline, reads hosts, changes hosts."""

    id: str
    node: str
    effect: str
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything that will run, on every node, in order."""

    profile: str
    engine: str
    url: str
    state_dir: str
    api_key_file: str | None
    ranks: tuple[Rank, ...]
    steps: tuple[Step, ...]
    omitted: tuple[Mapping[str, str], ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON without the digest itself."""
        return "sha256:" + hashlib.sha256(_canonical(asdict(self)).encode()).hexdigest()

    def to_json(self) -> str:
        """The canonical document: sorted keys, no spaces, one newline at the end."""
        return _canonical({"schema": SCHEMA, "digest": self.digest, **asdict(self)}) + "\n"


def plan(profile: Profile, fleet: Fleet, pins: Mapping[str, str]) -> Plan:
    """The Plan of a profile on a fleet.

    `pins` maps a profile's name to the digest of its image; a profile that is not there
    gets null, which `serve` refuses for engines that run in a container.
    """
    if len(fleet.nodes) != profile["tp"]:
        raise UsageError(
            "D096",
            f"Profile {profile.name} has {profile['tp']} ranks; the fleet has {len(fleet.nodes)} nodes.",
            fix="give the fleet one node per rank",
        )
    render = renderer(profile.engine)
    image = pins.get(profile.name)
    launches = [render(profile, fleet, rank) for rank in range(len(fleet.nodes))]
    ranks = tuple(
        Rank(
            rank=rank,
            node=node.name,
            role="worker" if rank else "head",
            image=image,
            argv=launch.argv,
            env=dict(launch.env),
            mounts=launch.mounts,
            options=launch.options,
            ledger=(),
            fingerprint=fingerprint(profile, launch, image=image),
        )
        for rank, (node, launch) in enumerate(zip(fleet.nodes, launches, strict=True))
    )
    return Plan(
        profile=profile.name,
        engine=profile.engine,
        url=f"http://{fleet.api_host}:{fleet.api_port}/v1",
        state_dir=fleet.state_dir,
        api_key_file=fleet.api_key_file,
        ranks=ranks,
        steps=_steps(profile, fleet),
        omitted=tuple(
            {"knob": name, "reason": knob.why} for name, knob in sorted(profile.knobs.items()) if knob.omitted
        ),
    )


def fingerprint(profile: Profile, launch: Launch, *, image: str | None) -> str:
    """What must be equal on all ranks: version, image, profile, command and environment.

    Flags that a rank has for itself (`Launch.own_flags`) do not count.
    """
    shared = {
        "version": __version__,
        "image": image,
        "profile": {name: knob.value for name, knob in profile.knobs.items()},
        "argv": _without(launch.argv, launch.own_flags),
        "env": {k: v for k, v in launch.env.items() if k not in launch.own_flags},
    }
    return hashlib.sha256(_canonical(shared).encode()).hexdigest()[:16]


def parse(text: str, *, where: str) -> Plan:
    """A Plan from its JSON; refuses another schema (D097) and a digest that does not match (D098)."""
    try:
        data: dict[str, Any] = json.loads(text)
        if data.pop("schema") != SCHEMA:
            raise KeyError("schema")
        digest = data.pop("digest")
        ranks = [Rank(**_tuples(r, ledger=tuple(Item(**i) for i in r["ledger"]))) for r in data["ranks"]]
        steps = [Step(**_tuples(s)) for s in data["steps"]]
        found = Plan(**_tuples(data, ranks=tuple(ranks), steps=tuple(steps)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError("D097", f"{where} is not a {SCHEMA} document ({error!r}).") from error
    if found.digest != digest:
        raise UsageError(
            "D098",
            f"{where} was changed after it was made: its digest is {found.digest}, it says {digest}.",
            fix="make the Plan again with dsv41 plan or dsv41 serve",
        )
    return found


def _tuples(data: Mapping[str, Any], **parsed: Any) -> dict[str, Any]:
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return {**plain, **parsed}


def _without(argv: tuple[str, ...], own_flags: frozenset[str]) -> list[str]:
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word in own_flags:
            next(words, None)
        else:
            kept.append(word)
    return kept


def _steps(profile: Profile, fleet: Fleet) -> tuple[Step, ...]:
    """Rows first; then workers before the head, which waits for them."""
    state = fleet.state_dir
    pack = ("dsv41", "pack", "--profile", profile.name, "--tp", str(profile["tp"]), "--state-dir", state)
    ranks = [*range(1, len(fleet.nodes)), 0]
    return (
        Step(id="pack", node=fleet.nodes[0].name, effect="changes hosts", command=pack),
        *(
            Step(
                id=f"rank-{rank}",
                node=fleet.nodes[rank].name,
                effect="changes hosts",
                command=("dsv41", "rank", "exec", "--plan", fleet.plan_file, "--rank", str(rank)),
            )
            for rank in ranks
        ),
    )


def _canonical(data: object) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
