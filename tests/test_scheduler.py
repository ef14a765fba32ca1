"""Admission, interleaving, cancelation, failures: step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsv41.errors import EngineFailed
from dsv41.local.engine.generation import Event, Job, Sampling
from dsv41.local.engine.steps import NOBODY, Step
from dsv41.local.model.ahead import FRESH, Ahead
from toy_model import SEEDED, VOCAB, Bench, alone, job


def test_a_step_message_survives_the_wire() -> None:
    steps = [
        Step(),
        Step(stop=True),
        Step(beat=True, decode=(4, NOBODY, 0)),
        Step(resets=(0, 2), prefill=2, chunk=(9, 8, 7)),
        Step(resets=(1,), prefill=1, chunk=(5,), decode=(4, NOBODY, 129279), beat=True),
        Step(prefill=1, chunk=(5, 4, 3, 2), ahead=Ahead(slot=1, tokens=(9, 8, 7, 6))),
        Step(decode=(NOBODY, 7, 7), ahead=Ahead(slot=FRESH, tokens=(0,)), stop=True),
        Step(forget=True),
    ]
    for step in steps:
        message = step.pack(slots=3, chunk=4)
        assert message.dtype == torch.int64
        assert message.shape == (8 + 3 + 2 * 4,)
        assert Step.unpack(message, slots=3, chunk=4) == step


def test_a_prompt_is_cut_and_the_text_is_right() -> None:
    bench = Bench()
    bench.add(job(10))
    bench.run()
    assert bench.text(0) == alone(job(10))
    assert bench.model.calls[:4] == [
        ("reset", (0,)),
        ("prefill", (0, 4)),
        ("prefill", (0, 4)),
        ("prefill", (0, 2)),
    ]
    assert bench.says[0][-1] == Event(tokens=(bench.text(0)[-1],), finish="length")
    assert (bench.scheduler.prompt_tokens, bench.scheduler.generated_tokens) == (10, 6)


def test_admission_is_first_come_first_served() -> None:
    bench = Bench(slots=2)
    requests = [bench.add(job(3, first=i, tokens=2 + i)) for i in range(5)]
    bench.step()
    assert bench.scheduler.slots == requests[:2]
    assert list(bench.scheduler.waiting) == requests[2:]
    bench.run()
    assert [bench.text(i) for i in range(5)] == [
        alone(job(3, first=i, tokens=2 + i)) for i in range(5)
    ]


def test_a_long_prompt_does_not_starve_a_running_stream() -> None:
    bench = Bench(slots=2, chunk=4, context=64)
    bench.add(job(2, tokens=20))
    bench.step()
    bench.add(job(40))
    told = []
    for _ in range(10):
        before = len(bench.says[0])
        step = bench.step()
        assert len(step.chunk) == 4
        told.append(len(bench.says[0]) - before)
    assert told == [1] * 10


def test_prompts_take_turns() -> None:
    bench = Bench(slots=3, chunk=4)
    for first in range(3):
        bench.add(job(12, first=first))
    assert [bench.step().prefill for _ in range(9)] == [0, 1, 2] * 3


def test_a_canceled_slot_serves_the_next_at_once() -> None:
    bench = Bench(slots=1)
    first = bench.add(job(10))
    bench.add(job(3, first=50))
    bench.step()
    first.canceled = True
    assert bench.scheduler.running == 0
    step = bench.step()
    assert (step.resets, step.prefill, step.chunk) == ((0,), 0, job(3, first=50).prompt)
    bench.run()
    assert bench.text(1) == alone(job(3, first=50))
    assert bench.says[0] == []


def test_a_canceled_request_never_gets_a_slot() -> None:
    bench = Bench(slots=1)
    bench.add(job(3))
    waiting = bench.add(job(3, first=9))
    bench.step()
    waiting.canceled = True
    assert bench.scheduler.queued == 0
    bench.run()
    assert bench.says[1] == []
    assert bench.scheduler.prompt_tokens == 3


def test_cancelation_during_a_step_is_respected() -> None:
    bench = Bench()
    request = bench.add(job(3))
    step = bench.scheduler.plan()
    logits = bench.runner.lead(step)
    request.canceled = True
    bench.scheduler.apply(step, logits)
    assert bench.says[0] == []
    assert bench.scheduler.idle


class Broken:
    """A constraint that fails after some tokens, or forbids everything."""

    def __init__(self, *, after: int, forbids: bool) -> None:
        self.left = after
        self.forbids = forbids

    def mask(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        if self.left == 0 and self.forbids:
            return np.zeros(VOCAB, dtype=np.bool_)
        return None

    def accept(self, token: int) -> bool:
        if self.left == 0:
            raise KeyError(token)
        self.left -= 1
        return False


@pytest.mark.parametrize("forbids", [False, True])
def test_a_broken_constraint_ends_its_stream_only(forbids: bool) -> None:
    bench = Bench()
    bad = Broken(after=2, forbids=forbids)
    bench.add(Job(prompt=(3,), max_tokens=9, sampling=SEEDED, constraint=bad))
    bench.add(job(5))
    bench.run()
    error = bench.says[0][-1]
    assert isinstance(error, EngineFailed)
    assert error.code == "D054"
    assert ("allows no token" if forbids else "KeyError") in error.says
    assert len(bench.text(0)) == 2
    assert bench.text(1) == alone(job(5))


@pytest.mark.parametrize("sampling", [SEEDED, Sampling(temperature=0.0)])
def test_a_text_does_not_depend_on_its_neighbors(sampling: Sampling) -> None:
    mine = job(9, tokens=12, sampling=sampling)
    bench = Bench(slots=4, chunk=4)
    for i in range(3):
        bench.add(job(3 + 5 * i, tokens=3 + 4 * i, first=20 + i))
    bench.add(mine)
    for i in range(4):
        bench.add(job(2 + i, tokens=5, first=40 + i))
    bench.run()
    assert bench.text(3) == alone(mine)
