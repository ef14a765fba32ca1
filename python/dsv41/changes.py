"""What the engine plugin changes: each adapter's own words, its switch, and who turns it on.

For `dsv41 explain adapters` and docs/reference/adapters.md. Whether a shipped profile turns an
adapter on is read from the environment that the renderer makes of it, not from a second table.
"""

from __future__ import annotations

import pkgutil
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from dsv41 import example, fleet, profile
from dsv41.adapters.adapter import Adapter, is_on
from dsv41.adapters.table import TABLES
from dsv41.engines import renderer
from dsv41.engines.trees import TREES
from dsv41.switches import SWITCHES

SECTIONS = {
    "What": "what",
    "Why": "why",
    "Effect": "effect",
    "Off": "off",
    "Obsolete when": "obsolete_when",
}
ON, OFF, NOT_NEEDED = "on", "off", "not needed"


def described() -> list[dict[str, Any]]:
    """One document an adapter, in install order; all its texts are one paragraph each, or more.

    Keys: name, engine, switch, env, default (an unset variable is always off), says, the values of
    SECTIONS, trees, hooks [{target, kind, optional}], profiles [{profile, tree, state, value}]
    with state on, off or "not needed".
    """
    return [_one(engine, adapter) for engine, table in TABLES.items() for adapter in table]


def _one(engine: str, adapter: Adapter) -> dict[str, Any]:
    switch = SWITCHES[adapter.switch]
    return {
        "name": adapter.name,
        "engine": engine,
        "switch": switch.name,
        "env": switch.env,
        "default": OFF,
        **words(_module(engine, adapter)),
        "trees": list(adapter.trees),
        "hooks": [
            {"target": hook.target, "kind": hook.kind, "optional": hook.optional}
            for hook in adapter.hooks
        ],
        "profiles": [row for name in profile.names() for row in _rows(name, engine, adapter)],
    }


def words(module: ModuleType) -> dict[str, str]:
    """The title line and the sections of an adapter's docstring; ValueError names missing ones."""
    title, *paragraphs = [
        " ".join(paragraph.split()) for paragraph in (module.__doc__ or "").split("\n\n")
    ]
    found = {"says": title}
    section = ""
    for paragraph in paragraphs:
        label, _, rest = paragraph.partition(": ")
        if label in SECTIONS:
            section = SECTIONS[label]
            # names like vLLM and wo_a stay as they are
            first, _, _ = rest.partition(" ")
            found[section] = rest[0].upper() + rest[1:] if first.islower() else rest
        elif section:
            found[section] += f"\n{paragraph}"
    missing = [label for label, key in SECTIONS.items() if key not in found]
    if missing:
        raise ValueError(f"{module.__name__} does not say: {', '.join(missing)}")
    return found


def _module(engine: str, adapter: Adapter) -> ModuleType:
    package = import_module(f"dsv41.adapters.{engine}")
    names = [info.name for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
    found = (import_module(name) for name in names)
    return next(module for module in found if getattr(module, "ADAPTER", None) is adapter)


def _rows(name: str, engine: str, adapter: Adapter) -> Iterator[dict[str, str]]:
    """Each tree of the engine that the profile can be served on, its own first."""
    shipped = profile.load(name)
    if shipped.engine != engine:
        return
    for tree in sorted(TREES, key=lambda tree: tree != shipped.tree):
        if TREES[tree].engine == engine:
            env = environment(shipped.on_tree(tree))
            value = env.get(SWITCHES[adapter.switch].env, "")
            state = ON if is_on(adapter, env) else OFF if tree in adapter.trees else NOT_NEEDED
            yield {"profile": name, "tree": tree, "state": state, "value": value}


def environment(chosen: profile.Profile) -> Mapping[str, str]:
    """The environment of its head on the example fleet, given a file of keys."""
    where = replace(fleet.parse(example.fleet_text(chosen), where="example"), api_key_file="keys")
    return renderer(chosen.engine)(chosen, where, 0).env


def lines() -> Iterator[str]:
    """All of it as text, eighty columns wide."""
    for change in described():
        unset = f"unset is {change['default']}"
        yield f"{change['name']} ({change['engine']})  {change['env']}, {unset}"
        yield f"  {change['says']}"
        for label, key in SECTIONS.items():
            for number, paragraph in enumerate(change[key].split("\n")):
                text = f"{label}: {paragraph}" if number == 0 else paragraph
                yield textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="    ")
        for text in settings(change):
            yield textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="    ")
        yield ""


def settings(change: Mapping[str, Any]) -> Iterator[str]:
    """One sentence a profile: what its tree has, then where another tree differs."""
    rows: dict[str, list[Mapping[str, str]]] = {}
    for row in change["profiles"]:
        rows.setdefault(row["profile"], []).append(row)
    for name, (own, *others) in rows.items():
        differ = [f"{row['tree']} {_state(row)}" for row in others if _state(row) != _state(own)]
        yield "; ".join([f"{name}: {own['tree']} {_state(own)}", *differ])


def _state(row: Mapping[str, str]) -> str:
    return f"{row['state']} ({row['value']})" if row["state"] == ON else row["state"]
