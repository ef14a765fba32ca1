"""The draft's temperature, scaled.

What: The temperature at which DSpark draws its drafts is the request's, times a factor. Both the
drawing and the acceptance, which compares the draft's distribution with the target's, read the
scaled one, so that the target's distribution stays what is answered. Greedy requests have none.

Why: A sharper draft is accepted more often at temperatures near 1. The engine has no setting for
it.

Exact: Rejection sampling is exact for any distribution that a draft is really drawn from.
`SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH` takes the draft's temperature for the target's as well, and
would answer at the wrong one, so that this refuses to start beside it (D482).

Effect: not measured here. MiaAI-Lab's four-Spark profile has 0.7, the one for three leaves it at 1.

Off: DSV41_DRAFT_TAU unset, 0, off, 1 or 1.0.

Obsolete when: the engine has a temperature of the draft.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from dsv41 import switches
from dsv41.adapters.adapter import OFF_WORDS, Adapter, Hook
from dsv41.errors import CheckFailed

LEAST = 1e-5  # the engine's own least temperature of a draft
GRAPH = "SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH"


def factor_of(environ: Mapping[str, str]) -> float:
    """The factor that is asked for, 1.0 for none; D482 for one outside of 0 to 1 or no number."""
    word = switches.read_word(environ, "draft_tau").lower()
    if word in OFF_WORDS:
        return 1.0
    try:
        factor = float(word)
    except ValueError:
        factor = 0.0
    if not 0.0 < factor <= 1.0:
        says = (
            f"The factor of the draft's temperature is {word!r}; expected one above 0, at most 1."
        )
        raise CheckFailed("D482", says, fix="set DSV41_DRAFT_TAU=0.7, or unset it")
    return factor


@functools.cache
def asked() -> float:
    """The same of this process, whose environment does not change while it serves."""
    return factor_of(os.environ)


def scale(params: Any, *_args: Any, sampling_info: Any = None, **_kwargs: Any) -> Any:
    """Scale what was resolved, float32 [requests] each, in place: graphs read these buffers."""
    if sampling_info is None:
        return params
    for temperatures, least in ((params.temperatures, LEAST), (params.step_temperatures, 0.0)):
        temperatures.mul_(asked()).clamp_(min=least)
    return params


def check(environ: Mapping[str, str]) -> None:
    """The factor can be read, and nothing takes the draft's temperature for the target's; D482."""
    if factor_of(environ) != 1.0 and environ.get(GRAPH, "").lower() in ("1", "true", "yes", "y"):
        raise CheckFailed(
            "D482",
            f"draft_tau and {GRAPH} exclude each other: that graph samples the target at the "
            "draft's temperature.",
            fix=f"unset {GRAPH} or DSV41_DRAFT_TAU",
        )


ADAPTER = Adapter(
    name="draft_tau",
    switch="draft_tau",
    engines=("sglang",),
    trees=("sglang-0.5.23",),
    hooks=(
        Hook(
            target="sglang.srt.speculative.dspark_components.dspark_draft.resolve_draft_params",
            kind="after",
            call=scale,
            takes=("sampling_info", "bs"),
        ),
    ),
    check=check,
    off=("1", "1.0"),
)
