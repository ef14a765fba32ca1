"""The verdict of a Plan: on its fullest node; what does not fit is refused with what would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsv41.budget import FITS, FLOOR_BYTES, REFUSED, Ledger
from dsv41.budget.nearest import nearest
from dsv41.budget.weights import GIB
from dsv41.errors import Unsafe
from dsv41.finding import Finding
from dsv41.fleet import Fleet
from dsv41.profile import Profile


def verdict(
    profile: Profile, fleet: Fleet, ledgers: Sequence[Ledger | None]
) -> dict[str, Any] | None:
    """The verdict on the fullest node; None for an engine without a budget.

    Raises Unsafe D120 with the nearest settings when it does not fit.
    """
    known = [(found, node) for found, node in zip(ledgers, fleet.nodes, strict=True) if found]
    if not known:
        return None
    found, node = min(known, key=lambda pair: pair[0].free)
    if found.verdict == REFUSED:
        says = _too_much(profile, found, node.name)
        raise Unsafe("D120", says, fix=_instead(nearest(profile, fleet.nodes)))
    return {
        "verdict": found.verdict,
        "node": node.name,
        "memory": found.memory,
        "free": found.free,
        "pool_tokens": found.pool_tokens,
        "asked_tokens": found.asked_tokens,
    }


def notes(found: Mapping[str, Any] | None) -> tuple[Finding, ...]:
    """A word about a tight budget."""
    if found is None or found["verdict"] == FITS:
        return ()
    says = f"Tight: {found['free'] / GIB:.1f} GiB stay free at the low point on {found['node']}."
    pool, asked = found["pool_tokens"], found["asked_tokens"]
    if asked is not None and pool < asked:
        says += f" The engine will make a pool of about {pool:,} tokens instead of {asked:,}."
    return (Finding(code="D121", level="warn", node=found["node"], says=says),)


def _too_much(profile: Profile, found: Ledger, node: str) -> str:
    large = sorted(found.items, key=lambda item: -item.bytes)[:4]
    parts = ", ".join(f"{item.item} {item.bytes / GIB:.1f}" for item in large)
    pool = ""
    if found.pool_tokens < found.context:
        pool = f"its KV pool holds {found.pool_tokens:,} tokens, a context has {found.context:,}; "
    return (
        f"Profile {profile.name} does not fit on {node}: {pool}{found.used / GIB:.1f} of "
        f"{found.memory / GIB:.1f} GiB are used at the low point and {FLOOR_BYTES / GIB:.1f} must "
        f"stay free (GiB: {parts})."
    )


def _instead(settings: Sequence[str]) -> str:
    none = (
        "none of chunk, context, slots and the number of nodes makes it fit alone: change several, "
        "or free memory on the node"
    )
    return ", or ".join(settings) or none
