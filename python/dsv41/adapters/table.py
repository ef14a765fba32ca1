"""Every adapter, by engine, in the order in which they are installed."""

from __future__ import annotations

from dsv41.adapters.adapter import Adapter
from dsv41.adapters.sglang import (
    api_keys,
    draft_head_fp8,
    draft_tau,
    engram_nvme,
    engram_prefetch,
    fast_load,
    image_text,
    loop_stop,
    mxfp8_b12x,
    prefill_empty_cache,
    scale_repair,
    shared_pad_k,
    thinking_alias,
    tp_pad,
    verify_cap,
    wo_a_w8,
)
from dsv41.adapters.vllm import api_keys as vllm_keys
from dsv41.adapters.vllm import engram_ahead, sm12_pages
from dsv41.adapters.vllm import engram_nvme as vllm_rows

SGLANG: tuple[Adapter, ...] = (
    engram_nvme.ADAPTER,
    engram_prefetch.ADAPTER,
    fast_load.ADAPTER,
    tp_pad.ADAPTER,
    shared_pad_k.ADAPTER,
    scale_repair.ADAPTER,
    mxfp8_b12x.ADAPTER,
    prefill_empty_cache.ADAPTER,
    verify_cap.ADAPTER,
    draft_tau.ADAPTER,
    draft_head_fp8.ADAPTER,
    wo_a_w8.ADAPTER,
    loop_stop.ADAPTER,
    image_text.ADAPTER,
    thinking_alias.ADAPTER,
    api_keys.ADAPTER,
)
VLLM: tuple[Adapter, ...] = (
    vllm_rows.ADAPTER,
    engram_ahead.ADAPTER,
    sm12_pages.ADAPTER,
    vllm_keys.ADAPTER,
)
TABLES: dict[str, tuple[Adapter, ...]] = {"sglang": SGLANG, "vllm": VLLM}
