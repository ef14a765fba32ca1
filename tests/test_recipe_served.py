"""What of the recipes' adapters each profile serves: the whole list, a state each, as rendered."""

from __future__ import annotations

import pytest

from dsv41 import changes, fleet, profile
from dsv41.adapters.adapter import is_on
from dsv41.adapters.table import TABLES
from dsv41.cli import plantext
from dsv41.engines import plugin, served
from dsv41.knobs import KNOBS
from dsv41.switches import SWITCHES
from planned import SPARK_PROFILES, fleet_for, planned
from test_profiles_shipped import RECIPE_VARIABLES

# The recipe's table of adapters (MiaAI-Lab and knapcio), and what its images bring beside them:
# the patched encoder, the attention override and RoCEnante.
ADAPTERS = [
    "encoding_compat",
    "loop_abort",
    "tp3_pad",
    "engram_backend",
    "engram_prefetch",
    "mxfp8_b12x",
    "prefill_empty_cache",
    "wo_a_w8",
    "draft_head_fp8",
    "verify_cap",
    "router_live",
    "block_verify",
    "draft_tau",
    "folded_result_fence",
    "autotune_keep",
    "shared_pad_k",
    "indexer_chunked",
    "spark_prefill_dense",
    "replicated_split",
    "draft_main_proj",
    "roce_gather",
    "moe_b12x_next",
    "hc_fused",
    "prefill_sp",
    "l2_prefetch",
    "spec_sync_free",
    "eager_glue",
    "fast_load",
    "cert_head",
    "image_text",
    "flash_mla_sm120",
    "roce_allreduce",
]
# the seven patches and the preload of the cycle's profile (sparkring pull request 261)
PATCHES = [
    "engram.py",
    "weight_utils.py",
    "model_state.py",
    "attention.py",
    "flashinfer_sparse.py",
    "sparse_swa.py",
    "sparse_attn_indexer.py",
]
# Variables of the recipe that only fine-tune an adapter. Ours have the same name, below; the others
# belong to an adapter that no profile serves, or to one whose own rule they are part of.
SAME_NAME = (
    "DSV41_LOOP_NGRAM_MAX",
    "DSV41_LOOP_IDENTICAL",
    "DSV41_LOOP_LINE_MIN",
    "DSV41_VERIFY_CAP_MIN",
    "DSV41_DRAFT_HEAD_FP8_MAX_M",
    "DSV41_FAST_LOAD_INFLIGHT_GB",
    "DSV41_ENGRAM_CHECK",
)
BELONGS = {
    "DSV41_INDEXER_LOGITS_BUDGET_BYTES": "indexer_chunked",
    "DSV41_DRAFT_MAIN_PROJ_SPLIT_MAX_M": "draft_main_proj",
    "DSV41_MOE_B12X_NEXT_DET_TRITON": "moe_b12x_next",
    "DSV41_MOE_B12X_NEXT_M64_MIN_CAP": "moe_b12x_next",
    "DSV41_MOE_B12X_NEXT_LADDER": "moe_b12x_next",
    "DSV41_HC_FUSED_MIN_ROWS": "hc_fused",
    "DSV41_PREFILL_SP_EXACT": "prefill_sp",
    "DSV41_PREFILL_SP_MIN_ROWS": "prefill_sp",
    "DSV41_PREFILL_SP_FP8_MOE": "prefill_sp",
    "DSV41_PREFILL_SP_WKV": "prefill_sp",
    "DSV41_L2_PREFETCH_MB": "l2_prefetch",
    "DSV41_L2_PREFETCH_WOA_MB": "l2_prefetch",
    "DSV41_EAGER_GLUE_CHECKS": "eager_glue",
    "DSV41_CERT_HEAD_M": "cert_head",
}
EVERYWHERE = [
    (name, tree)
    for name in SPARK_PROFILES
    for tree in sorted({profile.load(name).tree, *profile.load(name).trees})
]
everywhere = pytest.mark.parametrize(("name", "tree"), EVERYWHERE)


def states(name: str, tree: str | None = None) -> dict[str, str]:
    chosen = profile.load(name)
    found = served.served(chosen.on_tree(tree) if tree else chosen)
    return {one.name: one.state for one in found}


