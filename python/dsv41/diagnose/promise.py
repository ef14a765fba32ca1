"""From a profile and its budget to what captured text can show of them."""

from __future__ import annotations

from collections.abc import Sequence

from dsv41.budget import Ledger
from dsv41.diagnose.expect import LIMITS, Expect
from dsv41.geometry import DEFAULT_PARTITION
from dsv41.profile import Profile

# what the ledger takes for others than the engine
_OTHERS = ("system", "reserve")
_PAGES = {"sglang": 256, "vllm": 128, "local": 1}


def expectation(
    profile: Profile, *, image: str | None = None, ledgers: Sequence[Ledger] = ()
) -> Expect:
    """What a profile promises.

    `image` is its reference as the Plan has it, NAME@sha256:...; `ledgers` are those of the nodes:
    the fullest one counts.
    """
    name, _, digest = (image or "").partition("@")
    limits = {limit: profile.get(limit) for limit in LIMITS}
    return Expect(
        profile=profile.name,
        engine=profile.engine,
        tp=profile.integer("tp"),
        **{limit: value for limit, value in limits.items() if type(value) is int},
        page_tokens=_PAGES[profile.engine],
        revision=_text(profile, "revision"),
        partition=_text(profile, "partition") or DEFAULT_PARTITION,
        image=name or None,
        image_digest=digest or None,
        engine_bytes=max(map(_engine_bytes, ledgers), default=None),
        headroom_bytes=min((ledger.free for ledger in ledgers), default=None),
        needs_ring=profile.on("nccl_ring_only"),
    )


def _text(profile: Profile, knob: str) -> str | None:
    value = profile.get(knob)
    return value if isinstance(value, str) else None


def _engine_bytes(ledger: Ledger) -> int:
    return sum(item.bytes for item in ledger.items if item.item not in _OTHERS)
