"""The loop stop: the published cases; the rolling rules against plain ones over all tokens."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41.guards.loop import LINE_WINDOW, LoopConfig, LoopDetector

if TYPE_CHECKING:
    from collections.abc import Callable

    Decode = Callable[[list[int]], str]

UNIT = list(range(100, 132))  # 32 tokens
LINE = "let me check the configuration file."  # 36 characters


def plain(config: LoopConfig, tokens: list[int], decode: Decode) -> tuple[str, int] | None:
    """The rules as the recipe states them, over all tokens at once: (kind, tokens to keep)."""
    n = len(tokens)
    if config.abort <= 0:
        return None
    run = 0
    while run < n and tokens[n - 1 - run] == tokens[-1]:
        run += 1
    if 0 < config.identical <= run:
        return "identical", n - run + 1
    if config.ngram > 0 and config.repeats > 0:
        longest = max(config.ngram, config.ngram_max)
        for p in range(config.ngram, min(longest, n // config.repeats) + 1):
            blocks = [tokens[n - (i + 1) * p : n - i * p] for i in range(config.repeats)]
            if all(block == blocks[0] for block in blocks):
                return "ngram", n - (config.repeats - 1) * p
    if config.line_repeats > 0:
        text = decode(tokens[-LINE_WINDOW:])
        lines = [line.rstrip() for line in text.split("\n") if line.strip()]
        last = lines[-config.line_repeats :]
        if len(last) == config.line_repeats and len(set(last)) == 1:
            return ("line", n) if len(last[0]) >= config.line_min else None
    return None


@pytest.mark.parametrize(
    ("tokens", "keep"),
    [
        (list(range(10)) + UNIT * 4, 42),
        (list(range(400)), None),
        ([1, 2, 3, 4, 5, 6] * 4, None),
        ([9] * 64, 1),
        ([9] * 63, None),
        ([3] * 10 + [9] * 500, 11),
        (UNIT * 3, None),
        # a block shorter than `ngram` shows through its multiples of 32 tokens and more
        ([1, 2, 3, 4, 5, 6] * 24, 36),
        (list(range(300, 556)) * 4, 256),
        (list(range(300, 557)) * 4, None),
        ([], None),
    ],
)
def test_recipe_cases(tokens: list[int], keep: int | None) -> None:
    assert LoopDetector(LoopConfig()).push(tokens) == keep


@pytest.mark.parametrize(
    ("lines", "keep"),
    [([LINE] * 8, 80), ([LINE] * 7, None), (["a"] * 8, None), ([LINE + "  "] * 8, 80)],
)
def test_line_rule(lines: list[str], keep: int | None) -> None:
    detector = LoopDetector(LoopConfig(), decode=lambda _: "\n".join(lines))
    assert detector.push(list(range(80))) == keep
    assert detector.kind == (None if keep is None else "line")


def test_distinct_and_blank_lines() -> None:
    distinct = "\n".join(f"line number {i} of twelve lines" for i in range(12))
    assert LoopDetector(LoopConfig(), decode=lambda _: distinct).push(list(range(80))) is None
    blanks = "\n \n\n".join([LINE] * 8)
    assert LoopDetector(LoopConfig(), decode=lambda _: blanks).push(list(range(80))) == 80


def test_off() -> None:
    everything_off = LoopConfig(ngram=0, identical=0, line_repeats=0)
    for config in (everything_off, LoopConfig(abort=0)):
        assert not config.enabled
        assert LoopDetector(config, decode=lambda _: LINE).push([9] * 500 + UNIT * 9) is None
    assert LoopDetector(LoopConfig(identical=0, repeats=0)).push([9] * 500) is None
    assert LoopDetector(LoopConfig(line_repeats=0), decode=lambda _: str(1 / 0)).push(UNIT) is None


def test_shorter_maximum_is_raised_to_the_minimum() -> None:
    assert LoopDetector(LoopConfig(ngram_max=1)).push(UNIT * 4) == 32


def test_found_at_the_same_token_however_the_tokens_arrive() -> None:
    tokens = list(range(10)) + UNIT * 4
    one = LoopDetector()
    assert [one.push([t]) for t in tokens] == [None] * (len(tokens) - 1) + [42]
    assert one.kind == "ngram"


def test_rules_are_judged_once_at_the_end_of_a_push() -> None:
    # 64 equal tokens pass by in the middle of the push: the answer went on, so it is not a loop
    assert LoopDetector().push([9] * 64 + [1]) is None
    assert LoopDetector().push([*range(70), *[9] * 70]) == 71


def test_failing_decode_is_skipped_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def decode(_: list[int]) -> str:
        raise RuntimeError("no such token")

    detector = LoopDetector(LoopConfig(), decode)
    with caplog.at_level(logging.WARNING):
        assert [detector.push([t]) for t in range(5)] == [None] * 5
        assert detector.push([9] * 64) == 6
    assert len(caplog.records) == 1


# A toy byte-level vocabulary: characters, newlines, spaces, and single bytes of "é" and "漢".
VOCABULARY = [b"a", b"b", b"ab", b"\n", b"\n\n", b" ", b"b\na", b"\xc3", b"\xa9"]
VOCABULARY += [b"\xe6", b"\xbc", b"\xa2", "漢".encode(), "é\n".encode(), b"\xa0"]


def toy_decode(ids: list[int]) -> str:
    return b"".join(VOCABULARY[i % len(VOCABULARY)] for i in ids).decode("utf-8", errors="replace")


def compare(config: LoopConfig, pushes: list[list[int]]) -> None:
    detector, seen = LoopDetector(config, toy_decode), list[int]()
    for push in pushes:
        seen += push
        expected = plain(config, seen, toy_decode)
        found = detector.push(push)
        assert found == (expected and expected[1]), (config, seen)
        if expected:
            assert detector.kind == expected[0]


small = st.integers(0, 4)
configs = st.builds(
    LoopConfig,
    ngram=st.integers(0, 5),
    ngram_max=st.integers(0, 9),
    repeats=small,
    identical=st.sampled_from([0, 1, 3, 8]),
    line_repeats=small,
    line_min=st.integers(0, 5),
)
tokens = st.integers(0, len(VOCABULARY) - 1)
blocks = st.builds(
    lambda block, times: block * times, st.lists(tokens, max_size=9), st.integers(1, 6)
)


@given(config=configs, pushes=st.lists(st.one_of(st.lists(tokens, max_size=6), blocks), max_size=8))
def test_same_as_the_plain_rules(config: LoopConfig, pushes: list[list[int]]) -> None:
    compare(config, pushes)


@pytest.mark.parametrize("seed", range(6))
def test_same_as_the_plain_rules_on_long_answers(seed: int) -> None:
    """Past the line window (512 tokens) and the longest period, in pushes of 1 to 6 tokens."""
    rng = random.Random(seed)
    line = [rng.choice([0, 1, 2, 5, 9, 12]) for _ in range(40)] + [3]
    answer = [rng.randrange(len(VOCABULARY)) for _ in range(700)]
    answer += line * 9 + [0, 3] + [rng.randrange(50) for _ in range(60)] * 4
    pushes = []
    while answer:
        width = rng.randint(1, 6)
        pushes.append(answer[:width])
        answer = answer[width:]
    compare(LoopConfig(), pushes)


def test_cost_of_a_token_does_not_grow_with_the_answer() -> None:
    """The last tokens of a 40,000-token answer cost what its first ones cost; so does the state."""
    rng = random.Random(7)
    detector = LoopDetector(LoopConfig(), toy_decode)

    def seconds(count: int) -> float:
        answer = [rng.randrange(2000) * len(VOCABULARY) for _ in range(count)]
        start = time.process_time()
        for token in answer:
            detector.push([token])
        return (time.process_time() - start) / count

    first = min(seconds(1000) for _ in range(3))
    for _ in range(34):
        last = seconds(1000)
    last = min(last, *(seconds(1000) for _ in range(3)))
    assert last < 3 * first
    periods = detector._periods
    assert periods is not None
    assert len(periods._recent) == 256
    assert sum(len(places) for places in periods._places.values()) == 256
