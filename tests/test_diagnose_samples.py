"""Wedged, busy, idle or serving; and the low-power state of a GPU."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.diagnose import judge_power, judge_samples, read_gpu_rows, read_samples

WEDGED: dict[str, Any] = {
    "generated_tokens_total": 900,
    "prompt_tokens_total": 80,
    "running": 2,
    "queued": 5,
}
WEDGED |= {"gpu_util": 95, "power_w": 21.5, "prefill_progress": False}


def series(count: int = 5, *, step: float = 10, **changes: Any) -> str:
    """`count` samples; a list gives one value a sample, anything else holds for all."""
    rows = []
    for place in range(count):
        row: dict[str, Any] = {"t": place * step, **WEDGED}
        for name, value in changes.items():
            row[name] = value[place] if isinstance(value, list) else value
        rows.append(json.dumps(row))
    return "\n".join(rows) + "\n"


def verdict(text: str) -> tuple[str | None, bool]:
    found = judge_samples(read_samples(text)[0])
    return found.verdict, found.restart


@pytest.mark.parametrize("text", [series(), series(9, step=5), series(5, power_w=29.9), series(60)])
def test_wedged(text: str) -> None:
    assert verdict(text) == ("wedged", True)
    found = judge_samples(read_samples(text)[0]).document()
    assert found["status"] == "fail"
    assert found["findings"][0]["code"] == "D340"


@pytest.mark.parametrize(
    "text",
    [
        series(4, step=15),  # too few
        series(5, step=9.9),  # too short
        series(power_w=30),
        series(power_w=[21, 21, 30, 21, 21]),
        series(power_w=None),
        series(power_w="[N/A]"),
        series(prefill_progress=True, power_w=65),
        series(prefill_progress=[False, False, True, False, False]),
        series(running=[2, 2, 0, 2, 2]),
        series(running=0),  # only queued
    ],
)
def test_not_wedged_but_busy(text: str) -> None:
    assert verdict(text) == ("busy", False)


@pytest.mark.parametrize(
    "text",
    [
        series(generated_tokens_total=[1, 2, 3, 4, 5]),
        series(generated_tokens_total=[1, 1, 1, 1, 2]),
        series(prompt_tokens_total=[1, 1, 2, 2, 2]),
        series(prompt_tokens_total=[0, 9, 9, 9, 9], running=0, queued=0),
    ],
)
def test_serving(text: str) -> None:
    assert verdict(text) == ("serving", False)


def test_idle() -> None:
    assert verdict(series(running=0, queued=0, power_w=12)) == ("idle", False)
    assert judge_samples(read_samples(series(running=0, queued=0))[0]).document()["status"] == "ok"


def test_no_samples_are_no_verdict() -> None:
    for text in ("", "nonsense\n", "[1]\n{}\n"):
        found = judge_samples(*read_samples(text)[:1]).document()
        assert (found["verdict"], found["restart"], found["status"]) == (None, False, "unknown")


def test_the_order_is_that_of_time() -> None:
    rows = series(generated_tokens_total=[1, 1, 1, 1, 1]).splitlines()
    assert verdict("\n".join(reversed(rows))) == ("wedged", True)


def test_a_standing_end_is_pointed_at() -> None:
    text = series(12, generated_tokens_total=[1, 2, *[3] * 10])
    found = judge_samples(read_samples(text)[0])
    assert found.verdict == "serving"
    assert [finding.code for finding in found.findings] == ["D340", "D341"]
    assert "90 s" in found.findings[1].says


def test_bad_lines_are_counted() -> None:
    samples, bad = read_samples(series() + "{\n\ntrue\n" + '{"t": 1e999}\n' + '{"t": true}\n')
    assert (len(samples), bad) == (5, 4)
    assert judge_samples(samples, bad_lines=bad).findings[-1].says == "4 lines are no samples."


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(WEDGED)), inner)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(JSON, max_size=6), st.text(max_size=60))
def test_junk_never_raises(values: list[Any], text: str) -> None:
    lines = [
        json.dumps({**WEDGED, "t": 1, **value} if isinstance(value, dict) else value)
        for value in values
    ]
    samples, bad = read_samples("\n".join([*lines, text, "[" * 5000]))
    found = judge_samples(samples, bad_lines=bad)
    assert found.verdict in {"wedged", "busy", "idle", "serving", None}
    assert found.restart == (found.verdict == "wedged")


IDLE = "NVIDIA GB10, 0 %, 208 MHz, 4.50 W, [N/A], [N/A], 38"
HEALTHY = "NVIDIA GB10, 97 %, 2190 MHz, 62.11 W, [N/A], [N/A], 66"
CLAMPED = "NVIDIA GB10, 96 %, 611 MHz, 17.80 W, [N/A], [N/A], 51"
HEADER = "name, utilization.gpu [%], clocks.sm, power.draw, a, b, c"
H200 = "NVIDIA H200, 0 %, 345 MHz, 75.1 W, 1 MiB, 143771 MiB, 28"


def levels(text: str) -> list[str]:
    return [finding.level for finding in judge_power(read_gpu_rows(text), code="D343")]


def test_the_low_power_state() -> None:
    assert levels(CLAMPED) == ["warn"]
    for healthy in (IDLE, HEALTHY, CLAMPED.replace("96 %", "89 %"), CLAMPED.replace("611", "1000")):
        assert levels(healthy) == ["ok"]
    assert levels(CLAMPED.replace("17.80 W", "[N/A]")) == ["ok"]
    assert levels(CLAMPED + "\n" + HEALTHY) == ["warn"]
    assert levels("") == []


def test_rows_with_and_without_memory() -> None:
    unified, card = read_gpu_rows(f"{IDLE}\n{HEADER}\n{H200}")
    assert (unified.name, unified.memory_used, unified.temperature) == ("NVIDIA GB10", None, 38)
    assert (card.memory_used, card.memory_total, card.power) == (1, 143_771, 75.1)


@settings(deadline=None)
@given(st.text(max_size=80))
def test_rows_of_junk_never_raise(text: str) -> None:
    tuple(judge_power(read_gpu_rows(IDLE.replace("208", text) + "\n" + text), code="D343"))
