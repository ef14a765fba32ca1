"""The engine's thread: many streams, full queues, cancelation, failures, the end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from dsv41.errors import EngineFailed, UsageError
from dsv41.local.engine.generation import Job, QueueFullError
from dsv41.local.engine.loop import Engine, Stream
from dsv41.local.engine.steps import Meter, Runner
from dsv41.local.model.comm import Alone
from toy_model import SEEDED, VOCAB, NoiseModel, alone, job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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
