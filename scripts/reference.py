"""Write the reference pages that are made from data, and the pins that Nix reads.

tests/test_reference.py and tests/test_pins.py hold the committed files to this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsv41 import changes, errors, example, fleet, pins, profile
from dsv41.engines import served as recipes
from dsv41.engines.trees import ABSENT, TREES
from dsv41.knobs import KNOBS, REQUIRED

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"

KEYS = {
    "topology": "How the nodes are cabled: triangle, switch or ring.",
    "nodes": "One `[[nodes]]` table a rank, in rank order; the first is the head.",
    "container": "podman or docker; a node may have its own.",
    "api_host": "Where the API listens on the head.",
    "api_port": "Its port.",
    "master_port": "Where the ranks meet, on the head's address.",
    "control_port": "Where the ranks watch each other.",
    "state_dir": "Plan, lock, logs and tables, on every node.",
    "cache_dir": "Compiled kernels: one folder an image and engine environment.",
    "api_key_file": "On the head: one key a line, mode 0600 or stricter. Absent is no key.",
    "nfs_server": "The node that exports the checkpoint, by an address that all others reach.",
    "sps_table": "A cost table of the draft scheduler, where the Plan is made; its digest counts.",
    "sts_table": "A confidence table of the drafts, likewise.",
    "name": "The node's name in every line and file.",
    "ssh": "Where ssh goes, `user@host`, or `local`.",
    "address": "Management address: API, control, rendezvous. Never loopback or link-local.",
    "hca": "RDMA devices of this node. Never copied from another node.",
    "fabric": "`fabric[i]` is the address on `hca[i]`, with its prefix length.",
    "socket_ifname": "The interface that holds `address`.",
    "model_dir": "The checkpoint on this node, or a mount of it.",
    "rows_dir": "The packed Engram rows of this node's rank.",
    "sudo": "Whether ssh's user needs sudo for containers.",
    "gid_index": "Pins NCCL_IB_GID_INDEX. Absent is right almost everywhere.",
    "nccl_library": "A libnccl on this node that is mounted over the image's own.",
    "memory_gib": "MemTotal, where it is less than a Spark's.",
    "reserve_gib": "What other programs on this node need.",
}

FLEET = """\
# Fleet files

A fleet file says where a profile is served. `dsv41 plan --example tp3` prints one to start from.
Unknown keys, missing ones and wrong types are errors (D101), contradictions too (D102).

"""
CABLES = """\
Behind a switch every subnet has all nodes in it. In a triangle and a ring every cable is a subnet
of its own with two ends; a ring joins each rank to the next and the last to the first.

## Example

"""
ERRORS = """\
# Errors and exit codes

Every error has a code, one sentence and the step that mends it. `dsv41 explain CODE` says what
stands here.

"""
PROFILES = """\
# Profiles

A profile says what is served: knobs, each with the reason for its value, or with the reason why it
is omitted. Figures in them are of the source that they name, on its own stack: MIA is MiaAI-Lab's
recipe, P numbers are [user reports](reports.md). Your own profile extends one of them and holds
only what differs; one that extends none has every knob of its engine.

```toml
name = "mine"
extends = "tp4"
says = "tp4 with eight streams"
[knobs]
slots = { value = 8, why = "longer answers for fewer people" }
graph_slots = { value = 8, why = "at most slots" }
```

It is named by its path: `dsv41 plan --profile ./mine.toml --fleet fleet.toml`. Without a file,
`dsv41 plan --profile tp4 --fleet fleet.toml --set slots=8 --set graph_slots=8` tries the same.
Knobs with a star cannot be omitted.

"""
LICENSES = """\
# Licenses of what is fetched

No third-party code is in this tree. What a build fetches is pinned by commit and hash in
`sources.manifest` (single files) and `flake.lock` (inputs of the flake); `dsv41 pins` lists it,
[NOTICE](../../NOTICE) credits it. The Python packages of `poetry.lock` carry their licenses in
their own metadata. The licenses are those that the sources state themselves.

Images that hold files of several licenses are built where they are used. dsv41 publishes none:
NVIDIA's libraries in them are proprietary, and the recipe's patches are AGPL-3.0-or-later.

"""
TREES_TEXT = """\
## Engine trees

What each engine build does by itself (flag), what our plugin brings (adapter), what is absent
(empty). A knob that asks for something absent is refused (D103).

"""


ADAPTERS = """\
# Adapters

What the engine plugin changes in SGLang and vLLM, one adapter a change. Each has a switch, an
environment variable; unset or 0 is off, and with all of them off the plugin changes nothing. `dsv41
plan` writes the variables; `dsv41 explain adapters` prints this page.

How it works: [engine-plugin](../explain/engine-plugin.md). How to write one:
[new-adapter](../howto/new-adapter.md).

Each profile is listed with its own engine tree first, then every tree on which it differs. A key
file is the fleet's, so `api_keys` stands as with one.

