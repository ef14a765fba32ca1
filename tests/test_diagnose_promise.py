"""The shipped profiles promise what their files say."""

import pytest

from dsv41 import budget, profile
from dsv41.diagnose import judge_log
from dsv41.diagnose.promise import expectation
from engine_logs import Asked, sglang

GIB = 1 << 30
IMAGE = "registry.example/dsv41-sglang@sha256:" + "5a" * 32


@pytest.mark.parametrize(
    ("name", "engine", "tp", "ring"),
    [
        ("tp3", "sglang", 3, False),
        ("tp4", "sglang", 4, False),
        ("tp4-ring", "sglang", 4, True),
        ("tp4-cycle", "vllm", 4, True),
    ],
)
def test_the_profiles(name: str, engine: str, tp: int, ring: bool) -> None:
    chosen = profile.load(name)
    ledger = budget.ledger(chosen)
    assert ledger is not None
    expect = expectation(chosen, image=IMAGE, ledgers=[ledger])
    assert (expect.engine, expect.tp, expect.needs_ring) == (engine, tp, ring)
    assert {"slots", "chunk", "context", "draft_window"} <= expect.limits().keys()
    assert expect.context == chosen["context"]
    assert expect.image == "registry.example/dsv41-sglang"
    assert expect.image_digest == "sha256:" + "5a" * 32
    assert expect.engine_bytes is not None
    assert expect.headroom_bytes is not None
    assert 90 * GIB < expect.engine_bytes < 121 * GIB
    assert 0 < expect.headroom_bytes < 30 * GIB
    assert len(str(expect.revision)) == 40


def test_the_local_profile_has_no_image_and_no_budget() -> None:
    expect = expectation(profile.load("local"))
    assert (expect.engine, expect.image, expect.engine_bytes) == ("local", None, None)


def test_a_clamp_below_the_shipped_profile_fails() -> None:
    expect = expectation(profile.load("tp3"))
    asked = Asked(pool=expect.pool_tokens or 0)
    assert judge_log(sglang(asked, pool=asked.pool), expect).status == "ok"
    assert judge_log(sglang(asked, pool=asked.pool - 256), expect).status == "fail"
    assert judge_log(sglang(asked, pool=asked.pool, slots=3), expect).status == "fail"
