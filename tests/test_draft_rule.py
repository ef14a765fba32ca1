"""Which drafts stay alive: the words, their limits, and the rule on tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv41.adapters.adapter import is_on
from dsv41.adapters.draft_rule import Rule, rule_of
from dsv41.adapters.sglang import draft_tau, verify_cap
from dsv41.errors import CheckFailed, UsageError

CAP, LEAST, MODE = "DSV41_VERIFY_CAP", "DSV41_VERIFY_CAP_MIN", verify_cap.MODE
unit = st.floats(0, 1, width=32)


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("", None),
        ("off", None),
        ("0", None),
        ("conf:0.1", Rule(thresholds=(0.1,))),
        ("CONF:0.5,0.25,0.1", Rule(thresholds=(0.5, 0.25, 0.1))),
        ("3", Rule(count=3)),
    ],
)
def test_words(word: str, rule: Rule | None) -> None:
    assert rule_of({CAP: word}) == rule


@pytest.mark.parametrize("word", ["conf", "conf:", "conf:1.1", "conf:nan", "6", "-1", "fast"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(CheckFailed, match="conf:T") as caught:
        rule_of({CAP: word})
    assert caught.value.code == "D480"


def test_the_least_number_of_rows() -> None:
    assert rule_of({CAP: "conf:0.1", LEAST: "2"}) == Rule(thresholds=(0.1,), least=2)
    with pytest.raises(CheckFailed):
        rule_of({CAP: "conf:0.1", LEAST: "0"})
    with pytest.raises(UsageError):
        rule_of({CAP: "conf:0.1", LEAST: "some"})


def test_the_product_counts_and_the_first_below_ends_it() -> None:
    confidence = torch.tensor([[0.5, 0.5, 0.9], [0.05, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert Rule(thresholds=(0.2,)).live(confidence).tolist() == [4, 1, 4]
    assert Rule(thresholds=(0.3,)).live(confidence).tolist() == [2, 1, 4]
    # the last threshold is that of all further positions; one that is passed again does not count
    assert Rule(thresholds=(0.6, 0.0)).live(confidence).tolist() == [1, 1, 4]
    assert Rule(thresholds=(0.3,), least=3).live(confidence).tolist() == [3, 3, 4]
    assert Rule(count=1).live(confidence).tolist() == [2, 2, 2]


@given(st.lists(st.lists(unit, min_size=5, max_size=5), min_size=1, max_size=4), unit, unit)
def test_a_position_depends_on_those_before_it(
    rows: list[list[float]], limit: float, other: float
) -> None:
    rule, confidence = Rule(thresholds=(limit,)), torch.tensor(rows)
    live = rule.live(confidence)
    assert ((live >= 1) & (live <= 6)).all()
    for at in range(5):
        changed = confidence.clone()
        changed[:, at] = other
        assert torch.equal(rule.live(changed).clamp(max=at + 1), live.clamp(max=at + 1))


def test_the_cap_needs_the_mode_that_has_one() -> None:
    verify_cap.check({CAP: "conf:0.1", MODE: "cap-accept"})
    verify_cap.check({CAP: "off"})
    for mode in ({}, {MODE: "static"}, {MODE: "compact"}):
        with pytest.raises(CheckFailed, match="cap-accept") as caught:
            verify_cap.check({CAP: "conf:0.1", **mode})
        assert caught.value.code == "D481"


@pytest.mark.parametrize(
    ("word", "factor"), [("", 1.0), ("off", 1.0), ("0", 1.0), ("1", 1.0), ("0.7", 0.7)]
)
def test_factors_of_the_drafts_temperature(word: str, factor: float) -> None:
    assert draft_tau.factor_of({"DSV41_DRAFT_TAU": word}) == factor


def test_a_factor_of_one_installs_nothing() -> None:
    for word, on in (("1", False), ("1.0", False), ("OFF", False), ("0.7", True)):
        assert is_on(draft_tau.ADAPTER, {"DSV41_DRAFT_TAU": word}) is on


@pytest.mark.parametrize("word", ["-0.5", "1.5", "warm", "nan"])
def test_other_factors_are_refused(word: str) -> None:
    with pytest.raises(CheckFailed) as caught:
        draft_tau.factor_of({"DSV41_DRAFT_TAU": word})
    assert caught.value.code == "D482"


def test_no_factor_beside_the_graph_that_takes_it_for_the_targets() -> None:
    draft_tau.check({"DSV41_DRAFT_TAU": "0.7", draft_tau.GRAPH: "0"})
    draft_tau.check({"DSV41_DRAFT_TAU": "1", draft_tau.GRAPH: "1"})
    with pytest.raises(CheckFailed, match="temperature"):
        draft_tau.check({"DSV41_DRAFT_TAU": "0.7", draft_tau.GRAPH: "true"})
