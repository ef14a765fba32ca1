"""The table of switches: names, defaults, what a bad value does."""

import pytest

from dsv41 import switches
from dsv41.errors import UsageError, explanations
from dsv41.guards.effort import budget
from dsv41.guards.loop import LoopConfig
from dsv41.switches import SWITCHES, read, read_decimal, read_word, render


def test_upstream_names_and_defaults() -> None:
    shared = [switch for switch in SWITCHES.values() if "local" in switch.engines]
    assert {switch.env: switch.default for switch in shared} == {
        "DSV41_MAX_NEW_TOKENS": 32768,
        "DSV41_LOOP_ABORT": 1,
        "DSV41_LOOP_NGRAM": 32,
        "DSV41_LOOP_NGRAM_MAX": 256,
        "DSV41_LOOP_REPEATS": 4,
        "DSV41_LOOP_IDENTICAL": 64,
        "DSV41_LOOP_LINE_REPEATS": 8,
        "DSV41_LOOP_LINE_MIN": 16,
        "SGLANG_DSV41_REASONING_EFFORT": 75,
    }


def test_defaults_are_those_of_the_guards() -> None:
    assert LoopConfig() == LoopConfig(
        abort=read({}, "loop_abort"),
        ngram=read({}, "loop_ngram"),
        ngram_max=read({}, "loop_ngram_max"),
        repeats=read({}, "loop_repeats"),
        identical=read({}, "loop_identical"),
        line_repeats=read({}, "loop_line_repeats"),
        line_min=read({}, "loop_line_min"),
    )
    for tier, value in switches._TIERS.items():
        assert budget(tier) == value


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("65536", 65536), (" 12 ", 12), ("-1", -1), ("", 32768)]
)
def test_read(text: str, value: int) -> None:
    assert read({"DSV41_MAX_NEW_TOKENS": text}, "max_new_tokens") == value


def test_unreadable_integer_is_the_default_with_a_warning() -> None:
    said: list[str] = []
    environ = {"DSV41_MAX_NEW_TOKENS": "lots", "DSV41_LOOP_NGRAM": "3.5"}
    assert read(environ, "max_new_tokens", warn=said.append) == 32768
    assert read(environ, "loop_ngram", warn=said.append) == 32
    assert "DSV41_MAX_NEW_TOKENS is 'lots'" in said[0]
    assert len(said) == 2


@pytest.mark.parametrize(("text", "value"), [("low", 50), ("MAX", 100), ("1", 1), ("60", 60)])
def test_effort(text: str, value: int) -> None:
    assert read({"SGLANG_DSV41_REASONING_EFFORT": text}, "reasoning_effort") == value


@pytest.mark.parametrize("text", ["0", "101", "hard", "0.5"])
def test_bad_effort_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="SGLANG_DSV41_REASONING_EFFORT") as caught:
        read({"SGLANG_DSV41_REASONING_EFFORT": text}, "reasoning_effort")
    assert caught.value.code == "D074"
    assert caught.value.code in explanations()


def test_unknown_switch() -> None:
    for act in (lambda: read({}, "no_such"), lambda: render({"no_such": 1})):
        with pytest.raises(UsageError, match="max_new_tokens") as caught:
            act()
        assert caught.value.code == "D075"
        assert caught.value.code in explanations()


def test_render_and_read_agree() -> None:
    values = {n: switch.default for n, switch in SWITCHES.items() if switch.kind != "word"}
    environ = render(values)
    assert {name: read(environ, name) for name in values} == values
    assert render({"reasoning_effort": "max", "loop_abort": False}) == {
        "DSV41_LOOP_ABORT": "0",
        "SGLANG_DSV41_REASONING_EFFORT": "100",
    }
    assert render({}) == {}


def test_decimals() -> None:
    said: list[str] = []
    for text, value in (("0.125", 0.125), ("4", 4.0), ("", 0.0), ("inf", 0.0), ("much", 0.0)):
        environ = {"DSV41_CACHE_GIB": text}
        assert read_decimal(environ, "row_cache_gib", warn=said.append) == value
    assert [line[:25] for line in said] == [
        "DSV41_CACHE_GIB is 'inf',",
        "DSV41_CACHE_GIB is 'much'",
    ]
    written = {
        value: render({"row_cache_gib": value})["DSV41_CACHE_GIB"] for value in (0.5, 4, 4.0)
    }
    assert written == {0.5: "0.5", 4: "4"}
    for wrong in ("nan", "0,5"):
        with pytest.raises(UsageError, match=r"DSV41_CACHE_GIB is '.*'; expected a number"):
            render({"row_cache_gib": wrong})


def test_words_and_paths() -> None:
    environ = render({"engram_dir": "/engram", "engram_partition": "strided"})
    assert environ == {"DSV41_PACKED_DIR": "/engram", "DSV41_ENGRAM_PARTITION": "strided"}
    assert read_word(environ, "engram_dir") == "/engram"
    assert read_word({}, "engram_partition") == "weighted"
    assert read_word({}, "api_key_file") == ""
    for wrong in ("", "two words"):
        with pytest.raises(UsageError, match="one word"):
            render({"engram_dir": wrong})


def test_the_plugin_is_off_by_default() -> None:
    on = {
        "row_stats_seconds",
        "row_threads",
        "verify_cap_min",
        "draft_head_fp8_max_m",
        "fast_load_inflight_gb",
    }  # settings of what is on
    mine = [s for s in SWITCHES.values() if s.engines == ("sglang", "vllm") and s.name not in on]
    words = {"", "off", "auto", "legal", "weighted"}
    assert mine
    assert all(switch.default == 0 or switch.default in words for switch in mine)


def test_render_refuses_a_bad_value() -> None:
    with pytest.raises(UsageError, match="DSV41_LOOP_ABORT") as caught:
        render({"loop_abort": "yes"})
    assert caught.value.code == "D074"
