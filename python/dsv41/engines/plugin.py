"""The engine plugin's switches, from the knobs: the same for SGLang and vLLM."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41 import switches
from dsv41.engines.container import KEY_FILE, ROWS
from dsv41.engines.trees import FLAG, Tree
from dsv41.fleet import Fleet
from dsv41.knobs import KNOBS
from dsv41.profile import Profile, Value

# knob -> switch; a knob that the profile omits leaves its switch alone
_SWITCHES: Mapping[str, str] = {
    "partition": "engram_partition",
    "row_engine": "engram_engine",
    "engram_prefetch": "engram_prefetch",
    "engram_ahead": "engram_ahead",
    "row_threads": "row_threads",
    "row_cache_gib": "row_cache_gib",
    "resident_scales": "resident_scales",
    "row_stats_seconds": "row_stats_seconds",
    "tp_pad": "tp_pad",
    "scale_repair": "scale_repair",
    "mxfp8_backend": "mxfp8_backend",
    "prefill_empty_cache_tokens": "prefill_empty_cache_tokens",
    "verify_cap": "verify_cap",
    "draft_tau": "draft_tau",
    "wo_a_w8": "wo_a_w8",
    "wo_a_w8_mid": "wo_a_w8_mid",
    "wo_a_w8_drop": "wo_a_w8_drop",
    "wo_a_w8_draft": "wo_a_w8_draft",
    "draft_head_fp8": "draft_head_fp8",
    "shared_pad_k": "shared_pad_k",
    "fast_load": "fast_load",
    "fast_load_inflight_gb": "fast_load_inflight_gb",
    "sm12_pages": "sm12_pages",
    "image_text": "image_text",
    "thinking_alias": "thinking_alias",
    "reasoning_effort": "reasoning_effort",
    "loop_abort": "loop_abort",
    "loop_ngram": "loop_ngram",
    "loop_repeats": "loop_repeats",
    "loop_line_repeats": "loop_line_repeats",
}
ALWAYS = ""  # no tree has this capability of its own
KEY_VARIABLE = switches.SWITCHES["api_key_file"].env


def environment(profile: Profile, fleet: Fleet, rank: int, build: Tree) -> dict[str, str]:
    """The plugin's variables; the head alone reads the key file.

    What the tree does itself has no switch: its adapter stays off.
    """
    rules = KNOBS[profile.engine]
    asked = {
        switch: profile.get(knob)
        for knob, switch in _SWITCHES.items()
        if knob in rules and build.can(rules[knob].needs or ALWAYS) != FLAG
    }
    values: dict[str, Value] = {name: value for name, value in asked.items() if value is not None}
    values["engram_dir"] = ROWS
    if profile.on("tp_pad"):
        values["tp_pad_layout"] = profile["layout"]
    if rank == 0 and fleet.api_key_file:
        values["api_key_file"] = KEY_FILE
    return switches.render(values)
