"""Knobs of the CPU engine."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41.knobs.rule import Rule, flag, number, words

PARTITIONS = ("contiguous-rows", "contiguous-columns", "strided", "weighted")

LOCAL: Mapping[str, Rule] = {
    "tp": number(1, 8),
    "layout": words("legal", "balanced"),
    "partition": words(*PARTITIONS),
    "row_engine": words("auto", "uring", "aio", "pread"),
    "engram_prefetch": flag(),
    "slots": number(1, 64),
    "context": number(256, 4096),
    "peer_timeout_seconds": number(1, 60),
    "max_new_tokens": number(0),
    "reasoning_effort": number(1, 100),
    "loop_abort": flag(),
}
