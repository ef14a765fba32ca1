"""Profiles on example fleets, as tests need them."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsv41 import example, fleet, plan, profile
from dsv41.run.recheck import crc32c

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


def row_file(
    folder: Path, *, layer: int, rank: int, tp: int, partition: str, complete: int = 1
) -> Path:
    """A row file of one empty page: its header as docs/reference/row-file.md has it."""
    page = bytearray(4096)
    struct.pack_into("<8s9I", page, 0, b"DSV41ROW", 1, 4096, layer, rank, tp, 15, 264, 256, 8)
    struct.pack_into("<I3QI", page, 44, 4096, 15 * tp, 15, 1, complete)
    struct.pack_into("<32s", page, 80, partition.encode())
    struct.pack_into("<I", page, 4092, crc32c(bytes(page[:4092])))
    path = folder / f"engram-l{layer}-r{rank}of{tp}-{partition}.rows"
    path.write_bytes(bytes(page) + bytes(4096))
    return path
