"""Every engine-side switch: its name, its environment variable and its default, in one table.

Engine code reads the environment only through `read`; whatever starts an engine writes it only
through `render`. The variable names are those that operators already have in their files
(MiaAI-Lab's SGLang recipes, SGLang itself), so an existing setting keeps its meaning.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dsv41.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind = Literal["integer", "decimal", "effort", "word"]
log = logging.getLogger(__name__)

ALL_ENGINES = ("local", "sglang", "vllm")
ALL_TREES = ("local", "sglang-0.5.23", "sglang-branch", "sglang-base", "vllm-0.33.0")
_YES_AND_NO = ("on", "off", "true", "false", "yes", "no")
_TIERS = {"low": 50, "high": 75, "xhigh": 75, "max": 100}


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """One switch of an engine.

    kind "integer" takes any integer, kind "decimal" any finite number; what cannot be read becomes
    the default with a warning, as in the recipe. kind "effort" takes 1 to 100 or a tier; what can
    not be read is an error. kind "word" takes any text without white space, a path or one of a set
    that its reader knows.
    """

    name: str
    env: str
    default: float | str
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
_PLUGIN_ENGINES = ("sglang", "vllm")
_PLUGIN_TREES = ALL_TREES[1:]
# What the engine plugin reads; every default is off or has no effect while its adapter is off. The
# local engine reads engram_prefetch and row_stats_seconds as well.
_PLUGIN_ROWS: tuple[tuple[str, str, float | str, str], ...] = (
    ("engram_dir", "DSV41_PACKED_DIR", "", "Folder of this rank's row files; unset is off."),
    ("engram_partition", "DSV41_ENGRAM_PARTITION", "weighted", "How rows are split over ranks."),
    ("engram_engine", "DSV41_ENGRAM_ENGINE", "auto", "Read engine of the row store."),
    ("engram_prefetch", "DSV41_ENGRAM_PREFETCH", 0, "Read rows before they are needed; 0 is off."),
    ("engram_ahead", "DSV41_ENGRAM_AHEAD", 0, "1: all layers' rows at once; 2: next chunk's too."),
    ("engram_check", "DSV41_ENGRAM_CHECK", 0, "Read every row a second way and compare; 0 is off."),
    ("row_threads", "DSV41_IO_THREADS", 32, "Threads that read rows."),
    ("row_cache_gib", "DSV41_CACHE_GIB", 0.0, "Memory of the row cache of one rank, GiB."),
    ("resident_scales", "DSV41_RESIDENT_SCALES", 0, "All scales in memory: refused; 0 is off."),
    ("row_stats_seconds", "DSV41_STATS_SECONDS", 60, "Seconds between two lines of statistics."),
    ("tp_pad", "DSV41_TP_PAD", 0, "Pad heads, groups and experts that do not divide; 0 is off."),
    ("tp_pad_layout", "DSV41_TP_PAD_LAYOUT", "legal", "Padding of heads: legal or balanced."),
    ("scale_repair", "DSV41_SCALE_REPAIR", 0, "Repair scales of all-zero blocks; 0 is off."),
    ("mxfp8_backend", "DSV41_MXFP8_BACKEND", "off", "Kernels of dense MXFP8 layers: b12x or off."),
    (
        "prefill_empty_cache_tokens",
        "DSV41_PREFILL_EMPTY_CACHE_TOKENS",
        0,
        "Empty the allocator's cache after a prefill this long; 0 is off.",
    ),
    ("verify_cap", "DSV41_VERIFY_CAP", "off", "Drafts kept alive: conf:T, a number, or off."),
    ("verify_cap_min", "DSV41_VERIFY_CAP_MIN", 1, "Rows of a request that stay alive at least."),
    ("draft_tau", "DSV41_DRAFT_TAU", "off", "Factor of the draft's temperature; off is 1."),
    ("wo_a_w8", "DSV41_WO_A_W8", 0, "Multiply by wo_a's exact FP8 twins; 0 is off."),
    ("wo_a_w8_mid", "DSV41_WO_A_W8_MID", 0, "The same for 9 to 192 verified rows; 0 is off."),
    ("wo_a_w8_drop", "DSV41_WO_A_W8_DROP", 0, "Give wo_a's bf16 memory back; 0 is off."),
    ("wo_a_w8_draft", "DSV41_WO_A_W8_DRAFT", 0, "Twins for the draft's wo_a as well; 0 is off."),
    ("draft_head_fp8", "DSV41_DRAFT_HEAD_FP8", 0, "FP8 twin of the draft's head; 0 is off."),
    ("draft_head_fp8_max_m", "DSV41_DRAFT_HEAD_FP8_MAX_M", 64, "Most rows that the twin serves."),
    ("shared_pad_k", "DSV41_SHARED_PAD_K", 0, "Pad the shared expert for b12x; 0 is off."),
    ("fast_load", "DSV41_FAST_LOAD", 0, "Read this rank's weights by threads; 0 is off."),
    ("fast_load_inflight_gb", "DSV41_FAST_LOAD_INFLIGHT_GB", 2, "GB of weights read ahead."),
    ("sm12_pages", "DSV41_SM12_PAGES", 0, "Index pages of 64 states on SM12x; 0 is off."),
    ("image_text", "DSV41_IMAGE_TEXT", 0, "Make image placeholders in text harmless; 0 is off."),
    ("thinking_alias", "DSV41_THINKING_ALIAS", 0, "enable_thinking means thinking; 0 is off."),
    ("api_key_file", "DSV41_API_KEY_FILE", "", "File of the API keys; unset is none."),
)
_KINDS: dict[type, Kind] = {str: "word", float: "decimal", int: "integer"}
_PLUGIN = tuple(
    Switch(
        name=name,
        env=env,
        default=default,
        kind=_KINDS[type(default)],
        says=says,
        engines=_PLUGIN_ENGINES,
        trees=_PLUGIN_TREES,
    )
    for name, env, default, says in _PLUGIN_ROWS
)
SWITCHES: dict[str, Switch] = {switch.name: switch for switch in (*_TABLE, *_PLUGIN)}


def read(
    environ: Mapping[str, str], name: str, *, warn: Callable[[str], object] = log.warning
) -> int:
    """Read one switch of a number; an unset or empty variable means its default.

    Raises UsageError D075 for an unknown name, D074 for a value that must not be guessed at.
    """
    switch = _switch(name)
    default = int(switch.default)
    text = environ.get(switch.env, "").strip()
    if not text:
        return default
    try:
        return int(_parse(switch, text))
    except ValueError:
        if switch.kind == "effort":
            raise _bad_value(switch, text) from None
        warn(f"{switch.env} is {text!r}, not an integer; the default {switch.default} is used.")
        return default


def read_decimal(
    environ: Mapping[str, str], name: str, *, warn: Callable[[str], object] = log.warning
) -> float:
    """Read one switch of a decimal; unset, empty or no number means its default."""
    switch = _switch(name)
    text = environ.get(switch.env, "").strip()
    try:
        return float(_parse(switch, text)) if text else float(switch.default)
    except ValueError:
        warn(f"{switch.env} is {text!r}, not a number; the default {switch.default} is used.")
        return float(switch.default)


def read_exactly(environ: Mapping[str, str], name: str) -> int:
    """Read one switch of a number as `read` does, but D074 for what is no number."""
    switch = _switch(name)
    text = environ.get(switch.env, "").strip()
    try:
        return int(_parse(switch, text)) if text else int(switch.default)
    except ValueError:
        raise _bad_value(switch, text) from None


def read_word(environ: Mapping[str, str], name: str) -> str:
    """Read one switch of a word; an unset or empty variable means its default."""
    switch = _switch(name)
    return environ.get(switch.env, "").strip() or str(switch.default)


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


def _parse(switch: Switch, text: str) -> float | str:
    if switch.kind == "word":
        if text.split() != [text]:
            raise ValueError(text)
        return text
    if switch.kind == "effort" and text.lower() in _TIERS:
        return _TIERS[text.lower()]
    if switch.kind == "decimal":
        return _finite(text)
    value = int(text)
    if switch.kind == "effort" and not 1 <= value <= 100:
        raise ValueError(text)
    return value


def _finite(text: str) -> float:
    """A number; a whole one as an integer, so that it is written as it was."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return int(value) if value.is_integer() else value


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
    allowed = {"word": "one word", "decimal": "a number"}.get(switch.kind, "an integer")
    if switch.kind == "integer" and text.lower() in _YES_AND_NO:
        allowed = "an integer (1 is on, 0 is off)"
    if switch.kind == "effort":
        allowed = "an integer from 1 to 100 or one of " + ", ".join(_TIERS)
    return UsageError(
        "D074",
        f"{switch.env} is {text!r}; expected {allowed}.",
        fix=f"set {switch.env} to {allowed}, or unset it for the default {switch.default}",
    )
