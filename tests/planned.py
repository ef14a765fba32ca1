"""Profiles on example fleets, as tests need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsv41 import example, fleet, plan, profile

SPARK_PROFILES = ("tp3", "tp4", "tp4-ring", "tp4-cycle")
IMAGE = "registry.example/dsv41@sha256:" + "0" * 64


def fleet_for(chosen: profile.Profile, **values: Any) -> fleet.Fleet:
    """The example fleet of a profile, with fields of the fleet changed."""
    return replace(fleet.parse(example.fleet_text(chosen), where="fleet.toml"), **values)


def each_node(where: fleet.Fleet, **values: Any) -> fleet.Fleet:
    """The fleet with fields of every node changed."""
    return replace(where, nodes=tuple(replace(node, **values) for node in where.nodes))


def profile_with(name: str, *, tree: str | None = None, **knobs: Any) -> profile.Profile:
    """A shipped profile with knobs changed, on another engine tree when one is given."""
    chosen = profile.load(name)
    return (chosen.on_tree(tree) if tree else chosen).with_values("test", **knobs)


def planned(name: str, **knobs: Any) -> plan.Plan:
    """The Plan of a shipped profile on its example fleet."""
    chosen = profile_with(name, **knobs)
    return plan.plan(chosen, fleet_for(chosen), {name: IMAGE})
