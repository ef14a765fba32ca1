"""Which prompt chunk a step names as the next one: the scheduler with a model that is noise."""

from __future__ import annotations

from dsv41.local.engine.steps import Step
from toy_model import Bench, alone, job


def asked(bench: Bench) -> list[bool]:
    """Of every prefill: had its chunk been asked for?"""
    return bench.model.early


def test_every_chunk_but_the_first_is_asked_for() -> None:
    bench = Bench(slots=3, chunk=4)
    for first in range(3):
        bench.add(job(9 + first, first=first))
    bench.run()
    assert asked(bench) == [False] + [True] * 8
    assert [bench.text(i) for i in range(3)] == [alone(job(9 + i, first=i)) for i in range(3)]
    assert bench.model.held == ()
    assert bench.model.dropped == 0


def test_the_first_chunk_of_a_waiting_request_is_asked_for_once() -> None:
    bench = Bench(slots=1, chunk=4)
    bench.add(job(3, tokens=5))
    bench.add(job(6, first=40))
    steps = [bench.step() for _ in range(5)]
    assert [step.ahead is not None for step in steps] == [True] + [False] * 4
    bench.run()
    assert asked(bench) == [False, True, True]
    assert bench.text(1) == alone(job(6, first=40))


def test_one_token_a_chunk_and_prompts_that_end_with_a_chunk() -> None:
    for chunk, lengths in ((1, (1, 2, 5)), (4, (4, 8, 12))):
        bench = Bench(slots=2, chunk=chunk)
        for length in lengths:
            bench.add(job(length, first=length))
        bench.run()
        assert asked(bench)[1:] == [True] * (len(asked(bench)) - 1)
        assert bench.model.held == ()


def test_a_request_that_leaves_between_chunks_is_forgotten() -> None:
    bench = Bench(slots=1, chunk=4)
    gone = bench.add(job(12))
    bench.step()
    assert bench.model.held == gone.job.prompt[:8]
    gone.canceled = True
    assert bench.scheduler.loose
    step = bench.step()
    assert step == Step(forget=True)
    assert bench.model.held == ()
    assert not bench.scheduler.loose


def test_another_request_comes_in_the_place_of_one_that_left() -> None:
    bench = Bench(slots=2, chunk=4)
    gone = bench.add(job(12))
    bench.add(job(12, first=50))
    bench.step()  # gone's first chunk; the other's first is asked for
    bench.step()
    gone.canceled = True  # its second chunk had been asked for
    bench.run()
    assert asked(bench) == [False, True, False, True]
    assert bench.model.dropped == 1
    assert bench.text(1) == alone(job(12, first=50))


def test_a_waiting_request_that_leaves_gives_its_place_to_the_next() -> None:
    bench = Bench(slots=1, chunk=4)
    bench.add(job(3, tokens=9))
    waiting = [bench.add(job(3, first=40)), bench.add(job(3, first=60))]
    bench.step()
    assert bench.model.held == waiting[0].job.prompt
    waiting[0].canceled = True
    bench.step()
    assert bench.model.held == waiting[1].job.prompt
    bench.run()
    assert (bench.model.dropped, bench.model.early) == (1, [False, True])


def test_nothing_is_named_when_it_is_off() -> None:
    bench = Bench(slots=2, chunk=4, ahead=False)
    bench.add(job(12))
    bench.run()
    assert asked(bench) == [False] * 3
    assert bench.text(0) == alone(job(12))
