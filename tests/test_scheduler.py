"""Admission, interleaving, cancelation, failures: step by step and through the engine's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from dsv41.errors import EngineFailed, Error, UsageError
from dsv41.local.comm import Alone
from dsv41.local.engine import Engine, Stream
from dsv41.local.generation import Event, Generation, Job, QueueFullError, Sampling
from dsv41.local.sampling import Sampler
from dsv41.local.scheduler import Request, Scheduler
from dsv41.local.steps import NOBODY, Meter, Runner, Step
from toy_model import VOCAB, NoiseModel, noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SEEDED = Sampling(temperature=0.8, top_p=0.9, seed=5)


def job(length: int, *, tokens: int = 6, first: int = 3, sampling: Sampling = SEEDED) -> Job:
    prompt = tuple((first + 7 * i) % VOCAB for i in range(length))
    return Job(prompt=prompt, max_tokens=tokens, sampling=sampling, banned=())


def alone(one: Job) -> list[int]:
    """The text of a job by the plainest possible loop."""
    history, sampler = list(one.prompt), Sampler(one)
    for position in range(one.max_tokens):
        history.append(sampler.draw(noise(history), position=position))
    return history[len(one.prompt) :]


class Bench:
    """A scheduler with a model and no thread; `says` holds what each request was told."""

    def __init__(self, *, slots: int = 2, chunk: int = 4, context: int = 64) -> None:
        self.model = NoiseModel()
        self.scheduler = Scheduler(slots=slots, context=context, chunk=chunk, queue=9)
        self.runner = Runner(
            self.model, Alone(), slots=slots, context=context, chunk=chunk, meter=Meter()
        )
        self.says: list[list[Event | Error]] = []

    def add(self, one: Job) -> Request:
        heard: list[Event | Error] = []
        self.says.append(heard)
        generation = Generation(one, context=self.runner.context)
        request = Request(generation, deliver=heard.append, fail=heard.append)
        self.scheduler.submit(request)
        return request

    def step(self) -> Step:
        step = self.scheduler.plan()
        self.scheduler.apply(step, self.runner.lead(step))
        return step

    def run(self) -> None:
        while not self.scheduler.idle:
            self.step()

    def text(self, i: int) -> list[int]:
        return [t for event in self.says[i] if isinstance(event, Event) for t in event.tokens]


def test_a_step_message_survives_the_wire() -> None:
    steps = [
        Step(),
        Step(stop=True),
        Step(beat=True, decode=(4, NOBODY, 0)),
        Step(resets=(0, 2), prefill=2, chunk=(9, 8, 7)),
        Step(resets=(1,), prefill=1, chunk=(5,), decode=(4, NOBODY, 129279), beat=True),
    ]
    for step in steps:
        message = step.pack(slots=3, chunk=4)
        assert message.dtype == torch.int64
        assert message.shape == (5 + 3 + 4,)
        assert Step.unpack(message, slots=3) == step


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


# --- through the engine


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(
        hook: Callable[[], None] | None = None, *, slots: int = 2, queue: int = 4, context: int = 64
    ) -> Engine:
        model = NoiseModel(hook)
        runner = Runner(model, Alone(), slots=slots, context=context, chunk=4, meter=Meter())
        made.append(Engine(runner, queue=queue, vocab=VOCAB))
        made[-1].start()
        return made[-1]

    yield make
    for engine in made:
        assert engine.close()


async def read(stream: Stream) -> list[int]:
    return [token async for event in stream for token in event.tokens]


async def together(engine: Engine, jobs: Sequence[Job]) -> list[list[int]]:
    return await asyncio.gather(*(read(engine.submit(one)) for one in jobs))


def test_many_streams_through_the_thread(engines: Callable[..., Engine]) -> None:
    engine = engines(slots=3, queue=20)
    jobs = [job(1 + 3 * i % 17, tokens=2 + i, first=i) for i in range(12)]
    assert asyncio.run(together(engine, jobs)) == [alone(one) for one in jobs]
    stats = engine.stats()
    assert (stats["running"], stats["queued"], stats["slots"]) == (0, 0, 3)
    assert stats["generated_tokens_total"] == sum(one.max_tokens for one in jobs)
    assert stats["prompt_tokens_total"] == sum(len(one.prompt) for one in jobs)
    assert 0 < stats["prefill_steps"] <= stats["steps"]


def test_a_full_queue_is_a_clear_error(engines: Callable[..., Engine]) -> None:
    gate = threading.Event()
    engine = engines(gate.wait, slots=1, queue=2)

    async def crowd() -> list[list[int]]:
        streams = [engine.submit(job(3, first=i)) for i in range(3)]
        with pytest.raises(QueueFullError, match="D052 2 requests wait") as refused:
            engine.submit(job(3))
        assert refused.value.exit_status == 1
        gate.set()
        return await asyncio.gather(*map(read, streams))

    assert asyncio.run(crowd()) == [alone(job(3, first=i)) for i in range(3)]


def test_cancel_gives_the_slot_back(engines: Callable[..., Engine]) -> None:
    engine = engines(lambda: time.sleep(0.01), slots=1, context=600)

    async def scenario() -> list[int]:
        endless = engine.submit(job(3, tokens=500))
        await anext(endless)
        waiting = engine.submit(job(4))
        assert engine.stats()["running"] == 1
        endless.cancel()
        began = time.monotonic()
        assert [event async for event in endless] == []
        text = await read(waiting)
        assert time.monotonic() - began < 2
        return text

    assert asyncio.run(scenario()) == alone(job(4))


def test_requests_that_cannot_fit_are_refused(engines: Callable[..., Engine]) -> None:
    engine = engines(context=16)

    async def refuse() -> None:
        with pytest.raises(UsageError, match="D051 the prompt has 16 tokens"):
            engine.submit(job(16))
        with pytest.raises(UsageError, match=r"D051 the prompt has an id outside 0\.\.96"):
            engine.submit(Job(prompt=(VOCAB,), max_tokens=1, sampling=SEEDED))
        assert len(await read(engine.submit(job(15, tokens=9)))) == 1
        assert len(await read(engine.submit(job(8, tokens=9)))) == 8

    asyncio.run(refuse())


def test_a_failed_step_ends_everything(engines: Callable[..., Engine]) -> None:
    left = [6]

    def hook() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1\nmore")

    engine = engines(hook, slots=1)

    async def scenario() -> None:
        streams = [engine.submit(job(3, tokens=30, first=i)) for i in range(3)]
        for stream in streams:
            with pytest.raises(EngineFailed, match=r"D053 .*Connection closed by peer"):
                await read(stream)
        with pytest.raises(EngineFailed, match="D053"):
            engine.submit(job(3))

    asyncio.run(scenario())
    assert not engine.alive
    assert engine.failure is not None
    assert "more" not in engine.failure


def test_a_stalled_step_can_be_declared_dead(engines: Callable[..., Engine]) -> None:
    gate = threading.Event()
    engine = engines(gate.wait)

    async def scenario() -> None:
        stream = engine.submit(job(3))
        await asyncio.sleep(0.1)
        assert engine.stalled(0.05)
        assert not engine.stalled(60)
        engine.fail("a step takes too long.")
        with pytest.raises(EngineFailed, match="D053 a step takes too long"):
            await read(stream)

    asyncio.run(scenario())
    assert engine.failure == "a step takes too long."
    gate.set()


def test_drain_lets_the_running_finish(engines: Callable[..., Engine]) -> None:
    engine = engines(lambda: time.sleep(0.005))

    async def scenario() -> list[int]:
        stream = engine.submit(job(3))
        engine.drain()
        with pytest.raises(EngineFailed, match="D055"):
            engine.submit(job(3))
        return await read(stream)

    assert asyncio.run(scenario()) == alone(job(3))
    assert engine.alive


def test_close_ends_what_still_runs(engines: Callable[..., Engine]) -> None:
    engine = engines(lambda: time.sleep(0.005), context=5000)

    async def scenario() -> None:
        stream = engine.submit(job(3, tokens=4000))
        await anext(stream)
        assert await asyncio.to_thread(engine.close)
        with pytest.raises(EngineFailed, match="D055 the engine is stopping"):
            await read(stream)

    asyncio.run(scenario())


def test_a_reader_that_left_frees_its_slot(engines: Callable[..., Engine]) -> None:
    engine = engines(lambda: time.sleep(0.002), slots=1, context=5000)

    async def leave() -> None:
        engine.submit(job(3, tokens=4000))
        await asyncio.sleep(0.05)

    asyncio.run(leave())
    assert asyncio.run(together(engine, [job(5)])) == [alone(job(5))]
