"""The settings nearest to refused ones that fit, and the map of context by streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv41.budget import REFUSED, TIGHT_BYTES, Ledger, ledger
from dsv41.engines import checks
from dsv41.errors import UsageError
from dsv41.fleet import Node
from dsv41.knobs import flag_for
from dsv41.profile import Profile

# steps in which a knob is lowered, and the least that is of any use
_STEPS = {"chunk": (64, 128), "context": (4096, 4096), "slots": (1, 1)}
CONTEXTS = (32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
STREAMS = (1, 2, 4, 8, 16, 32)

# cells of the map: not at all, at the edge, fits while streams share the pool, or with all full
CELLS = ("refused", "tight", "shared", "full")


def nearest(profile: Profile, node: Node | None) -> tuple[str, ...]:
    """Each knob that makes it fit when it alone is lowered, as the flag `--set chunk=832`.

    More ranks stand last. A knob that may not be above the lowered one is lowered with it.
    """
    found = []
    for knob in _STEPS:
        value = _largest(profile, node, knob)
        if value is not None:
            lowered = _lowered(profile, knob, value)
            found.append(" ".join(flag_for(name, given) for name, given in lowered.items()))
    return (*found, *_more_ranks(profile, node))


def _lowered(profile: Profile, knob: str, value: int) -> dict[str, int]:
    """The knob's value, and that of graph_slots where slots would fall below it."""
    if knob != "slots" or profile.get("graph_slots") is None:
        return {knob: value}
    if profile.integer("graph_slots") <= value:
        return {knob: value}
    return {knob: value, "graph_slots": value}


def _fits(profile: Profile, node: Node | None) -> bool:
    found = ledger(profile, node)
    return found is not None and found.verdict != REFUSED


def _largest(profile: Profile, node: Node | None, knob: str) -> int | None:
    """The largest value below the profile's that fits; None when not even the least does.

    Less of a knob never needs more memory, so a bisection finds it.
    """
    step, least = _STEPS[knob]
    steps = range(least, profile.integer(knob), step)
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if _fits(profile.with_values("nearest", **_lowered(profile, knob, steps[middle])), node):
            low = middle + 1
        else:
            high = middle
    return steps[low - 1] if low else None


def _more_ranks(profile: Profile, node: Node | None) -> tuple[str, ...]:
    for tp in range(profile.integer("tp") + 1, 9):
        wider = profile.with_values("nearest", tp=tp)
        if _goes_together(wider) and _fits(wider, node):
            return (f"--tp {tp} with {tp} nodes",)
    return ()


def _goes_together(profile: Profile) -> bool:
    try:
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
