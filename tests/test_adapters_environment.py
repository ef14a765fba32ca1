"""Variables of ours that an engine with the plugin refuses, and those that it takes."""

from __future__ import annotations

import pytest

from dsv41 import plan
from dsv41.adapters import environment, install, preflight
from dsv41.adapters.sglang import prefill_empty_cache
from dsv41.adapters.table import TABLES
from dsv41.errors import Error, UsageError
from planned import IMAGE, SPARK_PROFILES, fleet_for, profile_with


def said(environ: dict[str, str]) -> list[str]:
    """What install and preflight say, which must be the same."""
    found = [str(error) for error in environment.problems(environ)]
    for engine in TABLES:
        assert [str(error) for error in preflight.problems(engine, environ)] == found
        with pytest.raises(Error) as refused:
            install.install(engine, TABLES[engine], environ)
        assert all(line.split(" ", 1)[1] in refused.value.says for line in found)
    return found


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("DSV41_API_KEYS_FILE", "DSV41_API_KEY_FILE"),
        ("dsv41_api_key_file", "DSV41_API_KEY_FILE"),
        ("DSV41_TPPAD", "DSV41_TP_PAD"),
        ("DSV41_QQQQ", ""),
    ],
)
def test_a_variable_that_is_no_switch_is_refused(name: str, near: str) -> None:
    (line,) = said({name: "1", "PATH": "/bin"})
    assert line.startswith(f"D075 {name} is set and is no switch")
    assert line.endswith(f"Is {near} meant?" if near else "nothing.")


@pytest.mark.parametrize("text", ["", " ", "off", "0", "False"])
def test_keys_are_not_turned_off_by_a_word(text: str) -> None:
    (line,) = said({"DSV41_API_KEY_FILE": text})
    assert line.startswith(f"D074 DSV41_API_KEY_FILE is {text!r}; expected the path")


def test_numbers_are_numbers() -> None:
    lines = said({"DSV41_TP_PAD": "true", "DSV41_ENGRAM_CHECK": "1.0", "DSV41_IO_THREADS": "many"})
    assert lines == [
        "D074 DSV41_ENGRAM_CHECK is '1.0'; expected an integer.",
        "D074 DSV41_IO_THREADS is 'many'; expected an integer.",
        "D074 DSV41_TP_PAD is 'true'; expected an integer (1 is on, 0 is off).",
    ]


def test_what_is_of_others_passes() -> None:
    names = ("SGLANG_DSV41_OTHER", "DSV41_VENV", "DSV41_SITE", "DSV41_GPU_LOGS", "MY_DSV41_X")
    environ = dict.fromkeys(names, "yes") | {"DSV41_LOOP_NGRAM": "3.5", "DSV41_TP_PAD": " 0 "}
    assert list(environment.problems(environ)) == []


def test_a_negative_length_is_refused() -> None:
    prefill_empty_cache.check({"DSV41_PREFILL_EMPTY_CACHE_TOKENS": "8192"})
    with pytest.raises(UsageError, match=r"D074 .*TOKENS is -1; expected a number of tokens"):
        prefill_empty_cache.check({"DSV41_PREFILL_EMPTY_CACHE_TOKENS": "-1"})
    assert prefill_empty_cache.ADAPTER.check is prefill_empty_cache.check


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_what_a_plan_renders_passes(name: str) -> None:
    chosen = profile_with(name)
    where = fleet_for(chosen, api_key_file="/etc/dsv41/keys")
    for rank in plan.plan(chosen, where, {name: IMAGE}).ranks:
        assert [key for key in rank.env if key.startswith("DSV41_")]
        assert list(environment.problems(rank.env)) == []


@pytest.mark.parametrize("engine", sorted(TABLES))
def test_without_the_engine_one_line_says_so(engine: str) -> None:
    switch = {"sglang": "DSV41_TP_PAD", "vllm": "DSV41_SM12_PAGES"}[engine]
    (error,) = preflight.problems(engine, {switch: "1", "DSV41_PACKED_DIR": "/rows"})
    assert str(error).startswith(f"D141 this Python has no package {engine}")
