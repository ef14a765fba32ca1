"""The shipped profiles: every knob of both recipes, each with a reason; file profiles; examples."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsv41 import example, fleet, plan, profile
from dsv41.engines.trees import TREES
from dsv41.errors import UsageError
from dsv41.knobs import KNOBS, REQUIRED
from planned import SPARK_PROFILES, fleet_for, planned, profile_with

# the recipe's variables (three- and four-Spark tables), and the knob that stands for each
RECIPE_VARIABLES = {
    "OFFLOAD_MODE": "offload",
    "DSV41_IO_THREADS": "row_threads",
    "DSV41_RESIDENT_SCALES": "resident_scales",
    "DSV41_STATS_SECONDS": "row_stats_seconds",
    "DSV41_CACHE_GIB": "row_cache_gib",
    "DSV41_CACHE_WAYS": "row_cache_ways",
    "SKIP_PREPARE": "skip_prepare",
    "SKIP_VERIFY": "skip_verify",
    "SKIP_SMOKE": "skip_smoke",
    "SMOKE_QUICK": "smoke_quick",
    "WARMUP": "warmup",
    "DSV41_MXFP8_BACKEND": "mxfp8_backend",
    "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": "fused_finalize",
    "SGLANG_DSV41_REASONING_EFFORT": "reasoning_effort",
    "DSV41_MAX_NEW_TOKENS": "max_new_tokens",
    "DSV41_LOOP_ABORT": "loop_abort",
    "DSV41_LOOP_NGRAM": "loop_ngram",
    "DSV41_LOOP_REPEATS": "loop_repeats",
    "DSV41_LOOP_LINE_REPEATS": "loop_line_repeats",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments",
    "DSV41_PREFILL_EMPTY_CACHE_TOKENS": "prefill_empty_cache_tokens",
    "CUDA_DEVICE_ORDER": "cuda_device_order",
    "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "engram_host_table",
    "DSV41_TP_PAD": "tp_pad",
    "DSV41_WO_A_W8": "wo_a_w8",
    "DSV41_WO_A_W8_MID": "wo_a_w8_mid",
    "DSV41_WO_A_W8_DROP": "wo_a_w8_drop",
    "DSV41_WO_A_W8_DRAFT": "wo_a_w8_draft",
    "DSV41_DRAFT_HEAD_FP8": "draft_head_fp8",
    "DSV41_DRAFT_HEAD_FP8_IMPL": "draft_head_fp8_impl",
    "DSV41_VERIFY_CAP": "verify_cap",
    "DSV41_BLOCK_VERIFY": "block_verify",
    "DSV41_ENGRAM_PREFETCH": "engram_prefetch",
    "DSV41_AUTOTUNE_KEEP": "autotune_keep",
    "DSV41_DRAFT_TAU": "draft_tau",
    "DSV41_FOLDED_FENCE": "folded_fence",
    "DSV41_INDEXER_CHUNKED": "indexer_chunked",
    "SGLANG_DSPARK_FOLDED_SAMPLING": "folded_sampling",
    "SGLANG_ROCE_ALLREDUCE": "roce_allreduce",
    "SGLANG_ROCE_MAX_SIZE": "roce_max_size",
    "B12X_ROCE_CACHE_DIR": "b12x_roce_cache",
    "B12X_COMPILE_CACHE_DIR": "b12x_compile_cache",
    "SPARK_PREFILL_TP_SPLIT": "prefill_tp_split",
    "SPARK_PREFILL_TP_MIN_CONTEXT": "prefill_tp_min_context",
    "SPARK_PREFILL_TP_MIN_ROWS": "prefill_tp_min_rows",
    "SGLANG_RUST_BUILD_MODE": "rust_build",
    "DSV41_FAST_LOAD": "fast_load",
    "DSV41_FAST_LOAD_EP_SIZE": "fast_load_ep_size",
    "DSV41_FAST_LOAD_TP_SLICE": "fast_load_tp_slice",
    "DSV41_FAST_LOAD_N_EXPERTS": "fast_load_experts",
    "DSV41_FAST_LOAD_INFLIGHT_GB": "fast_load_inflight_gb",
    "DSV41_SHARED_PAD_K": "shared_pad_k",
    "DSV41_REPLICATED_SPLIT": "replicated_split",
    "DSV41_SPLIT_COMPACT_GATHER": "split_compact_gather",
    "DSV41_DRAFT_MAIN_PROJ_SPLIT": "draft_main_proj_split",
    "DSV41_ROCE_GATHER": "roce_gather",
    "DSV41_ROUTER_LIVE": "router_live",
    "DSV41_MOE_B12X_NEXT": "moe_b12x",
    "DSV41_MOE_B12X_NEXT_DETERMINISTIC": "moe_b12x_deterministic",
    "DSV41_HC_FUSED": "hc_fused",
    "DSV41_PREFILL_SP": "prefill_sp",
    "DSV41_PREFILL_SP_FP8": "prefill_sp_fp8",
    "DSV41_L2_PREFETCH": "l2_prefetch",
    "DSV41_L2_PREFETCH_WOA": "l2_prefetch_woa",
    "DSV41_SPEC_SYNC_FREE": "spec_sync_free",
    "DSV41_EAGER_GLUE": "eager_glue",
    "DSV41_CERT_HEAD": "cert_head",
    "DSV41_SERIAL_WEIGHT_LOAD": "serial_load",
    "NCCL_NET": "nccl_net",
    "NCCL_IB_DISABLE": "nccl_ib_disable",
    "NCCL_P2P_DISABLE": "nccl_p2p_disable",
    "NCCL_SHM_DISABLE": "nccl_shm_disable",
    "NCCL_CUMEM_ENABLE": "nccl_cumem",
    "NCCL_CROSS_NIC": "nccl_cross_nic",
    "NCCL_IB_MERGE_NICS": "nccl_merge_nics",
    "NCCL_IB_SUBNET_AWARE_ROUTING": "nccl_subnet_aware",
    "NCCL_BUFFSIZE": "nccl_buffer_bytes",
    "NCCL_LL128_BUFFSIZE": "nccl_ll128_bytes",
    "NCCL_PROTO": "nccl_proto",
    "NCCL_MAX_NCHANNELS": "nccl_max_channels",
    "NCCL_DEBUG": "nccl_debug",
    "NCCL_DEBUG_SUBSYS": "nccl_debug_subsys",
}


def test_every_variable_of_the_recipe_is_a_knob() -> None:
    assert set(RECIPE_VARIABLES.values()) <= KNOBS["sglang"].keys()


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_every_knob_has_a_value_or_a_reason(name: str) -> None:
    shipped = profile.load(name)
    assert shipped.knobs.keys() == KNOBS[shipped.engine].keys()
    assert all(len(knob.why) >= 11 for knob in shipped.knobs.values())
    assert not any(shipped.knobs[key].omitted for key in REQUIRED[shipped.engine])
    assert TREES[shipped.tree].engine == shipped.engine


def test_the_recipes_values() -> None:
    keys = ("tp", "context", "slots", "chunk", "mem_fraction", "draft_window", "shm_gib")
    values = {n: [profile.load(n)[key] for key in keys] for n in SPARK_PROFILES}
    assert values["tp3"] == [3, 262_144, 4, 768, 0.95, 5, 16]
    assert values["tp4"] == values["tp4-ring"] == [4, 1_048_576, 16, 4096, 0.8, 5, 16]
    assert values["tp4-cycle"] == [4, 430_080, 8, 8192, 0.83, 5, 16]
    assert [profile.load(n)["ep"] for n in SPARK_PROFILES] == [1, 2, 2, 1]
    assert profile.load("tp3")["revision"] != profile.load("tp4-cycle")["revision"]


def test_the_ring_differs_from_the_switch_in_nccl_alone() -> None:
    switch, ring = profile.load("tp4"), profile.load("tp4-ring")
    changed = {k for k in switch.knobs if switch.get(k) != ring.get(k)}
    assert all(key.startswith("nccl_") for key in changed)
    assert ring.knobs["roce_allreduce"].omitted
    assert "opposite nodes" in ring.knobs["roce_allreduce"].why


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_the_example_fleet_parses_and_plans(name: str) -> None:
    chosen = profile.load(name)
    text = example.fleet_text(chosen)
    assert all(key in text for key in ("api_key_file", "sps_table", "gid_index", "reserve_gib"))
    where = fleet.parse(text, where="fleet.toml")
    assert (where.topology, len(where.nodes)) == (
        {"tp3": "triangle", "tp4": "switch"}.get(name, "ring"),
        chosen["tp"],
    )
    assert len(planned(name).ranks) == chosen["tp"]


def test_uncommented_the_example_still_parses() -> None:
    """Every commented key is a real one with a value of its type."""
    text = example.fleet_text(profile.load("tp3"))
    lines = [line.removeprefix("# ") if " = " in line else line for line in text.splitlines()]
    assert fleet.parse("\n".join(lines), where="x").sps_table == "/etc/dsv41/dspark_sps.json"


def test_profile_local_needs_no_fleet_file() -> None:
    with pytest.raises(UsageError) as caught:
        example.fleet_text(profile.load("local"))
    assert caught.value.code == "D107"


EIGHT = """
name = "eight"
extends = "tp4"
says = "eight Sparks"
[knobs]
tp = { value = 8, why = "eight nodes" }
ep = { value = 2, why = "2,304 columns over four ranks" }
"""


def file_profile(folder: Path, text: str) -> profile.Profile:
    path = folder / "mine.toml"
    path.write_text(text)
    return profile.load(str(path))


def test_a_file_extends_a_shipped_profile(tmp_path: Path) -> None:
    mine = file_profile(tmp_path, EIGHT)
    assert (mine.name, mine.engine, mine.tree, mine["tp"]) == (
        "eight",
        "sglang",
        "sglang-0.5.23",
        8,
    )
    assert mine.knobs["tp"].source == str(tmp_path / "mine.toml")
    assert mine.knobs["slots"].source == "profiles/tp4.toml"


def test_eight_nodes_plan_with_two_expert_groups_and_not_with_one(tmp_path: Path) -> None:
    mine = file_profile(tmp_path, EIGHT)
    made = plan.plan(mine, fleet_for(mine), {})
    assert len(made.ranks) == 8
    assert "multiples of 128" in made.notes[0]["says"]  # what the release's own runner takes
    one = mine.with_values("--set ep", ep=1)
    with pytest.raises(
        UsageError, match=r"--set ep: knobs\.ep is 1; allowed: one that leaves"
    ) as caught:
        plan.plan(one, fleet_for(one), {})
    assert caught.value.fix == "give --set ep=2"
    four = mine.with_values("--set ep", ep=4)
    assert plan.plan(four, fleet_for(four), {}).notes == ()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"tp4"', '"tp5"', ["extends", "'tp5'", "tp4-cycle"]),
        ("tp = {", "tpp = {", ["knobs.tpp", "tp, ", "profiles.md lists"]),
        ("value = 8", "value = 8.5", ["knobs.tp", "8.5", "int from 1 to 16"]),
        ('{ value = 8, why = "eight nodes" }', '{ omitted = "x" }', ["knobs.tp", "omitted"]),
        ('why = "eight nodes"', 'why = ""', ["knobs.tp", "value and why"]),
        ('says = "eight', 'engine = "vllm"\nsays = "eight', ["engine", "'vllm'", "'sglang'"]),
        ("[knobs]", "[other]\n[knobs]", ["other"]),
    ],
)
def test_wrong_files_name_file_and_key(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        file_profile(tmp_path, EIGHT.replace(old, new, 1))
    assert caught.value.code == "D095"
    assert all(word in caught.value.says for word in ["mine.toml", *words]), caught.value.says


def test_another_tree_has_knobs_of_its_own(tmp_path: Path) -> None:
    """They come in when a file that extends the profile names the tree, and its own knobs win."""
    text = 'name = "x"\nextends = "tp3"\ntree = "sglang-base"\nsays = "x"\n'
    mine = file_profile(tmp_path, text)
    assert mine == replace(
        profile.load("tp3").on_tree("sglang-base"), name="x", says="x", where=mine.where
    )
    assert mine.knobs["block_verify"].omitted
    assert plan.plan(mine, fleet_for(mine), {})
    own = file_profile(tmp_path, text + '[knobs]\nimage_text = { omitted = "not wanted" }\n')
    assert own.knobs["image_text"].why == "not wanted"
    with pytest.raises(UsageError, match=r"knobs\.slotz"):
        file_profile(tmp_path, text + '[trees.sglang-branch]\nslotz = { omitted = "x" }\n')


def test_an_override_keeps_the_old_reason() -> None:
    eager = profile_with("tp4-cycle", eager=True)
    assert eager["eager"] is True
    assert "14.5 to 14.8" in eager.knobs["eager"].why
    assert eager.knobs["eager"].source == "test"
