"""What of the public recipes a profile serves: each of their adapters, by whom, or why not.

The lists are those of the recipes: the adapters of MiaAI-Lab's three- and four-Spark recipe (with
knapcio's work in it), and the seven patches and the preload of sparkring's cycle (pull request
261). A recipe's names are kept, so that its readers find their way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dsv41.engines.trees import FLAG, TREES
from dsv41.knobs import KNOBS, OFF
from dsv41.knobs.rule import written
from dsv41.profile import Profile, Value

ON, ENGINE, OFF_STATE, OMITTED = "on", "engine", "off", "omitted"
STATES = (ON, ENGINE, OFF_STATE, OMITTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ported:
    """An adapter of a recipe: the knobs that stand for it here, of which the first decides.

    `upstream` is the capability that an engine tree has by itself where it needs no adapter;
    `idle` the value of the first knob that changes nothing, where that is not one of `OFF`.
    """

    knobs: tuple[str, ...]
    upstream: str = ""
    idle: Value | None = None


def _of(*knobs: str, upstream: str = "", idle: Value | None = None) -> Ported:
    return Ported(knobs=knobs, upstream=upstream, idle=idle)


_SGLANG: Mapping[str, Ported] = {
    "encoding_compat": _of("thinking_alias", "reasoning_effort", "max_new_tokens"),
    "image_text": _of("image_text", upstream="image_text"),
    "loop_abort": _of("loop_abort", "loop_ngram", "loop_repeats", "loop_line_repeats"),
    "tp3_pad": _of("tp_pad", "layout"),
    "engram_backend": _of("offload", "partition", "row_threads", "row_cache_gib"),
    "engram_prefetch": _of("engram_prefetch"),
    "flash_mla_sm120": _of("flash_mla_overlay", upstream="flash_mla_sm120"),
    "mxfp8_b12x": _of("mxfp8_backend"),
    "prefill_empty_cache": _of("prefill_empty_cache_tokens"),
    "wo_a_w8": _of("wo_a_w8", "wo_a_w8_mid", "wo_a_w8_drop", "wo_a_w8_draft"),
    "draft_head_fp8": _of("draft_head_fp8", "draft_head_fp8_impl"),
    "verify_cap": _of("verify_cap", "ragged_verify"),
    "router_live": _of("router_live"),
    "block_verify": _of("block_verify", upstream="block_verify"),
    "draft_tau": _of("draft_tau", idle=1.0),
    "folded_result_fence": _of("folded_fence", "folded_sampling"),
    "autotune_keep": _of("autotune_keep", upstream="autotune_keep"),
    "shared_pad_k": _of("shared_pad_k"),
    "indexer_chunked": _of("indexer_chunked", upstream="bounded_indexer"),
    "spark_prefill_dense": _of("prefill_tp_split", "prefill_tp_min_context", "prefill_tp_min_rows"),
    "replicated_split": _of("replicated_split", "split_compact_gather"),
    "draft_main_proj": _of("draft_main_proj_split"),
    "roce_allreduce": _of("roce_allreduce", "roce_max_size", "b12x_roce_cache"),
    "roce_gather": _of("roce_gather"),
    "moe_b12x_next": _of("moe_b12x", "moe_b12x_deterministic", "b12x_compile_cache"),
    "hc_fused": _of("hc_fused"),
    "prefill_sp": _of("prefill_sp", "prefill_sp_fp8"),
    "l2_prefetch": _of("l2_prefetch", "l2_prefetch_woa"),
    "spec_sync_free": _of("spec_sync_free"),
    "eager_glue": _of("eager_glue"),
    "fast_load": _of(
        "fast_load",
        "fast_load_ep_size",
        "fast_load_tp_slice",
        "fast_load_experts",
        "fast_load_inflight_gb",
        "serial_load",
    ),
    "cert_head": _of("cert_head"),
}
_VLLM: Mapping[str, Ported] = {
    "engram.py": _of("engram_disk", "engram_read_chunk", "engram_cpu_offload"),
    "weight_utils.py": _of("loader_skips_tables"),
    "model_state.py": _of("engram_prefetch", "engram_ahead"),
    "attention.py": _of("sm12_pages"),
    "flashinfer_sparse.py": _of("sm12_pages"),
    "sparse_swa.py": _of("sm12_pages"),
    "sparse_attn_indexer.py": _of("indexer_topk"),
    "nccl preload": _of("nccl_preload"),
}
RECIPES: Mapping[str, Mapping[str, Ported]] = {"sglang": _SGLANG, "vllm": _VLLM}


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """How one adapter of the recipe stands in a profile.

    `state` is on, engine (the tree does it by itself), off (it is there, the profile leaves it
    off) or omitted; `words` say by what knob, with its value and reason.
    """

    name: str
    state: str
    words: str


def served(profile: Profile) -> tuple[Served, ...]:
    """Every adapter of the recipe of the profile's engine; none for an engine without a recipe."""
    found = RECIPES.get(profile.engine, {})
    return tuple(_one(name, ported, profile) for name, ported in found.items())


def counts(found: tuple[Served, ...]) -> str:
    """How many there are of each state, in words."""
    named = {ON: "on", ENGINE: "by the engine itself", OFF_STATE: "off", OMITTED: "omitted"}
    each = [(sum(one.state == state for one in found), words) for state, words in named.items()]
    return ", ".join(f"{count} {words}" for count, words in each)


def lines(found: tuple[Served, ...]) -> Iterator[str]:
    """A line each."""
    for one in found:
        yield f"recipe {one.name}: {one.state}; {one.words}"


def _one(name: str, ported: Ported, profile: Profile) -> Served:
    knob = profile.knobs[ported.knobs[0]]
    words = f"{ported.knobs[0]} is omitted: {knob.why}"
    if not knob.omitted and knob.value is not None:
        words = f"{ported.knobs[0]} = {written(knob.value)}: {knob.why}"
    return Served(name=name, state=_state(ported, profile), words=words)


def _state(ported: Ported, profile: Profile) -> str:
    first = ported.knobs[0]
    knob, tree = profile.knobs[first], TREES[profile.tree]
    idle = not knob.omitted and (knob.value in OFF or knob.value == ported.idle)
    if idle:
        return OFF_STATE
    if ported.upstream and tree.can(ported.upstream) == FLAG:
        return ENGINE
    if knob.omitted:
        return OMITTED
    needs = KNOBS[profile.engine][first].needs
    return ENGINE if needs and tree.can(needs) == FLAG else ON
