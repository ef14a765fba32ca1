"""Knobs of SGLang alone: every setting of the three- and four-Spark recipe's tables.

The recipe's variable stands beside a knob where the name is not the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from dsv41.knobs.rule import Rule, flag, fraction, number, text, words

_FLAGS: Mapping[str, Rule] = {
    "served_name": text("[A-Za-z0-9._/-]+"),
    "pool_tokens": number(4096),  # max-total-tokens
    "head_mem_fraction": fraction(0.10, 0.99),
    "graph_slots": number(1, 256),  # cuda-graph-max-bs-decode
    "random_seed": number(0),
    "trust_remote_code": flag(),
    "attention_backend": words("dsv4"),
    "moe_runner": words("flashinfer_mxfp4", "marlin", "auto"),
    "fp8_gemm": words("auto", "flashinfer_cutlass", "triton"),
    "decoder_replay": flag(needs="decoder_replay"),  # enable-decoder-swa-bounded-replay
    "watchdog_seconds": number(0),
    "sleep_on_idle": flag(),
    "min_free_slots": number(1, 256, needs="min_free_slots"),
    "fp4_indexer": flag(),
    "cache_report": flag(),
    "metrics": flag(),
    "loader_threads": number(1, 64),
    "loader_mmap": flag(),
    "hierarchical_cache": flag(),
    "align_verify_tier": flag(needs="ragged_verify"),
    "ragged_verify": words("static", "cap-accept", "compact"),
}

_ENVIRONMENT: Mapping[str, Rule] = {
    "engram_host_table": flag(),
    "fused_finalize": flag(),
    "rust_build": words("never", "auto"),
    "cuda_device_order": words("PCI_BUS_ID"),
    "folded_sampling": number(0, 2, needs="folded_sampling"),
}

_ADAPTERS: Mapping[str, Rule] = {
    "tp_pad": flag(needs="tp_pad"),
    "layout": words("legal", "balanced"),
    "mxfp8_backend": words("b12x", "off", needs="mxfp8_b12x"),
    "scale_repair": flag(needs="scale_repair"),
    "prefill_empty_cache_tokens": number(0, needs="prefill_empty_cache"),
    "serial_load": flag(needs="serial_load"),
    "indexer_chunked": flag(needs="bounded_indexer"),
    "autotune_keep": flag(needs="autotune_keep"),
    "flash_mla_overlay": flag(needs="flash_mla_sm120"),
    "image_text": flag(needs="image_text"),
    "verify_cap": text("off|conf:[0-9.,]+|[1-5]", needs="verify_cap"),
    "draft_tau": fraction(0.1, 1.0, needs="draft_tau"),
    "folded_fence": flag(needs="folded_fence"),
    "wo_a_w8": flag(needs="wo_a_w8"),
    "wo_a_w8_mid": flag(needs="wo_a_w8"),
    "wo_a_w8_drop": flag(needs="wo_a_w8"),
    "wo_a_w8_draft": flag(needs="wo_a_w8"),
    "draft_head_fp8": flag(needs="draft_head_fp8"),
    "draft_head_fp8_impl": words("tp3", "tp4", needs="draft_head_fp8"),
    "router_live": flag(needs="verify_cap"),
    "shared_pad_k": flag(needs="shared_pad_k"),
    "replicated_split": text("off|[a-z_.,]+", needs="replicated_split"),
    "split_compact_gather": flag(needs="replicated_split"),
    "draft_main_proj_split": flag(needs="draft_main_proj_split"),
    "prefill_tp_split": flag(needs="prefill_tp_split"),  # SPARK_PREFILL_TP_SPLIT
    "prefill_tp_min_context": number(0, needs="prefill_tp_split"),
    "prefill_tp_min_rows": number(0, needs="prefill_tp_split"),
    "prefill_sp": flag(needs="prefill_sp"),
    "prefill_sp_fp8": flag(needs="prefill_sp"),
    "roce_allreduce": flag(needs="roce"),  # SGLANG_ROCE_ALLREDUCE
    "roce_max_size": number(0, needs="roce"),
    "roce_gather": number(0, needs="roce_gather"),
    "b12x_roce_cache": flag(needs="roce"),
    "b12x_compile_cache": flag(needs="moe_b12x"),
    "moe_b12x": flag(needs="moe_b12x"),
    "moe_b12x_deterministic": flag(needs="moe_b12x"),
    "hc_fused": flag(needs="hc_fused"),
    "l2_prefetch": flag(needs="l2_prefetch"),
    "l2_prefetch_woa": flag(needs="l2_prefetch"),
    "spec_sync_free": text("off|all|[a-z,]+", needs="spec_sync_free"),
    "eager_glue": text("off|all|[a-z,]+", needs="eager_glue"),
    "cert_head": flag(needs="cert_head"),
    "fast_load": flag(needs="fast_load"),
    "fast_load_ep_size": number(1, 16, needs="fast_load"),
    "fast_load_tp_slice": words("auto", "on", "off", needs="fast_load"),
    "fast_load_experts": number(1, needs="fast_load"),
    "fast_load_inflight_gb": number(1, 64, needs="fast_load"),
}

# what the recipe's launcher does with variables, and dsv41 with verbs
_LAUNCHER: Mapping[str, Rule] = {
    "skip_prepare": flag(needs="recipe_launcher"),
    "skip_verify": flag(needs="recipe_launcher"),
    "skip_smoke": flag(needs="recipe_launcher"),
    "smoke_quick": flag(needs="recipe_launcher"),
    "warmup": flag(needs="recipe_launcher"),
}

SGLANG: Mapping[str, Rule] = {**_FLAGS, **_ENVIRONMENT, **_ADAPTERS, **_LAUNCHER}
