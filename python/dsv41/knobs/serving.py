"""Knobs that mean the same to SGLang and vLLM: what is served, and the Engram rows."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41.knobs.local import PARTITIONS
from dsv41.knobs.rule import Rule, flag, fraction, number, text, words

SERVING: Mapping[str, Rule] = {
    "revision": text("[0-9a-f]{40}"),
    "tp": number(1, 16),
    "ep": number(1, 16),
    "context": number(4096, 1_048_576),  # the bounds of the recipe's own launcher
    "slots": number(1, 256),
    "chunk": number(128, 65536),
    "mem_fraction": fraction(0.10, 0.99),
    "load_format": words("auto", "safetensors"),
    "drafter": words("dspark", "off"),
    "draft_window": number(1, 15),
    "block_verify": flag(needs="block_verify"),
    "tool_call_parser": text("[a-z0-9_]+"),
    "reasoning_parser": text("[a-z0-9_-]+"),
    "max_new_tokens": number(0),
    "reasoning_effort": number(1, 100),
    "loop_abort": flag(needs="loop_abort"),
    "loop_ngram": number(0),
    "loop_repeats": number(0),
    "loop_line_repeats": number(0),
    "thinking_alias": flag(needs="thinking_alias"),
    "expandable_segments": flag(),
    "offload": words("nvme", "ram", "host"),
}

ENGRAM: Mapping[str, Rule] = {
    "partition": words(*PARTITIONS),
    "row_engine": words("auto", "uring", "aio", "pread"),
    "row_threads": number(1, 256),
    "row_cache_gib": fraction(0, 64),
    # the recipe's store has these; ours has four ways (csrc/src/cache.hpp) and scales in its pages
    "row_cache_ways": number(1, 16, needs="row_cache_ways", as_is=4),
    "resident_scales": flag(needs="resident_scales"),
    "row_stats_seconds": number(0),
    "engram_prefetch": flag(needs="engram_prefetch"),
}
