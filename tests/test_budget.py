"""The memory ledger: the published numbers, the verdicts, the nearest settings that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41 import budget, plan, profile
from dsv41.adapters.chunks import SLOTS, cache_bytes
from dsv41.budget import nearest, pools, weights
from dsv41.budget.weights import GIB
from dsv41.errors import Unsafe
from dsv41.geometry import kv_pool_bytes, kv_pool_tokens
from planned import SPARK_PROFILES, each_node, fleet_for, profile_with

KI = 1024


def ledger(name: str, *, tree: str | None = None, **knobs: Any) -> budget.Ledger:
    found = budget.ledger(profile_with(name, tree=tree, **knobs))
    assert found is not None
    return found


def item(found: budget.Ledger, name: str) -> int:
    return next(entry.bytes for entry in found.items if entry.item == name)


def test_rows_read_ahead_are_in_the_ledger() -> None:
    """What the adapter makes: four slots of ids and rows, and a cache of four chunks a layer."""
    ids = 6 * 8192  # of one layer: a quarter of 24 columns
    slots = 2 * SLOTS * ids * (8 + 264)
    rows = {
        n: item(ledger("tp4-cycle", engram_ahead=n, row_cache_gib=0), "rows") for n in (0, 1, 2)
    }
    assert rows == {0: 0, 1: 0, 2: slots + 2 * cache_bytes(ids)}
    assert 0.19 < rows[2] / GIB < 0.21
    cached = ledger("tp4-cycle", engram_ahead=2, row_cache_gib=0.125)  # more than the four chunks
    assert item(cached, "rows") == GIB // 8 + slots


# published figures


def test_the_checkpoint_on_disk() -> None:
    """MIA-README: experts 289 GB, other 10.5 GB, draft 7.9 GB."""
    whole = weights.whole()
    assert whole.experts / 1e9 == pytest.approx(289, rel=0.002)
    assert (whole.dense + whole.vision) / 1e9 == pytest.approx(10.5, rel=0.02)
    assert whole.draft / 1e9 == pytest.approx(7.9, rel=0.01)


@pytest.mark.parametrize(("tp", "published"), [(2, 145), (3, 101), (4, 77)])
def test_weights_of_a_rank(tp: int, published: float) -> None:
    """MIA-README, GiB; the figure of four ranks calibrates what loading takes beyond tensors."""
    found = weights.of_rank(engine="sglang", tp=tp)
    assert found.loaded / GIB == pytest.approx(published, rel=0.012)


def test_weights_of_the_cycle() -> None:
    """SR-PR261: model loading took 78.79 GiB (text)."""
    found = weights.of_rank(engine="vllm", tp=4, text_only=True)
    assert found.loaded / GIB == pytest.approx(78.79)


def test_the_balanced_layout_saves_a_group_a_rank() -> None:
    """Three ranks hold 3 groups instead of 4 of 8: wq_b, wo_a in bf16 and wo_b of 43 layers."""
    projections = 41_984_000 + 67_108_864 + 41_984_000
    assert weights.balanced_saves(3) == 43 * projections // 8 == 812_038_144
    assert [weights.balanced_saves(tp) for tp in (1, 2, 4, 8)] == [0, 0, 0, 0]
    legal, balanced = ledger("tp3"), ledger("tp3", layout="balanced")
    for found, says in ((legal, "would save"), (balanced, "saves")):
        (why,) = [entry.why for entry in found.items if entry.item == "padding"]
        assert f"legal {says} 812,038,144 bytes on each rank, 2,436,114,432 on all 3" in why
        assert item(found, "padding") == 0
    model = [item(found, "weights") + item(found, "draft") for found in (legal, balanced)]
    assert model[0] - model[1] == 812_038_144
    assert not [entry for entry in ledger("tp4").items if entry.item == "padding"]


def test_the_pool_line_of_the_published_boot_log() -> None:
    """available_bytes=26.71 GB, swa_fixed=0.67 GB, full_token=16735744 (GB are GiB, rounded)."""
    tokens = kv_pool_tokens(int((26.71 - 0.67) * GIB))
    assert tokens == pytest.approx(16_735_744, rel=0.0005)
    assert tokens % 256 == 0
    eight = profile_with("tp4", slots=8, pool_tokens=20_000_000)
    pool, _ = pools.sglang_pool(eight, left=int(26.71 * GIB))
    assert pool == pytest.approx(16_735_744, rel=0.0005)


def test_a_pool_in_round_numbers_is_exact() -> None:
    """1670.75 B a token: 4 x 256 tokens need 1,710,848 bytes, and hold exactly as many."""
    assert kv_pool_bytes(1024) == 1_710_848
    asked = profile_with("tp4", pool_tokens=1_048_576)
    window = pools.window_bytes(asked)
    assert pools.sglang_pool(asked, left=1_710_848 + window) == (1024, 1_710_848)
    assert pools.sglang_pool(asked, left=1_710_847 + window)[0] == 768
    assert pools.sglang_pool(asked, left=0) == (0, 0)


@pytest.mark.parametrize(("slots", "gib"), [(4, 0.34), (8, 0.67)])
def test_the_window_pool_of_the_boot_log(slots: int, gib: float) -> None:
    found = pools.window_bytes(profile_with("tp3", slots=slots, graph_slots=1))
    assert found / GIB == pytest.approx(gib, abs=0.006)


def test_nccl_buffers() -> None:
    """512 x 9.19 MiB = 4.6 GiB by default, 139 MB as tuned (MIA-README)."""
    default = profile_with("tp3")
    omitted = {"nccl_buffer_bytes", "nccl_ll128_bytes", "nccl_max_channels"}
    knobs = {k: v for k, v in default.knobs.items() if k not in omitted}
    assert pools.nccl_bytes(replace(default, knobs=knobs)) == pytest.approx(
        512 * 9.19 * 2**20, rel=1e-3
    )
    assert pools.nccl_bytes(replace(default, knobs=knobs)) / GIB == pytest.approx(4.6, abs=0.01)
    assert pools.nccl_bytes(default) / 1e6 == pytest.approx(139, abs=0.6)


@pytest.mark.parametrize(("chunk", "gb"), [(1024, 15.0), (4096, 60.1)])
def test_the_indexers_transient_at_a_million_tokens(chunk: int, gb: float) -> None:
    at = profile_with("tp4", chunk=chunk)
    assert pools.prefill_bytes(at, bounded=False) / 1e9 == pytest.approx(gb, abs=0.1)
    assert pools.prefill_bytes(at, bounded=True) <= pools.prefill_bytes(at, bounded=False)


def test_four_sparks_at_a_million_tokens() -> None:
    """MIA-README: 8M asked, 5.98 to 6.49M got with its loader; 6,029 MiB free at the low point."""
    found = ledger("tp4", pool_tokens=8_000_000)
    assert found.clamped
    assert 5_000_000 < found.pool_tokens < 6_490_000
    assert found.free / 2**20 == pytest.approx(6029, rel=0.02)


def test_three_sparks_pool() -> None:
    """MIA-README: 750,000 asked, 658,176 to 749,824 got at fractions of 0.944 to 0.95."""
    found = ledger("tp3", pool_tokens=750_000)
    assert 658_176 <= found.pool_tokens <= 749_824


def test_the_cycles_recorded_boot() -> None:
    """SR-PR261: 10.94 GiB of cache = 2,182,642 tokens at 0.83; 3,085,606 at 0.85."""
    found = ledger("tp4-cycle")
    assert found.pool_tokens == pytest.approx(2_182_642, rel=0.001)
    assert (item(found, "kv") + item(found, "window")) / GIB == pytest.approx(10.94, abs=0.01)
    assert ledger("tp4-cycle", mem_fraction=0.85).pool_tokens == pytest.approx(3_085_606, rel=0.001)
    assert 7 <= ledger("tp4-cycle", mem_fraction=0.85).free / GIB <= 9  # published 7 to 9


# verdicts


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("tp3", "tight"), ("tp4", "fits"), ("tp4-ring", "fits"), ("tp4-cycle", "fits")],
)
def test_the_shipped_profiles_go(name: str, verdict: str) -> None:
    assert ledger(name).verdict == verdict


def test_the_published_configurations_go() -> None:
    published = ledger("tp3", tree="sglang-base", pool_tokens=750_000)
    assert published.verdict == "tight"
    assert ledger("tp4", pool_tokens=8_000_000).verdict == "tight"  # clamped, as it was


@pytest.mark.parametrize(
    ("chunk", "context", "verdict"),
    [
        (768, 256 * KI, "tight"),
        (1024, 208 * KI, "tight"),
        (2048, 100 * KI, "tight"),
        (1000, 220_000, "tight"),
        (1000, 220_001, "refused"),
        (1024, 256 * KI, "refused"),
    ],
)
def test_three_sparks_without_the_bounded_indexer(chunk: int, context: int, verdict: str) -> None:
    """1024 x 208k and 2048 x 100k ran, 1024 x 256k failed: the line is chunk x prefix = 2.2e8."""
    assert ledger("tp3", tree="sglang-base", chunk=chunk, context=context).verdict == verdict


@pytest.mark.parametrize(
    ("name", "tree", "knobs"),
    [
        ("tp4", None, {"tp": 2, "ep": 1}),
        ("tp4", "sglang-branch", {}),  # 4096 x 1M without the bounded indexer: about 60 GB
        ("tp4-cycle", None, {"chunk": 16384, "mem_fraction": 0.8, "context": 300_000}),
    ],
)
def test_what_failed_or_cannot_go(name: str, tree: str | None, knobs: dict[str, Any]) -> None:
    assert ledger(name, tree=tree, **knobs).verdict == "refused"


def test_two_ranks_say_why() -> None:
    two = profile_with("tp4", tp=2, ep=1)
    where = fleet_for(profile_with("tp4"))
    where = replace(where, nodes=where.nodes[:2])
    with pytest.raises(Unsafe) as caught:
        plan.plan(two, where, {})
    assert caught.value.code == "D120"
    assert caught.value.exit_status == 5
    assert "weights 146.6" in caught.value.says
    # not --tp 4 alone: its experts would be cut into slices of 576 columns, which stop at load
    assert caught.value.fix == "--tp 4 --set ep=2 with 4 nodes"


def test_a_refusal_names_the_nearest_settings() -> None:
    wide = profile_with("tp3", tree="sglang-base", chunk=1024)
    settings_that_fit = nearest.nearest(wide)
    assert settings_that_fit[0] == "--set chunk=832"
    assert settings_that_fit[1] == "--set context=212992"  # the 208k that ran
    lowered = wide.with_values("test", context=212_992)
    assert ledger_of(lowered).verdict == "tight"
    assert ledger_of(wide.with_values("test", context=212_992 + 4096)).verdict == "refused"


def ledger_of(chosen: profile.Profile) -> budget.Ledger:
    found = budget.ledger(chosen)
    assert found is not None
    return found


def test_the_fullest_node_decides() -> None:
    """A board with 119 GiB of memory does not hold a third of the model (user report P83)."""
    chosen = profile.load("tp4")
    where = fleet_for(chosen)
    small = replace(where.nodes[2], memory_gib=119.0)
    made = plan.plan(chosen, replace(where, nodes=(*where.nodes[:2], small, where.nodes[3])), {})
    assert made.budget is not None
    assert made.budget["node"] == "spark3"
    three = profile.load("tp3")
    with pytest.raises(Unsafe, match="does not fit on spark1"):
        plan.plan(three, each_node(fleet_for(three), memory_gib=119.0), {})
    with pytest.raises(Unsafe, match=r"reserve 6\.0"):
        plan.plan(three, each_node(fleet_for(three), reserve_gib=6.0), {})


def test_the_map_is_monotone() -> None:
    """Neither a longer context nor more streams ever gets easier."""
    rank = nearest.CELLS.index
    rows = [[rank(cell) for cell in row] for row in nearest.cells(profile.load("tp3"), None)]
    assert all(row == sorted(row, reverse=True) for row in rows)
    assert all(list(col) == sorted(col, reverse=True) for col in zip(*rows, strict=True))
    assert {cell for row in rows for cell in row} >= {0, 1, 3}


# properties

KNOBS = st.fixed_dictionaries(
    {
        "chunk": st.integers(128, 16384),
        "context": st.integers(4096, 1_048_576),
        "slots": st.integers(1, 64),
        "mem_fraction": st.floats(0.3, 0.98),
        "row_cache_gib": st.integers(0, 8) | st.floats(0, 8),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPARK_PROFILES), KNOBS)
def test_the_ledger_adds_up(name: str, knobs: dict[str, Any]) -> None:
    found = LOADED[name].with_values("test", **knobs)
    made = ledger_of(found)
    assert made == ledger_of(found)
    assert all(entry.bytes >= 0 and entry.why for entry in made.items)
    assert made.used == sum(entry.bytes for entry in made.items)
    assert made.free == made.memory - made.used
    assert len({entry.item for entry in made.items}) == len(made.items)
    assert (made.verdict == "refused") == (
        made.free < budget.FLOOR_BYTES or made.pool_tokens < made.context
    )


LOADED = {name: profile.load(name) for name in SPARK_PROFILES}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SPARK_PROFILES), st.integers(1, 64), st.integers(0, 63))
def test_less_never_needs_more(name: str, slots: int, fewer: int) -> None:
    more = LOADED[name].with_values("test", slots=slots)
    less = more.with_values("test", slots=max(1, slots - fewer))
    assert pools.window_bytes(less) <= pools.window_bytes(more)
    assert ledger_of(less).pool_tokens >= ledger_of(more).pool_tokens
