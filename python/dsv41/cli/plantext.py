"""A Plan in words: what all ranks share once, then what each has for itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from dsv41.cli import pictures
from dsv41.draw import bars_text, cells_text
from dsv41.engines import served
from dsv41.fleet import Fleet, cables
from dsv41.geometry import REAL_ENGRAM, partition
from dsv41.plan import Plan, Rank
from dsv41.profile import Profile

GIB = 1 << 30
PAGE_ROWS, PAGE_BYTES = 15, 4096  # docs/reference/row-file.md
CHECKPOINT_BYTES = 510_313_353_565  # 88 files at dba1be0a (SR-PR261)


def lines(
    profile: Profile, fleet: Fleet, made: Plan, *, why: bool, width: int = 100
) -> Iterator[str]:
    """The lines of `dsv41 plan`; the bars are as wide as the terminal, 60 columns at least."""
    yield f"profile {profile.name}: {profile.says}"
    yield f"plan {made.digest}"
    yield f"url {made.url}"
    if made.budget is not None:
        yield from _memory(profile, fleet, made, made.budget, max(width, 60))
        yield _disk(profile)
        yield from _cables(fleet)
        yield from _shared(made)
    else:
        for rank in made.ranks:
            yield f"rank {rank.rank} {rank.role} on {rank.node}: {shlex.join(rank.argv)}"
    yield from steps(made)
    for note in made.notes:
        yield f"note {note['code']} [{note['level']}] {note['says']}"
        if note["fix"]:
            yield f"  fix: {note['fix']}"
    yield from _recipe(profile, why=why)
    yield from _reasons(profile, made) if why else _omitted_count(made)
    if made.budget is not None:
        yield _verdict(made.budget)


def _recipe(profile: Profile, *, why: bool) -> Iterator[str]:
    """What of the recipe's adapters is served."""
    found = served.served(profile)
    if found:
        more = "" if why else "; --why lists them"
        yield f"adapters of the recipe: {served.counts(found)}{more}"
    if why:
        yield from served.lines(found)


def _reasons(profile: Profile, made: Plan) -> Iterator[str]:
    for item in made.ranks[0].ledger:
        yield f"memory {item.item}: {item.bytes:,} bytes\n    {item.why}"
    for entry in made.omitted:
        yield f"omitted {entry['knob']}: {entry['reason']}"
    for name, knob in sorted(profile.knobs.items()):
        if not knob.omitted:
            yield f"{name} = {knob.value!r}  [{knob.source}]\n    {knob.why}"


def _omitted_count(made: Plan) -> Iterator[str]:
    if made.omitted:
        yield f"omitted: {len(made.omitted)} knobs; --why lists them, and the reason of every knob"


def steps(made: Plan) -> Iterator[str]:
    """The steps of a Plan, a line each."""
    for step in made.steps:
        yield f"step {step.id} on {step.node} [{step.effect}]: {shlex.join(step.command)}"


def _memory(profile: Profile, fleet: Fleet, made: Plan, found: Any, width: int) -> Iterator[str]:
    yield _verdict(found)
    yield bars_text(pictures.bars(made, fleet), width=width)
    yield cells_text(pictures.grid(profile, fleet))


def _verdict(found: Mapping[str, Any]) -> str:
    free, pool = found["free"] / GIB, found["pool_tokens"]
    return (
        f"memory {found['verdict']}: {free:.1f} GiB stay free at the low point on {found['node']}; "
        f"the KV pool holds {pool:,} tokens"
    )


def _disk(profile: Profile) -> str:
    """What a node's disk must hold: its rows, and the checkpoint unless it is a mount."""
    tp, name = profile.integer("tp"), str(profile["partition"])
    tables = [
        partition(name, engram=REAL_ENGRAM, layer_id=layer, tp=tp)
        for layer in REAL_ENGRAM.layer_ids
    ]
    pages = [sum(-(-t.local_rows(rank) // PAGE_ROWS) for t in tables) for rank in range(tp)]
    rows = max(pages) * PAGE_BYTES / GIB
    return (
        f"disk of each node: {rows:.1f} GiB of rows, and {CHECKPOINT_BYTES / GIB:.1f} GiB of "
        "checkpoint where it is not a mount"
    )


def _cables(fleet: Fleet) -> Iterator[str]:
    for subnet, ports in cables(fleet).items():
        ends = ", ".join(f"{fleet.nodes[rank].name} {hca}" for rank, hca in ports)
        yield f"cable {subnet}: {ends}"


def _shared(made: Plan) -> Iterator[str]:
    """One command and environment, then each rank's own words."""
    head = made.ranks[0]
    shared = {
        name: value
        for name, value in head.env.items()
        if all(rank.env.get(name) == value for rank in made.ranks)
    }
    yield f"image {head.image or 'not known: serve will refuse it; give --image REF@sha256:...'}"
    yield f"command of rank 0: {shlex.join(head.argv)}"
    yield f"container options: {shlex.join(head.options)}"
    yield "environment of every rank:"
    for name, value in sorted(shared.items()):
        yield f"  {name}={value}"
    for rank in made.ranks:
        yield from _own(rank, head, shared)


def _differing(argv: Sequence[str], others: Sequence[str]) -> list[str]:
    """The words that another command has not in their place, each with the flag that it belongs to.

    A word may stand elsewhere in the other one: the 1 of `--node-rank 1` is also that of a count.
    """
    found: list[str] = []
    for flag, word, other in zip_longest(("", *argv), argv, others):
        if word is None or word == other:
            continue
        if flag.startswith("--") and not word.startswith("--") and found[-1:] != [flag]:
            found.append(flag)
        found.append(word)
    return found


def _own(rank: Rank, head: Rank, shared: dict[str, str]) -> Iterator[str]:
    yield f"rank {rank.rank} {rank.role} on {rank.node}, fingerprint {rank.fingerprint}"
    for name, value in sorted(rank.env.items()):
        if name not in shared:
            yield f"  {name}={value}"
    if differs := _differing(rank.argv, head.argv):
        yield f"  command differs in: {shlex.join(differs)}"
    for mount in rank.mounts:
        yield f"  mount {mount}"
