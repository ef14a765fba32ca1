"""The guards as the environment sets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv41.errors import UsageError
from dsv41.guards.loop import LoopConfig
from dsv41.local.http.settings import Guards, Settings
from dsv41.switches import SWITCHES


def test_defaults() -> None:
    assert Guards.from_environ({}) == Guards()
    settings = Settings(tokenizer=Path("t"), context=10)
    assert settings.names == (
        "dsv41-fixture",
        "DeepSeek-V4.1-Flash",
        "deepseek-ai/DeepSeek-V4.1-Flash",
    )


def test_every_switch_is_used() -> None:
    """Each variable set to a value of its own arrives at its own place."""
    environ = {switch.env: str(n) for n, switch in enumerate(SWITCHES.values(), start=2)}
    guards = Guards.from_environ(environ)
    loop = guards.loop
    assert [
        guards.max_new_tokens,
        loop.abort,
        loop.ngram,
        loop.ngram_max,
        loop.repeats,
        loop.identical,
        loop.line_repeats,
        loop.line_min,
        guards.effort,
    ] == list(range(2, 11))
    assert loop != LoopConfig()


def test_bad_effort_stops_the_start() -> None:
    with pytest.raises(UsageError, match="SGLANG_DSV41_REASONING_EFFORT"):
        Guards.from_environ({"SGLANG_DSV41_REASONING_EFFORT": "lots"})
