"""The Plan: pure, canonical, checked on reading, equal fingerprints."""

import json
from pathlib import Path

import pytest

from dsv41 import fleet, plan, profile
from dsv41.errors import UsageError

CASE = Path(__file__).parent / "cases" / "plan-local.json"


def make(tp: int = 3, *, keys: str | None = None, state: str = "/var/lib/dsv41") -> plan.Plan:
    where = fleet.loopback(tp=tp, state_dir=state, port=8888, master_port=20000, api_key_file=keys)
    return plan.plan(profile.load("local").with_values("--tp", tp=tp), where, {})


def test_golden() -> None:
    """Change the case on purpose only: dsv41 plan --state-dir /var/lib/dsv41 --json."""
    assert make().to_json() == CASE.read_text()


def test_same_input_same_bytes_and_every_input_counts() -> None:
    assert make().to_json() == make().to_json()
    others = [make(1), make(keys="/k"), make(state="/srv")]
    assert len({p.digest for p in [make(), *others]}) == 4


def test_reading_back_gives_the_same_plan() -> None:
    made = make(keys="/etc/keys")
    assert plan.parse(made.to_json(), where="x") == made


def test_a_changed_plan_is_refused() -> None:
    text = make().to_json().replace("--slots", "--slotz")
    with pytest.raises(UsageError) as caught:
        plan.parse(text, where="plan.json")
    assert caught.value.code == "D098"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema":"dsv41.plan/2"}', "null"])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan.parse(text, where="plan.json")
    assert caught.value.code == "D097"


@pytest.mark.parametrize("tp", range(1, 9))
def test_ranks_differ_only_where_they_may(tp: int) -> None:
    made = make(tp, keys="/etc/keys")
    assert len({rank.fingerprint for rank in made.ranks}) == 1
    assert [rank.role for rank in made.ranks] == ["head", *["worker"] * (tp - 1)]
    head, *workers = made.ranks
    for worker in workers:
        only_head = set(head.argv) - set(worker.argv)
        assert only_head <= {"0", "--serve", "127.0.0.1:8888", "--api-key-file", "/etc/keys"}
        assert worker.env == head.env
        assert "--serve" not in worker.argv


def test_workers_start_before_the_head() -> None:
    assert [step.id for step in make().steps] == ["pack", "rank-1", "rank-2", "rank-0"]


def test_no_key_is_in_the_plan_and_no_variable_is_empty() -> None:
    made = make(keys="/etc/keys")
    assert all(value for rank in made.ranks for value in rank.env.values())
    assert json.loads(made.to_json())["api_key_file"] == "/etc/keys"


def test_a_fleet_of_another_size_is_refused() -> None:
    where = fleet.loopback(tp=2, state_dir="/s", port=1, master_port=2)
    with pytest.raises(UsageError) as caught:
        plan.plan(profile.load("local"), where, {})
    assert caught.value.code == "D096"
