"""Every engine-side switch: its name, its environment variable and its default, in one table.

Engine code reads the environment only through `read`; whatever starts an engine writes it only
through `render`. The variable names are those that operators already have in their files
(MiaAI-Lab's SGLang recipes, SGLang itself), so an existing setting keeps its meaning.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dsv41.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind = Literal["integer", "effort"]
log = logging.getLogger(__name__)

ALL_ENGINES = ("local", "sglang", "vllm")
ALL_TREES = ("local", "sglang-0.5.23", "sglang-branch", "sglang-base", "vllm-0.33.0")
_TIERS = {"low": 50, "high": 75, "xhigh": 75, "max": 100}


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """One switch of an engine.

    kind "integer" takes any integer; what cannot be read becomes the default with a warning, as in
    the recipe. kind "effort" takes 1 to 100 or a tier; what cannot be read is an error.
    """

    name: str
    env: str
    default: int
    kind: Kind
    says: str
    engines: tuple[str, ...] = ALL_ENGINES
    trees: tuple[str, ...] = ALL_TREES


_TABLE = (
    Switch(
        name="max_new_tokens",
        env="DSV41_MAX_NEW_TOKENS",
        default=32768,
        kind="integer",
        says="Tokens an answer may have: fills a missing limit, lowers a larger one; 0 is off.",
    ),
    Switch(
        name="loop_abort",
        env="DSV41_LOOP_ABORT",
        default=1,
        kind="integer",
        says="Whether an answer that repeats itself without end is stopped; 0 is off.",
    ),
    Switch(
        name="loop_ngram",
        env="DSV41_LOOP_NGRAM",
        default=32,
        kind="integer",
        says="Shortest repeated block that counts, in tokens; 0 turns the block rule off.",
    ),
    Switch(
        name="loop_ngram_max",
        env="DSV41_LOOP_NGRAM_MAX",
        default=256,
        kind="integer",
        says="Longest repeated block that is looked for, in tokens.",
    ),
    Switch(
        name="loop_repeats",
        env="DSV41_LOOP_REPEATS",
        default=4,
        kind="integer",
        says="How often a block must come in a row; 0 turns the block rule off.",
    ),
    Switch(
        name="loop_identical",
        env="DSV41_LOOP_IDENTICAL",
        default=64,
        kind="integer",
        says="How often one token must come in a row; 0 turns this rule off.",
    ),
    Switch(
        name="loop_line_repeats",
        env="DSV41_LOOP_LINE_REPEATS",
        default=8,
        kind="integer",
        says="How often one line must come in a row; 0 turns the line rule off.",
    ),
    Switch(
        name="loop_line_min",
        env="DSV41_LOOP_LINE_MIN",
        default=16,
        kind="integer",
        says="Shortest line that counts for the line rule, in characters.",
    ),
    Switch(
        name="reasoning_effort",
        env="SGLANG_DSV41_REASONING_EFFORT",
        default=75,
        kind="effort",
        says="Reasoning effort of a request that names none: 1 to 100, or low, high, xhigh, max.",
    ),
)
SWITCHES: dict[str, Switch] = {switch.name: switch for switch in _TABLE}


def read(
    environ: Mapping[str, str], name: str, *, warn: Callable[[str], object] = log.warning
) -> int:
    """Read one switch; an unset or empty variable means its default.

    Raises UsageError D075 for an unknown name, D074 for a value that must not be guessed at.
    """
    switch = _switch(name)
    text = environ.get(switch.env, "").strip()
    if not text:
        return switch.default
    try:
        return _parse(switch, text)
    except ValueError:
        if switch.kind == "effort":
            raise _bad_value(switch, text) from None
        warn(f"{switch.env} is {text!r}, not an integer; the default {switch.default} is used.")
        return switch.default


def render(values: Mapping[str, object]) -> dict[str, str]:
    """Write the environment that sets these switches, by variable name; no others.

    Raises UsageError D075 for an unknown name, D074 for a value of the wrong kind.
    """
    rendered = {}
    for name, value in sorted(values.items()):
        switch = _switch(name)
        text = str(int(value)) if isinstance(value, bool) else str(value)
        try:
            rendered[switch.env] = str(_parse(switch, text))
        except ValueError:
            raise _bad_value(switch, text) from None
    return rendered


def _parse(switch: Switch, text: str) -> int:
    if switch.kind == "effort" and text.lower() in _TIERS:
        return _TIERS[text.lower()]
    value = int(text)
    if switch.kind == "effort" and not 1 <= value <= 100:
        raise ValueError(text)
    return value


def _switch(name: str) -> Switch:
    if name not in SWITCHES:
        known = ", ".join(sorted(SWITCHES))
        raise UsageError(
            "D075",
            f"there is no switch {name!r}; the switches are {known}.",
            fix="use one of these names",
        )
    return SWITCHES[name]


def _bad_value(switch: Switch, text: str) -> UsageError:
    allowed = "an integer"
    if switch.kind == "effort":
        allowed = "an integer from 1 to 100 or one of " + ", ".join(_TIERS)
    return UsageError(
        "D074",
        f"{switch.env} is {text!r}; expected {allowed}.",
        fix=f"set {switch.env} to {allowed}, or unset it for the default {switch.default}",
    )
