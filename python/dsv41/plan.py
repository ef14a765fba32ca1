"""A Profile on a Fleet with Pins makes a Plan: ranks, steps and a digest, as canonical JSON.

Pure: the same input gives the same bytes. ssh, systemd and the local profile carry out the
same Plan through `dsv41 rank exec --plan FILE --rank N`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dsv41 import __version__, budget, example, presence
from dsv41.budget import Item, gate
from dsv41.engines import Launch, checks, container, renderer, wiring
from dsv41.engines.trees import tree
from dsv41.errors import UsageError
from dsv41.finding import Finding
from dsv41.fleet import Fleet
from dsv41.profile import Profile
from dsv41.steps import Step, steps_of

__all__ = ["Item", "Plan", "Rank", "Step", "fingerprint", "parse", "plan"]

SCHEMA = "dsv41.plan/1"
TABLES = ("sps_table", "sts_table")
LOCAL = "local"
_OPTIONAL = ("budget", "notes", "control", "version", "tables")  # left out where there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """What one node runs: `container` is podman or docker, null for a process of the machine."""

    rank: int
    node: str
    role: str
    image: str | None
    container: str | None
    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[str, ...]
    options: tuple[str, ...]
    ledger: tuple[Item, ...]
    fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything that will run, on every node, in order.

    `budget` is the verdict on the fullest node: verdict, node, memory and free bytes, pool tokens.
    `control` is where rank 0 meets the others (address:port; none on one machine), `version` the
    maker's, `tables` the digest of each table by its path in the container.
    """

    profile: str
    engine: str
    url: str
    state_dir: str
    api_key_file: str | None
    ranks: tuple[Rank, ...]
    steps: tuple[Step, ...]
    omitted: tuple[Mapping[str, str], ...]
    budget: Mapping[str, Any] | None = None
    notes: tuple[Mapping[str, Any], ...] = ()
    control: str | None = None
    version: str | None = None
    tables: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON without the digest itself."""
        return "sha256:" + hashlib.sha256(canonical(self._content()).encode()).hexdigest()

    def to_json(self, *, why: Mapping[str, Any] | None = None) -> str:
        """The canonical document: sorted keys, no spaces, one newline at the end.

        `why` (`reasons`) goes with it for people; it is no part of what runs, nor of the digest.
        """
        beside = {} if why is None else {"why": why}
        whole = {"schema": SCHEMA, "digest": self.digest, **self._content(), **beside}
        return canonical(whole) + "\n"

    def _content(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v or k not in _OPTIONAL}


def plan(
    profile: Profile,
    fleet: Fleet,
    pins: Mapping[str, str],
    *,
    tables: Mapping[str, str] | None = None,
) -> Plan:
    """The Plan of a profile on a fleet.

    `pins` maps a profile's name to its image; a profile that is not there gets null, which `serve`
    refuses for engines that run in a container. `tables` has the digests of the tables that the
    fleet names. Raises UsageError D096 and D103 to D105 for what does not go together, D108 for a
    table without a digest, Unsafe D106 for what is never served and D120 for what does not fit.
    """
    if len(fleet.nodes) != profile["tp"]:
        raise UsageError(
            "D096",
            f"Profile {profile.name} has {profile['tp']} ranks; the fleet has {len(fleet.nodes)} "
            "nodes.",
            fix=example.of_another_size(profile, fleet),
        )
    notes = _checked(profile, fleet)
    digests = _digests(fleet, tables or {})
    image = pins.get(profile.name)
    ledgers = [budget.ledger(profile, node) for node in fleet.nodes]
    verdict = gate.verdict(profile, fleet, ledgers)
    render = renderer(profile.engine)
    launches = [
        _with_cache(render(profile, fleet, rank), fleet, image=image)
        for rank in range(len(fleet.nodes))
    ]
    ranks = tuple(
        Rank(
            rank=rank,
            node=node.name,
            role="worker" if rank else "head",
            image=image,
            container=fleet.container_of(rank) if fleet.contained else None,
            argv=launch.argv,
            env=dict(launch.env),
            mounts=launch.mounts,
            options=launch.options,
            ledger=found.items if found else (),
            fingerprint=fingerprint(profile, launch, image=image, tables=digests),
        )
        for rank, (node, launch, found) in enumerate(
            zip(fleet.nodes, launches, ledgers, strict=True)
        )
    )
    return Plan(
        profile=profile.name,
        engine=profile.engine,
        url=_url(fleet),
        state_dir=fleet.state_dir,
        api_key_file=fleet.api_key_file,
        ranks=ranks,
        steps=steps_of(profile, fleet, image=image),
        omitted=tuple(
            {"knob": name, "reason": knob.why}
            for name, knob in sorted(profile.knobs.items())
            if knob.omitted
        ),
        budget=verdict,
        notes=tuple(note.document() for note in (*notes, *gate.notes(verdict))),
        **_for_nodes(fleet, digests),
    )


def _for_nodes(fleet: Fleet, digests: Mapping[str, str]) -> dict[str, Any]:
    """What only ranks on machines of their own must know of each other."""
    if not fleet.contained:
        return {}
    control = f"{fleet.nodes[0].address}:{fleet.control_port}"
    tables = {container.TABLES[key]: digest for key, digest in sorted(digests.items())}
    return {"control": control, "version": __version__, "tables": tables}


def reasons(profile: Profile) -> dict[str, dict[str, Any]]:
    """Each knob that is set: its value, the file or flag that it is from, and its reason."""
    return {
        name: {"value": knob.value, "source": knob.source, "why": knob.why}
        for name, knob in profile.knobs.items()
        if not knob.omitted
    }


def _checked(profile: Profile, fleet: Fleet) -> tuple[Finding, ...]:
    """Refuse what does not go together; give what deserves a word."""
    if not fleet.contained:
        if profile.engine == LOCAL:
            return ()
        raise UsageError(
            "D105",
            f"Profile {profile.name} of engine {profile.engine} does not run on a fleet of "
            f"topology {fleet.topology}.",
            fix="profile local runs on this machine, without --fleet; all others need one",
        )
    presence.no_placeholders(fleet)
    wiring.check_folders(profile, fleet)
    if profile.engine == LOCAL:
        return ()
    build = tree(profile.tree, engine=profile.engine, where=profile.where)
    checks.capabilities(profile, build)
    checks.refused(profile)
    checks.contradictions(profile)
    wiring.check(profile, fleet)
    return wiring.advice(profile, fleet, build)


def _digests(fleet: Fleet, given: Mapping[str, str]) -> dict[str, str]:
    named = [key for key in TABLES if getattr(fleet, key)]
    for key in named:
        if key not in given:
            raise UsageError(
                "D108",
                f"The fleet names {key} {getattr(fleet, key)}, and its digest is not known.",
                fix="make the Plan where the file lies",
            )
    return {key: given[key] for key in named}


def _with_cache(launch: Launch, fleet: Fleet, *, image: str | None) -> Launch:
    """The launch with its cache folder: one a combination of image and engine environment."""
    if launch.cache is None:
        return launch
    shared = {k: v for k, v in launch.env.items() if k not in launch.own_flags}
    key = hashlib.sha256(canonical({"image": image, "env": shared}).encode()).hexdigest()[:16]
    return replace(launch, mounts=(*launch.mounts, f"{fleet.cache_dir}/{key}:{launch.cache}"))


def _url(fleet: Fleet) -> str:
    everywhere = fleet.api_host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    host = fleet.nodes[0].address if everywhere else fleet.api_host
    return f"http://{host}:{fleet.api_port}/v1"


def fingerprint(
    profile: Profile,
    launch: Launch,
    *,
    image: str | None,
    tables: Mapping[str, str] | None = None,
) -> str:
    """What must be equal on all ranks: version, image, profile, tables, command and environment.

    Flags that a rank has for itself (`Launch.own_flags`, `own_switches`) do not count.
    """
    shared = {
        "version": __version__,
        "image": image,
        "profile": {name: knob.value for name, knob in profile.knobs.items()},
        "argv": _without(launch),
        "env": {k: v for k, v in launch.env.items() if k not in launch.own_flags},
    }
    if tables:
        shared["tables"] = dict(tables)
    return hashlib.sha256(canonical(shared).encode()).hexdigest()[:16]


def parse(text: str, *, where: str) -> Plan:
    """A Plan from its JSON; refuses another schema (D097) and a digest that is wrong (D098)."""
    try:
        data = _of_schema(json.loads(text))
        digest = data.pop("digest")
        ranks = [
            Rank(**_tuples(r, ledger=tuple(Item(**i) for i in r["ledger"]))) for r in data["ranks"]
        ]
        steps = [Step(**_tuples(s)) for s in data["steps"]]
        found = Plan(**_tuples(data, ranks=tuple(ranks), steps=tuple(steps)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            "D097",
            f"{where} is not a {SCHEMA} document ({error!r}).",
            fix="make one: dsv41 plan ... --json > plan.json",
        ) from error
    if found.digest != digest:
        raise UsageError(
            "D098",
            f"{where} was changed after it was made: its digest is {found.digest}, it says "
            f"{digest}.",
            fix="make the Plan again with dsv41 plan or dsv41 serve",
        )
    return found


def _of_schema(data: dict[str, Any]) -> dict[str, Any]:
    if data.pop("schema") != SCHEMA:
        raise KeyError("schema")
    return {key: value for key, value in data.items() if key != "why"}


def _tuples(data: Mapping[str, Any], **parsed: Any) -> dict[str, Any]:
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return {**plain, **parsed}


def _without(launch: Launch) -> list[str]:
    kept: list[str] = []
    words = iter(launch.argv)
    for word in words:
        if word in launch.own_flags:
            next(words, None)
        elif word not in launch.own_switches:
            kept.append(word)
    return kept


def canonical(data: object) -> str:
    """JSON with sorted keys and no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
