"""The settings nearest to refused ones that fit, and the map of context by streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dsv41.budget import REFUSED, TIGHT_BYTES, Ledger, ledger
from dsv41.engines import checks
from dsv41.engines.trees import tree
from dsv41.errors import UsageError
from dsv41.fleet import Node
from dsv41.knobs import flag_for
from dsv41.profile import SWITCHES, Profile, load, names

# steps in which a knob is lowered, and the least that is of any use
_STEPS = {"chunk": (64, 128), "context": (4096, 4096), "slots": (1, 1)}
_RESERVE = "reserve_gib"  # of the fleet file, or --reserve-gib; no knob
CONTEXTS = (32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
STREAMS = (1, 2, 4, 8, 16, 32)

# cells of the map: not at all, at the edge, fits while streams share the pool, or with all full
CELLS = ("refused", "tight", "shared", "full")


def nearest(profile: Profile, nodes: Sequence[Node] = ()) -> tuple[str, ...]:
    """The steps of which each alone makes it fit, as one would type them.

    What a person gave stands first, to be taken back; then each knob that can be lowered, as the
    flag `--set chunk=832`, with one that may not be above it; then more ranks. Without nodes the
    rank is on a Spark with nothing else on it.
    """
    found = [*_taken_back(profile, nodes)]
    for knob in _STEPS:
        value = _largest(profile, nodes, knob)
        if value is not None:
            lowered = _lowered(profile, knob, value)
            found.append(" ".join(flag_for(name, given) for name, given in lowered.items()))
    return (*found, *_more_ranks(profile, nodes))


def _taken_back(profile: Profile, nodes: Sequence[Node]) -> Iterator[str]:
    """Each thing that a person gave and without which it fits; else the fewest of them together."""
    given = [name for name in profile.given if name != "tp"]  # tp goes with the nodes
    if any(node.reserve_gib for node in nodes):
        given.append(_RESERVE)
    alone = [name for name in given if _fits_without((name,), profile, nodes)]
    if alone:
        yield from (_back(name, profile) for name in alone)
    elif _fits_without(given, profile, nodes):
        for name in tuple(given):
            fewer = [other for other in given if other != name]
            given = fewer if _fits_without(fewer, profile, nodes) else given
        yield " and ".join(_back(name, profile) for name in given)


def _fits_without(names: Sequence[str], profile: Profile, nodes: Sequence[Node]) -> bool:
    left = profile.without(*names)
    if _RESERVE in names:
        nodes = [replace(node, reserve_gib=0.0) for node in nodes]
    return _goes_together(left) and _fits(left, nodes)


def _back(name: str, profile: Profile) -> str:
    """What one does to take a value back."""
    if name == _RESERVE:
        return "--reserve-gib 0"
    source, value = profile.origin(name), profile.get(name)
    if source == profile.where:
        return f"leave {name} out of {source}"
    whole = source if source in SWITCHES or value is None else flag_for(name, value)
    return f"leave out {whole}"


def _lowered(profile: Profile, knob: str, value: int) -> dict[str, int]:
    """The knob's value, and that of graph_slots where slots would fall below it."""
    if knob != "slots" or profile.get("graph_slots") is None:
        return {knob: value}
    if profile.integer("graph_slots") <= value:
        return {knob: value}
    return {knob: value, "graph_slots": value}


def _fits(profile: Profile, nodes: Sequence[Node]) -> bool:
    # nodes with as much memory have the same ledger
    alike = {(node.memory_gib, node.reserve_gib): node for node in nodes}
    ledgers = [ledger(profile, node) for node in alike.values() or (None,)]
    return all(found is not None and found.verdict != REFUSED for found in ledgers)


def _largest(profile: Profile, nodes: Sequence[Node], knob: str) -> int | None:
    """The largest value below the profile's that fits; None when not even the least does.

    Less of a knob never needs more memory, so a bisection finds it.
    """
    step, least = _STEPS[knob]
    steps = range(least, profile.integer(knob), step)
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if _fits(profile.with_values("nearest", **_lowered(profile, knob, steps[middle])), nodes):
            low = middle + 1
        else:
            high = middle
    return steps[low - 1] if low else None


def _more_ranks(profile: Profile, nodes: Sequence[Node]) -> tuple[str, ...]:
    """A shipped profile of more ranks, else this one, its experts cut as the tree takes them."""
    for name in names():
        if _is_wider(load(name), profile) and _serves(_as_given(name, profile), nodes):
            return (f"--profile {name} with {load(name)['tp']} nodes",)
    for tp in range(profile.integer("tp") + 1, 9):
        ep = profile.integer("ep")
        for groups in (ep, *(n for n in range(1, tp + 1) if n != ep)):
            if _serves(profile.with_values("nearest", tp=tp, ep=groups), nodes):
                cut = "" if groups == ep else " " + flag_for("ep", groups)
                return (f"{flag_for('tp', tp)}{cut} with {tp} nodes",)
    return ()


def _is_wider(other: Profile, profile: Profile) -> bool:
    """Whether another shipped profile is this one's for more ranks, unless those are its own."""
    if not profile.shipped or other.engine != profile.engine:
        return False
    return other.integer("tp") > profile.integer("tp") == load(profile.name).integer("tp")


def _as_given(name: str, profile: Profile) -> Profile:
    """A shipped profile with the tree and the flags that were given with this one."""
    other = load(name)
    if profile.tree != load(profile.name).tree:
        other = other.on_tree(profile.tree)
    values = {knob: profile.get(knob) for knob in profile.flags}
    return other.with_values("nearest", **values)


def _serves(profile: Profile, nodes: Sequence[Node]) -> bool:
    """Whether it fits and loads; the plan only warns of experts' slices that an engine refuses."""
    build = tree(profile.tree, engine=profile.engine, where=profile.where)
    whole = checks.expert_slice(profile) % build.slice_multiple == 0
    return whole and _goes_together(profile) and _fits(profile, nodes)


def _goes_together(profile: Profile) -> bool:
    build = tree(profile.tree, engine=profile.engine, where=profile.where)
    try:
        checks.capabilities(profile, build)
        checks.contradictions(profile)
    except UsageError:
        return False
    return True


def cells(
    profile: Profile,
    node: Node | None,
    *,
    contexts: Sequence[int] = CONTEXTS,
    streams: Sequence[int] = STREAMS,
) -> tuple[tuple[str, ...], ...]:
    """One row a context, one cell a number of streams; a word of `CELLS`."""
    return tuple(tuple(_row(profile, node, context, streams)) for context in contexts)


def _row(
    profile: Profile, node: Node | None, context: int, streams: Sequence[int]
) -> Iterator[str]:
    for slots in streams:
        asked: dict[str, int] = {"context": context, "slots": slots}
        if profile.get("pool_tokens") is not None:
            asked["pool_tokens"] = context * slots
        found = ledger(profile.with_values("map", **asked), node)
        yield "refused" if found is None else _cell(found, context * slots)


def _cell(found: Ledger, wanted: int) -> str:
    if found.verdict == REFUSED:
        return "refused"
    if found.free < TIGHT_BYTES:
        return "tight"
    return "full" if found.pool_tokens >= wanted else "shared"