"""


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def fleet_page() -> Iterator[str]:
    """Every key of a fleet file, and an example for each topology."""
    yield from FLEET.splitlines()
    for title, kind in (("The file", fleet.Fleet), ("Each node", fleet.Node)):
        yield f"## {title}"
        yield ""
        fields = dataclasses.fields(kind)
        yield from _table(("key", "default", "what"), (_key(field) for field in fields))
        yield ""
    yield from CABLES.splitlines()
    yield "```toml"
    yield from example.fleet_text(profile.load("tp3")).splitlines()
    yield "```"


def _key(field: dataclasses.Field[Any]) -> tuple[str, str, str]:
    needed = field.default is dataclasses.MISSING or field.name in (
        "hca",
        "fabric",
        "socket_ifname",
    )
    default = "none" if field.default is None else repr(field.default).lower()
    shown = "required" if needed else f"`{default}`" if default != "none" else "none"
    return f"`{field.name}`", shown.replace("'", '"'), KEYS[field.name]


def errors_page() -> Iterator[str]:
    """Every code."""
    yield from ERRORS.splitlines()
    kinds: list[type[errors.Error]] = [
        kind for kind in errors.Error.__subclasses__() if kind.__module__ == errors.__name__
    ]
    meanings = ((str(k.exit_status), (k.__doc__ or "").splitlines()[0]) for k in kinds)
    rows = [("0", "Done."), *meanings, ("130", "Interrupted.")]
    yield from _table(("exit", "meaning"), iter(rows))
    yield ""
    for entry in errors.explanations().values():
        yield f"## {entry.code}: {entry.title}"
        yield ""
        yield from entry.text.splitlines()
        yield ""


def profiles_page() -> Iterator[str]:
    """How a profile file is written, the trees, and every knob of every shipped profile."""
    yield from PROFILES.splitlines()
    yield from _trees()
    for name in profile.names():
        yield from _profile(profile.load(name))


def _trees() -> Iterator[str]:
    yield from TREES_TEXT.splitlines()
    trees = [tree for tree in TREES.values() if tree.engine != "local"]
    wanted = {rule.needs for rules in KNOBS.values() for rule in rules.values() if rule.needs}
    named = sorted(wanted.union(*(tree.capabilities for tree in trees)))
    rows = ((name, *(_can(tree.can(name)) for tree in trees)) for name in named)
    yield from _table(("capability", *(tree.name for tree in trees)), rows)
    yield ""


def _can(how: str) -> str:
    return "" if how == ABSENT else how


def _profile(shipped: profile.Profile) -> Iterator[str]:
    yield f"## {shipped.name}"
    yield ""
    yield f"{shipped.says[0].upper()}{shipped.says[1:]}. Engine tree `{shipped.tree}`."
    yield ""
    rules = KNOBS[shipped.engine]
    served = ((n, k) for n, k in sorted(shipped.knobs.items()) if not k.omitted)
    rows = (
        (
            f"`{name}`" + (" *" if name in REQUIRED[shipped.engine] else ""),
            f"`{knob.value}`",
            rules[name].allowed(),
            knob.why,
        )
        for name, knob in served
    )
    yield from _table(("knob", "value", "allowed", "why"), rows)
    yield ""
    if found := recipes.served(shipped):
        yield f"Adapters of the recipe: {recipes.counts(found)}."
        yield ""
        yield from _table(("adapter", "here", "knob"), ((s.name, s.state, s.words) for s in found))
        yield ""
    omitted = [(f"`{n}`", k.why) for n, k in sorted(shipped.knobs.items()) if k.omitted]
    if omitted:
        yield "Omitted:"
        yield ""
        yield from _table(("knob", "reason"), iter(omitted))
        yield ""


def read_pins() -> tuple[pins.Pin, ...]:
    """The pins of this checkout."""
    return pins.read((ROOT / pins.MANIFEST).read_text(), (ROOT / pins.LOCK).read_text())


def licenses_page() -> Iterator[str]:
    """Every pinned source under its license."""
    yield from LICENSES.splitlines()
    found = read_pins()
    for spdx in sorted({pin.license for pin in found}):
        yield f"## {spdx}"
        yield ""
        rows = (
            (f"`{pin.name}`", f"{pin.repository} at `{pin.commit[:12]}`", _whence(pin))
            for pin in found
            if pin.license == spdx
        )
        yield from _table(("source", "repository", "pinned in"), rows)
        yield ""


def _whence(pin: pins.Pin) -> str:
    files = (pins.MANIFEST, pin.sha256), (pins.LOCK, pin.is_input)
    return ", ".join(f"`{name}`" for name, there in files if there)


def adapters_page() -> Iterator[str]:
    """Every adapter."""
    yield from ADAPTERS.splitlines()
    for change in changes.described():
        yield from _adapter(change)


def _adapter(change: dict[str, Any]) -> Iterator[str]:
    yield f"## {change['name']} ({change['engine']})"
    yield ""
    yield change["says"]
    yield ""
    yield f"Switch `{change['env']}`, unset is {change['default']}."
    for label, key in changes.SECTIONS.items():
        yield ""
        yield f"**{label}:** " + change[key].replace("\n", "\n\n")
    yield ""
    yield from (f"- {text}" for text in changes.settings(change))
    yield ""
    rows = (
        (f"`{hook['target']}`", hook["kind"] + (", where it exists" * hook["optional"]))
        for hook in change["hooks"]
    )
    yield from _table(("hooked in the engine", "how"), rows)
    yield ""


PAGES = {
    "errors.md": errors_page,
    "fleet.md": fleet_page,
    "licenses.md": licenses_page,
    "profiles.md": profiles_page,
    "adapters.md": adapters_page,
}


def page(name: str) -> str:
    """The text of one page."""
    return "\n".join(PAGES[name]()).rstrip() + "\n"


def main() -> None:
    """Write every page, and the pins for Nix."""
    (ROOT / pins.FOR_NIX).write_text(pins.for_nix(read_pins()), encoding="utf-8")
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (REFERENCE / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
