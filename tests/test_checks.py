"""What a profile must not say: refusals, contradictions, and what its engine tree lacks."""

from __future__ import annotations

from typing import Any

import pytest

from dsv41 import plan, profile
from dsv41.errors import Unsafe, UsageError
from planned import fleet_for, planned


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("tp3", {"offload": "ram"}, ["offload", "'ram'", "189 GiB"]),
        ("tp3", {"offload": "host"}, ["offload", "'host'"]),
        ("tp3", {"engram_host_table": True}, ["engram_host_table"]),
        ("tp3", {"hierarchical_cache": True}, ["hierarchical_cache", "33656"]),
        ("tp3", {"expandable_segments": True}, ["expandable_segments", "NaN"]),
        ("tp3", {"fused_finalize": True}, ["fused_finalize"]),
        ("tp3", {"privileged": True}, ["privileged"]),
        ("tp3", {"ipc_host": True}, ["ipc_host"]),
        ("tp3", {"shm_gib": 32}, ["shm_gib", "32", "16 GiB at most"]),
        ("tp4-cycle", {"offload": "ram"}, ["offload"]),
        ("tp4-cycle", {"shm_gib": 32}, ["shm_gib"]),
    ],
)
def test_what_is_never_served_is_refused(
    name: str, change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(Unsafe) as caught:
        planned(name, **change)
    assert caught.value.code == "D106"
    assert all(word in caught.value.says for word in [f"profiles/{name}.toml", *words])


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("tp3", {"ep": 2}, ["knobs.ep", "2", "a divisor of tp"]),
        ("tp3", {"tp_pad": False}, ["knobs.tp_pad", "8 output groups"]),
        ("tp3", {"scale_repair": False}, ["knobs.scale_repair", "Triton"]),
        ("tp3", {"fp8_gemm": "auto"}, ["knobs.fp8_gemm", "flashinfer_cutlass"]),
        ("tp3", {"pool_tokens": 65536}, ["knobs.pool_tokens", "one full context"]),
        ("tp3", {"graph_slots": 8}, ["knobs.graph_slots", "at most slots"]),
        ("tp3", {"ragged_verify": "compact"}, ["knobs.ragged_verify", "one equal block"]),
        ("tp3", {"verify_cap": "conf:0.1"}, ["knobs.ragged_verify", "'cap-accept'"]),
        ("tp3", {"tool_call_parser": "deepseekv4"}, ["knobs.tool_call_parser", "deepseekv41"]),
        ("tp4-cycle", {"draft_window": 4}, ["knobs.draft_window", "4", "multiple"]),
        ("tp4-cycle", {"partition": "weighted"}, ["knobs.partition", "columns"]),
        ("tp4-cycle", {"nccl_min_channels": 8}, ["knobs.nccl_min_channels"]),
    ],
)
def test_contradictions_name_file_key_and_allowed(
    name: str, change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        planned(name, **change)
    assert caught.value.code == "D104"
    assert all(word in caught.value.says for word in [f"profiles/{name}.toml", "allowed", *words])


def test_balanced_padding_leaves_no_rank_empty() -> None:
    assert planned("tp3", layout="balanced", scale_repair=False).ranks[0].env["DSV41_TP_PAD"] == "1"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tp3", {"prefill_sp": True}),
        ("tp3", {"hc_fused": True}),
        ("tp4", {"roce_allreduce": True}),
        ("tp4", {"moe_b12x": True}),
        ("tp4", {"l2_prefetch": True}),
        ("tp4-cycle", {"engram_read_chunk": 16}),
        ("tp4-cycle", {"loop_abort": True}),
        ("tp3", {"resident_scales": True}),
        ("tp4-cycle", {"resident_scales": True}),
        ("tp4", {"row_cache_ways": 16}),
        ("tp4-cycle", {"row_cache_ways": 1}),
    ],
)
def test_what_the_tree_lacks_is_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="neither a flag nor an adapter") as caught:
        planned(name, **change)
    assert caught.value.code == "D103"
    assert next(iter(change)) in caught.value.says


def test_off_asks_for_nothing() -> None:
    assert planned("tp3", verify_cap="off", wo_a_w8=False, roce_gather=0)


@pytest.mark.parametrize("name", ["tp3", "tp4-cycle"])
def test_what_the_row_store_does_anyway_asks_for_nothing(name: str) -> None:
    same = planned(name, row_cache_ways=4, resident_scales=False)
    assert [rank.env for rank in same.ranks] == [rank.env for rank in planned(name).ranks]


def test_a_tree_of_another_engine_is_refused() -> None:
    chosen = profile.load("tp3").on_tree("vllm-0.33.0")
    with pytest.raises(UsageError, match=r"sglang has sglang-0\.5\.23, sglang-branch") as caught:
        plan.plan(chosen, fleet_for(chosen), {})
    assert caught.value.code == "D103"
