"""The knobs that each engine's renderer understands, as data.

A profile names each of its engine's knobs, or omits it with a reason. A knob that the engine tree
serves neither by a flag nor by an adapter stands here too, so that a recipe's setting is never
lost in silence: it can only be omitted until the tree has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from dsv41.knobs.fabric import CONTAINER, FABRIC
from dsv41.knobs.local import LOCAL
from dsv41.knobs.rule import OFF, Rule, Value, flag_for
from dsv41.knobs.serving import ENGRAM, SERVING
from dsv41.knobs.sglang import SGLANG
from dsv41.knobs.vllm import VLLM

KNOBS: Mapping[str, Mapping[str, Rule]] = {
    "local": LOCAL,
    "sglang": {**SERVING, **ENGRAM, **SGLANG, **FABRIC, **CONTAINER},
    "vllm": {**SERVING, **ENGRAM, **VLLM, **FABRIC, **CONTAINER},
}

# what a renderer or the budget cannot do without
_SERVED = {"tp", "ep", "context", "slots", "chunk", "mem_fraction", "drafter", "draft_window"}
_ALWAYS = _SERVED | {"revision", "offload", "partition", "shm_gib", "oom_score_adj", "restart"}
REQUIRED: Mapping[str, frozenset[str]] = {
    "local": frozenset(LOCAL)
    - {"max_new_tokens", "reasoning_effort", "loop_abort", "engram_prefetch"},
    "sglang": frozenset(
        _ALWAYS
        | {"served_name", "pool_tokens", "graph_slots", "tool_call_parser", "reasoning_parser"}
        | {"fp8_gemm", "ragged_verify", "layout", "moe_runner"}
    ),
    "vllm": frozenset(
        _ALWAYS
        | {"served_names", "thinking_default", "engram_cpu_offload", "indexer_topk"}
        | {"draft_sample", "adaptive_verify", "cudagraph_mode", "images_per_prompt", "mm_cache_gib"}
    ),
}

__all__ = ["KNOBS", "OFF", "REQUIRED", "Rule", "Value", "flag_for"]
