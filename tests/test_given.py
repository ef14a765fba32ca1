"""What a person gave and may have meant: knobs near a name, a profile for the fleet's size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsv41 import plan, profile
from dsv41.errors import UsageError
from planned import fleet_for

ALL = "docs/reference/profiles.md lists all."


def wrong(name: str, knob: str, value: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        profile.load(name).with_values(f"--set {knob}", **{knob: value})  # type: ignore[arg-type]
    return caught.value


def test_a_knob_near_the_name_is_named() -> None:
    near = wrong("tp3", "nccl_cros_nic", 1)
    says = "--set nccl_cros_nic: engine sglang has no knob nccl_cros_nic; the nearest are "
    assert near.says.startswith(f"{says}nccl_cross_nic, ")
    assert near.says.endswith(f"; {ALL}")
    assert near.fix == "give --set nccl_cross_nic=1"
    assert wrong("tp3", "qqqq", 1).says.endswith(f"has no knob qqqq; {ALL}")
    assert "; it has tp, layout, " in wrong("local", "qqqq", 1).says


def test_a_value_is_told_as_it_is_typed() -> None:
    assert "knobs.slots is true; allowed: int from 1 to 256." in wrong("tp3", "slots", True).says
    assert "knobs.metrics is 3; allowed: true or false." in wrong("tp3", "metrics", 3).says


@pytest.mark.parametrize(
    ("knob", "value", "fix"),
    [
        ("max_new_tokens", -1, "give --set max_new_tokens=0"),
        ("slots", 10**400, "give --set slots=256"),
        ("slots", 2.5, "give --set slots=2"),
        ("draft_tau", -1, "give --set draft_tau=0.1"),
        ("draft_tau", float("nan"), "leave out --set draft_tau=nan"),
        ("metrics", "tru", "give --set metrics=true"),
        ("metrics", "FALSE", "give --set metrics=false"),
        ("served_name", "a b", "leave out --set served_name='a b'"),
        ("served_name", 3, "leave out --set served_name=3"),
        ("row_engine", "urin", "give --set row_engine=uring"),
        ("", 3, "give --set KNOB=3"),
    ],
)
def test_what_mends_a_value_can_be_pasted(knob: str, value: object, fix: str) -> None:
    assert wrong("tp3", knob, value).fix == fix


@pytest.mark.parametrize(
    ("name", "fleet", "mends"),
    [
        ("tp4", "tp3", "--profile tp3"),
        ("tp3", "tp4", "--profile tp4"),
        ("tp3", "tp4-cycle", "--profile tp4-cycle, or --profile tp4-ring"),
    ],
)
def test_a_fleet_of_another_size_has_a_profile(name: str, fleet: str, mends: str) -> None:
    """Not --tp alone, with which tp4 breaks its own rules on three nodes."""
    with pytest.raises(UsageError) as caught:
        plan.plan(profile.load(name), fleet_for(profile.load(fleet)), {})
    assert caught.value.code == "D096"
    assert caught.value.fix == f"{mends}, or give the fleet one node per rank"


def test_a_size_that_no_profile_has_is_given_by_tp() -> None:
    chosen = profile.load("tp4")
    where = fleet_for(chosen)
    with pytest.raises(UsageError) as caught:
        plan.plan(chosen, replace(where, nodes=where.nodes[:2]), {})
    assert caught.value.fix == "give --tp 2, or give the fleet one node per rank"
