"""The per-request state machine: what ends a text, and with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41.errors import UsageError
from dsv41.local.engine.generation import SENTINELS, Event, Generation, Job, Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

GREEDY = Sampling(temperature=0.0)


class Ends:
    """A constraint that is complete after a given token."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.seen: list[int] = []

    def mask(self) -> None:
        return None

    def accept(self, token: int) -> bool:
        self.seen.append(token)
        return token == self.last


class Repeats:
    """Finds a loop when the same id came three times, and keeps the first of them."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def push(self, tokens: Sequence[int]) -> int | None:
        self.tokens.extend(tokens)
        same = len(self.tokens) >= 3 and len(set(self.tokens[-3:])) == 1
        return len(self.tokens) - 2 if same else None


def run(job: Job, tokens: Sequence[int], *, context: int = 100) -> list[Event]:
    generation = Generation(job, context=context)
    return [generation.push(token) for token in tokens]


def job(
    *, max_tokens: int = 10, constraint: Ends | None = None, loop: Repeats | None = None
) -> Job:
    return Job(
        prompt=(0, 5, 6),
        max_tokens=max_tokens,
        sampling=GREEDY,
        constraint=constraint,
        loop=loop,
    )


def test_end_of_sequence_is_not_part_of_the_text() -> None:
    assert run(job(), [7, 1]) == [Event(tokens=(7,)), Event(finish="stop")]


def test_every_eos_id_ends() -> None:
    two = Job(prompt=(0,), max_tokens=9, sampling=GREEDY, eos=frozenset({1, 42}))
    assert run(two, [42]) == [Event(finish="stop")]


def test_max_tokens_ends_with_its_last_token() -> None:
    assert run(job(max_tokens=2), [7, 8]) == [
        Event(tokens=(7,)),
        Event(tokens=(8,), finish="length"),
    ]


def test_the_context_lowers_max_tokens() -> None:
    assert run(job(max_tokens=10), [7, 8], context=5)[-1].finish == "length"
    assert Generation(job(max_tokens=10), context=5).limit == 2


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"D051 the prompt has 3 tokens; context and output have 3"
    ):
        Generation(job(), context=3)


def test_the_constraint_ends_and_never_sees_eos() -> None:
    ends = Ends(9)
    assert run(job(constraint=ends), [7, 9])[-1] == Event(tokens=(9,), finish="stop")
    assert ends.seen == [7, 9]
    other = Ends(9)
    assert run(job(constraint=other), [7, 1])[-1] == Event(finish="stop")
    assert other.seen == [7]


def test_a_loop_ends_and_says_what_to_keep() -> None:
    assert run(job(loop=Repeats()), [7, 8, 8, 8])[-1] == Event(tokens=(8,), finish="loop", keep=2)


def test_order_of_causes() -> None:
    both = job(max_tokens=3, loop=Repeats())
    assert run(both, [8, 8, 8])[-1].finish == "loop"
    all_three = job(max_tokens=3, constraint=Ends(9), loop=Repeats())
    assert run(all_three, [9])[-1] == Event(tokens=(9,), finish="stop")
    last_is_eos = job(max_tokens=2)
    assert run(last_is_eos, [8, 1])[-1] == Event(finish="stop")


def test_nothing_may_follow_the_end() -> None:
    generation = Generation(job(), context=100)
    generation.push(1)
    with pytest.raises(ValueError, match="already ended by stop"):
        generation.push(7)


def test_sentinels_are_the_input_side_ids() -> None:
    assert (SENTINELS[0], SENTINELS[-2], SENTINELS[-1], len(SENTINELS)) == (
        128847,
        129270,
        129279,
        425,
    )
    assert 129264 in SENTINELS  # the image placeholder
    assert not {0, 1, 2, 128799, 128803, 128804, 128821, 128822, 128825} & set(SENTINELS)


@pytest.mark.parametrize("bad", [-0.1, 101.0, float("nan")])
def test_temperature_is_checked(bad: float) -> None:
    with pytest.raises(UsageError, match="D051 temperature"):
        Sampling(temperature=bad)


@pytest.mark.parametrize("bad", [0.0, 1.01, float("nan")])
def test_top_p_is_checked(bad: float) -> None:
    with pytest.raises(UsageError, match="D051 top_p"):
        Sampling(top_p=bad)


def test_a_job_needs_a_prompt_and_room() -> None:
    with pytest.raises(UsageError, match="D051 the prompt has no tokens"):
        Job(prompt=(), max_tokens=1, sampling=GREEDY)
    with pytest.raises(UsageError, match="D051 max_tokens is 0"):
        Job(prompt=(1,), max_tokens=0, sampling=GREEDY)
