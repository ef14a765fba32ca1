"""`dsv41 plan`: what would run on every node, and whether it fits; no machine is touched."""
# ruff: noqa: PLC0415 - `plan` answers within 0.3 s of `--version`: each branch imports its own

from __future__ import annotations

import hashlib
import shlex
import shutil
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv41 import fleet as fleets
from dsv41 import plan as plans
from dsv41 import profile
from dsv41.cli import defaults, options
from dsv41.cli.parser import DEFAULT_STATE_DIR
from dsv41.cli.talk import Talk
from dsv41.engines import trees
from dsv41.errors import CheckFailed, UsageError
from dsv41.finding import Finding, worst


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A Plan and what it was made of."""

    profile: profile.Profile
    fleet: fleets.Fleet
    plan: plans.Plan


def plan(args: Namespace, talk: Talk) -> int:
    """Print the Plan, or what of it was asked for."""
    options.refuse_ignored(args)
    if args.example is not None:
        return _example(args, talk)
    defaults.of_profile(args, "plan")
    made = make(args)
    if args.diff is not None:
        return _diff(args, made, talk)
    if args.format is not None:
        from dsv41 import formats

        talk.put(formats.render(args.format, made.plan, made.profile, made.fleet).rstrip("\n"))
    elif args.draw is not None:
        talk.put(_picture(args.draw, made).rstrip("\n"))
    elif args.json:
        why = plans.reasons(made.profile) if args.why else None
        talk.put(made.plan.to_json(why=why).rstrip("\n"))
    else:
        from dsv41.cli import plantext

        width = shutil.get_terminal_size().columns
        for line in plantext.lines(made.profile, made.fleet, made.plan, why=args.why, width=width):
            talk.put(line)
    return _check(made, talk) if args.check else 0


def _example(args: Namespace, talk: Talk) -> int:
    from dsv41 import example

    text = example.fleet_text(profile.load(args.example))
    if args.json:
        talk.document("fleet-example", profile=args.example, text=text)
    else:
        talk.put(text.rstrip("\n"))
    return 0


def make(args: Namespace) -> Made:
    """The Plan that the flags ask for, and what it is made of."""
    chosen = _profile(args, args.profile)
    fleet = _fleet(args, chosen)
    return Made(profile=chosen, fleet=fleet, plan=_plan(args, chosen, fleet))


def _plan(args: Namespace, chosen: profile.Profile, fleet: fleets.Fleet) -> plans.Plan:
    return plans.plan(chosen, fleet, _images(args, chosen), tables=_digests(fleet))


def _images(args: Namespace, chosen: profile.Profile) -> dict[str, str]:
    """The image of the profile: --image, else by the flake's digest; none where neither is known.

    On loopback the local engine runs as processes, in no image.
    """
    if chosen.engine == "local" and args.fleet is None:
        return {}
    if args.image is not None:
        return {chosen.name: options.image(args.image)}
    image = defaults.known_image(chosen)
    return {} if image is None else {chosen.name: image}


def _profile(args: Namespace, name: str) -> profile.Profile:
    """The profile with the values of --tree, --tp, --set, --eager and --text-only."""
    chosen = profile.load(name)
    if chosen.engine == "local":
        options.refuse_for_local(args)
    if args.tree is not None:
        trees.tree(args.tree, engine=chosen.engine, where="--tree")
        chosen = chosen.on_tree(args.tree)
    chosen = chosen.with_values("--tp", tp=args.tp)
    for setting in args.set:
        key, _, text = setting.partition("=")
        chosen = chosen.with_values(f"--set {key}", **{key: options.value(setting, text)})
    chosen = chosen.with_values("--eager", eager=args.eager or None)
    return chosen.with_values("--text-only", text_only=args.text_only or None)


def _fleet(args: Namespace, chosen: profile.Profile) -> fleets.Fleet:
    """The fleet file with the values of the flags; profile local has a fleet of its own."""
    if args.fleet is None:
        return local_fleet(args, chosen)
    found = fleets.load(args.fleet)
    nodes = found.nodes
    if args.reserve_gib is not None:
        options.reserve(args.reserve_gib)
        nodes = tuple(replace(node, reserve_gib=args.reserve_gib) for node in nodes)
    given: dict[str, Any] = {
        "api_port": args.port if args.port is None else options.port(args.port),
        "state_dir": args.state_dir and str(args.state_dir.absolute()),
        "api_key_file": args.api_key_file and str(args.api_key_file),
    }
    return replace(found, nodes=nodes, **{k: v for k, v in given.items() if v is not None})


def local_port(args: Namespace) -> int:
    """Where profile local is served: --port, else 8888."""
    return 8888 if args.port is None else options.port(args.port)


def local_fleet(
    args: Namespace, chosen: profile.Profile, *, master_port: int = 20000
) -> fleets.Fleet:
    """The fleet of profile local on this machine; UsageError D002 for any other profile."""
    named = shlex.quote(args.profile)
    defaults.require_local(
        chosen, fix=f"dsv41 plan --example {named} > fleet.toml, then --fleet fleet.toml"
    )
    key_file = args.api_key_file and str(args.api_key_file.absolute())
    return fleets.loopback(
        tp=chosen.integer("tp"),
        state_dir=str((args.state_dir or DEFAULT_STATE_DIR).absolute()),
        port=local_port(args),
        master_port=master_port,
        api_key_file=key_file,
    )


def _digests(fleet: fleets.Fleet) -> dict[str, str]:
    """SHA-256 of the tables that the fleet names; UsageError D108 when one cannot be read."""
    found = {}
    for key in plans.TABLES:
        path = getattr(fleet, key)
        if path is None:
            continue
        try:
            found[key] = "sha256:" + hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError as error:
            says = f"{key} {path} cannot be read: {error.strerror}."
            fix = f"put the table there, or remove {key} from the fleet file"
            raise UsageError("D108", says, fix=fix) from error
    return found


def _diff(args: Namespace, made: Made, talk: Talk) -> int:
    """From another Plan (a .json file) or profile to this one."""
    other = args.diff
    if other.endswith(".json"):
        try:
            before = plans.parse(Path(other).read_text(encoding="utf-8"), where=other)
        except OSError as error:
            says = f"{other} cannot be read: {error.strerror}."
            fix = f"make one: dsv41 plan ... --json > {other}"
            raise UsageError("D097", says, fix=fix) from error
    else:
        chosen = profile.load(other).with_values("--tp", tp=args.tp)
        before = _plan(args, chosen, _fleet(args, chosen))
    from dsv41 import compare

    found = compare.changes(before, made.plan)
    if args.json:
        talk.document(
            "plan-diff",
            before=before.digest,
            after=made.plan.digest,
            changes=compare.document(found),
        )
        return 0
    for change in found:
        talk.put(str(change))
    if not found:
        talk.say("nothing differs")
    return 0


def _picture(which: str, made: Made) -> str:
    if made.plan.budget is None:
        raise UsageError(
            "D107",
            f"Profile {made.profile.name} has neither a memory ledger nor cables to draw.",
            fix="dsv41 plan --profile tp3 --fleet fleet.toml --draw " + which,
        )
    from dsv41 import draw
    from dsv41.cli import pictures

    if which == "memory":
        title = f"{made.profile.name}: memory of each rank"
        return draw.bars_svg(pictures.bars(made.plan, made.fleet), title=title)
    if which == "map":
        return draw.cells_svg(pictures.grid(made.profile, made.fleet))
    names, found = pictures.cabling(made.fleet)
    return draw.cabling_svg(names, found, title=f"{made.fleet.topology} of {len(names)} nodes")


def _check(made: Made, talk: Talk) -> int:
    """Look at the nodes that are this machine; 1 when something is missing."""
    from dsv41 import presence

    found: list[Finding] = []
    here = [(rank, n) for rank, n in enumerate(made.fleet.nodes) if n.ssh == "local"]
    for rank, node in here:
        found += presence.on_node(made.profile, node, _read)
        if rank == 0 and made.fleet.api_key_file:
            from dsv41.local.http import keys

            keys.read_keys(Path(made.fleet.api_key_file))
    for finding in found:
        talk.say(f"{finding.code} {finding.node}: {finding.says}\n  fix: {finding.fix}")
    talk.say(_looked(len(here), len(made.fleet.nodes)))
    return CheckFailed.exit_status if found and worst(found) == "fail" else 0


def _looked(here: int, nodes: int) -> str:
    if here:
        return f'looked at {here} of {nodes} nodes: those with ssh = "local"'
    return (
        f'warning: --check looked at no node: none of {nodes} has ssh = "local"; '
        "dsv41 doctor --fleet F --profile P looks at all of them"
    )


def _read(name: str) -> bytes | None:
    """A file's bytes; of a shard only that it is there and not empty."""
    path = Path(name)
    try:
        if path.suffix == ".safetensors":
            return b"" if path.stat().st_size else None
        return path.read_bytes()
    except OSError:
        return None
