"""What a refusal names: what a person gave, then less of a knob, then more ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsv41 import plan, profile
from dsv41.budget.nearest import nearest
from dsv41.errors import Unsafe
from planned import each_node, fleet_for

MORE = "--profile tp4 with 4 nodes"


def given(name: str, **values: Any) -> profile.Profile:
    """A shipped profile with values by --set."""
    chosen = profile.load(name)
    for knob, value in values.items():
        chosen = chosen.with_values(f"--set {knob}", **{knob: value})
    return chosen


def fix(chosen: profile.Profile, **values: Any) -> str:
    """What mends its Plan on its example fleet, each node with such values."""
    with pytest.raises(Unsafe) as caught:
        plan.plan(chosen, each_node(fleet_for(chosen), **values), {})
    assert caught.value.code == "D120"
    return caught.value.fix


def test_a_setting_that_caused_it_is_to_be_left_out() -> None:
    """No less of chunk, context or slots makes room for 64 GiB of rows."""
    assert fix(given("tp3", row_cache_gib=64)) == "leave out --set row_cache_gib=64"
    small = fix(given("tp3", row_cache_gib=2))
    assert small.startswith("leave out --set row_cache_gib=2, or --set chunk=")
    assert small.endswith(f", or {MORE}")


def test_settings_that_caused_it_together_are_to_be_left_out_together() -> None:
    several = given("tp3", row_cache_gib=64, chunk=16384, metrics=False)
    assert fix(several).startswith(
        "leave out --set chunk=16384 and leave out --set row_cache_gib=64"
    )


def test_a_value_that_was_given_twice_goes_back_to_the_profiles() -> None:
    twice = given("tp3", row_cache_gib=2).with_values("--set row_cache_gib", row_cache_gib=64)
    assert twice.without("row_cache_gib")["row_cache_gib"] == 0
    assert fix(twice) == "leave out --set row_cache_gib=64"


def test_the_reserve_of_the_nodes_is_given_too() -> None:
    assert fix(profile.load("tp3"), reserve_gib=8.0) == f"--reserve-gib 0, or {MORE}"
    both = fix(given("tp3", row_cache_gib=64), reserve_gib=8.0)
    assert both == "leave out --set row_cache_gib=64 and --reserve-gib 0"


def test_what_fits_on_the_fullest_node_fits_on_all() -> None:
    """Without its reserve the first node holds a rank; the third is too small for one."""
    chosen = profile.load("tp3")
    where = fleet_for(chosen)
    nodes = list(where.nodes)
    nodes[0], nodes[2] = replace(nodes[0], reserve_gib=8), replace(nodes[2], memory_gib=119)
    assert "--reserve-gib 0" not in nearest(chosen, nodes)
    assert "--reserve-gib 0" in nearest(chosen, nodes[:2])


def test_a_file_that_extends_a_profile_gives_values_too() -> None:
    text = """name = "mine"
extends = "tp4"
[knobs]
row_cache_gib = { value = 64, why = "rows" }
loop_repeats = { value = 5, why = "lists" }
"""
    mine = profile.parse(text, where="./mine.toml")
    assert set(mine.given) == {"row_cache_gib", "loop_repeats"}
    assert fix(mine) == "leave row_cache_gib out of ./mine.toml"
    assert profile.load("tp4").given == []  # it extends tp3 itself


def test_nothing_at_all_says_so() -> None:
    says = fix(profile.load("tp3"), memory_gib=30.0)
    assert says.startswith("none of chunk, context, slots and the number of nodes makes it fit")


@pytest.mark.parametrize(
    ("chosen", "more"),
    [
        (given("tp3", chunk=4096), MORE),
        (given("tp3", chunk=1024).on_tree("sglang-base"), "--tp 4 --set ep=2 with 4 nodes"),
        (replace(given("tp3", chunk=4096), where="./mine.toml"), "--tp 4 --set ep=2 with 4 nodes"),
        (given("tp4-cycle", context=1_048_576, slots=64), "--tp 8 --set ep=2 with 8 nodes"),
    ],
)
def test_more_ranks_load(chosen: profile.Profile, more: str) -> None:
    """At tp 4 and ep 1 an expert's slice is 576 columns, and SGLang takes multiples of 128."""
    assert nearest(chosen)[-1] == more