def test_the_lists_are_whole() -> None:
    assert sorted(served.RECIPES["sglang"]) == sorted(ADAPTERS)
    assert sorted(served.RECIPES["vllm"]) == sorted([*PATCHES, "nccl preload"])
    for engine, found in served.RECIPES.items():
        for ported in found.values():
            assert set(ported.knobs) <= KNOBS[engine].keys()


def test_every_adapters_variable_is_a_knob_of_an_adapter() -> None:
    stand = {knob for ported in served.RECIPES["sglang"].values() for knob in ported.knobs}
    ours = {
        variable: knob
        for variable, knob in RECIPE_VARIABLES.items()
        if variable.startswith(("DSV41_", "SPARK_", "SGLANG_ROCE", "B12X_"))
    }
    settings = {"row_cache_ways", "resident_scales", "row_stats_seconds"}  # of the row store
    assert set(ours.values()) - stand == settings
    assert set(SAME_NAME) <= {switch.env for switch in SWITCHES.values()}
    for variable, adapter in BELONGS.items():
        assert variable not in RECIPE_VARIABLES
        assert {states(name, tree).get(adapter, "omitted") for name, tree in EVERYWHERE} <= {
            "omitted",
            "engine",
        }


@everywhere
def test_every_adapter_has_one_state_and_words(name: str, tree: str) -> None:
    chosen = profile.load(name).on_tree(tree)
    found = served.served(chosen)
    assert [one.name for one in found] == list(served.RECIPES[chosen.engine])
    assert {one.state for one in found} <= set(served.STATES)
    for one in found:
        knob, _, why = one.words.partition(": ")
        assert len(why) >= 11
        assert ("is omitted" in knob) is (
            chosen.knobs[served.RECIPES[chosen.engine][one.name].knobs[0]].omitted
        )
    assert sum(int(word) for word in served.counts(found).split() if word.isdigit()) == len(found)


@everywhere
def test_states_are_what_is_rendered(name: str, tree: str) -> None:
    """On means that the plugin's adapter is on in the environment, off that it is not."""
    chosen = profile.load(name).on_tree(tree)
    environment = changes.environment(chosen)
    adapters = {adapter.switch: adapter for adapter in TABLES[chosen.engine]}
    seen = 0
    for adapter, ported in served.RECIPES[chosen.engine].items():
        switch = plugin._SWITCHES.get(ported.knobs[0])
        state = states(name, tree)[adapter]
        if switch in adapters and state in {"on", "off"}:
            on = is_on(adapters[switch], environment)
            idle = ported.idle is not None and chosen[ported.knobs[0]] == ported.idle
            assert (on and not idle) is (state == "on"), adapter
            seen += 1
    assert seen >= (1 if chosen.engine == "vllm" else 5)


def test_the_recipes_adapters_in_the_shipped_profiles() -> None:
    tp3, tp4, ring = states("tp3"), states("tp4"), states("tp4-ring")
    assert ring == tp4
    assert {one for one in tp4 if tp3[one] != tp4[one]} == {"tp3_pad", "draft_tau", "shared_pad_k"}
    by_itself = {one for one, state in tp4.items() if state == "engine"}
    assert by_itself == {
        "image_text",
        "flash_mla_sm120",
        "block_verify",
        "autotune_keep",
        "indexer_chunked",
    }
    assert {tp4[one] for one in ("roce_allreduce", "roce_gather", "moe_b12x_next")} == {"omitted"}
    branch = states("tp4", "sglang-branch")
    assert (branch["roce_allreduce"], branch["verify_cap"]) == ("engine", "omitted")
    assert states("tp4-cycle")["model_state.py"] == "engine"
    assert served.served(profile.load("local")) == ()


def test_plan_says_it() -> None:
    chosen = profile.load("tp4")
    where: fleet.Fleet = fleet_for(chosen)
    made = planned("tp4")
    short = list(plantext.lines(chosen, where, made, why=False))
    (line,) = [text for text in short if text.startswith("adapters of the recipe: ")]
    assert (
        line == f"adapters of the recipe: {served.counts(served.served(chosen))}; --why lists them"
    )
    long = "\n".join(plantext.lines(chosen, where, made, why=True))
    assert "recipe shared_pad_k: on; shared_pad_k = true: the shared expert's 576 columns" in long
    assert "recipe moe_b12x_next: omitted; moe_b12x is omitted: no adapter: b12x 1.5.1" in long
