"""Knobs of vLLM alone: every field of the four-Spark cycle's recipe (sparkring PR #261)."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41.knobs.rule import Rule, flag, number, text, words

_FLAGS: Mapping[str, Rule] = {
    "served_names": text("[A-Za-z0-9._/ -]+"),
    "executor": words("mp"),
    "eager": flag(),
    "text_only": flag(),
    "block_size": number(64, 256),
    "draft_sample": words("greedy", "probabilistic"),
    "adaptive_verify": flag(),
    "images_per_prompt": number(0, 64),
    "mm_cache_gib": number(0, 16),
    "thinking_default": flag(),
    "cudagraph_mode": words("FULL_AND_PIECEWISE", "PIECEWISE"),
    "indexer_topk": words("auto", "per_row"),
    "engram_cpu_offload": flag(),
    "kv_cache_external": flag(needs="kv_cache_external"),
}

_ENVIRONMENT: Mapping[str, Rule] = {
    "breakable_cudagraph": flag(),
    "estimate_cudagraphs": flag(),
    "rust_frontend": flag(),
    "flashinfer_cubin": flag(),
    "flashinfer_sampler": flag(),
    "flashinfer_version_check": flag(),
    "flashinfer_arch": text(r"1[0-9]\.[0-9]a?"),
    "build_jobs": number(1, 64),
    "nvcc_threads": number(1, 64),
    "hub_offline": flag(),
    "ready_seconds": number(60),
    "async_error_handling": flag(),
}

# the recipe's seven mounted patches and its library preload: upstream, an adapter, or not there
_PATCHES: Mapping[str, Rule] = {
    "engram_disk": flag(needs="engram_nvme"),
    "engram_read_chunk": number(1, 1024, needs="engram_read_chunk"),
    "loader_skips_tables": flag(needs="engram_nvme"),
    "sm12_pages": flag(needs="sm12_pages"),
    "engram_ahead": number(0, 2, needs="engram_ahead"),
    "nccl_preload": flag(needs="nccl_preload"),
}

VLLM: Mapping[str, Rule] = {**_FLAGS, **_ENVIRONMENT, **_PATCHES}
