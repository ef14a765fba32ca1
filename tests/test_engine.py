"""The engine with the real model at one rank: neighbors, cancelation, figures."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from dsv41.errors import UsageError
from dsv41.local.engine.generation import Job, Sampling

if TYPE_CHECKING:
    from dsv41.local.engine.loop import Engine, Stream

GREEDY = Sampling(temperature=0.0)
SEEDED = Sampling(temperature=0.9, top_p=0.95, seed=20)


def job(length: int, *, salt: int, sampling: Sampling, tokens: int = 12) -> Job:
    draw = random.Random(1000 * length + salt)
    prompt = tuple(draw.randrange(3, 128000) for _ in range(length))
    return Job(prompt=prompt, max_tokens=tokens, sampling=sampling, eos=frozenset())


async def read(stream: Stream) -> list[int]:
    return [token async for event in stream for token in event.tokens]


async def solo(engine: Engine, mine: Job) -> list[int]:
    return await read(engine.submit(mine))


@pytest.mark.parametrize("first", [0, 1], ids=["slots in order", "slots in reverse"])
def test_a_text_never_depends_on_its_neighbors(engine_tp1: Engine, first: int) -> None:
    # the model takes 64 prompt tokens a step: 70 are two steps, with decodes of others between
    mine = [job(20, salt=0, sampling=GREEDY), job(70, salt=0, sampling=SEEDED)]
    others = [
        job(length, salt=first, sampling=(GREEDY, SEEDED)[i % 2], tokens=3 + i)
        for i, length in enumerate((5, 1, 64, 130, 23, 65))
    ]
    jobs = [mine[first], *others, mine[1 - first]]

    async def together() -> list[list[int]]:
        return await asyncio.gather(*(solo(engine_tp1, one) for one in jobs))

    texts = asyncio.run(together())
    assert [texts[0], texts[7]] == [
        asyncio.run(solo(engine_tp1, mine[first])),
        asyncio.run(solo(engine_tp1, mine[1 - first])),
    ]
    assert [len(text) for text in texts] == [12, 3, 4, 5, 6, 7, 8, 12]


def test_a_canceled_neighbor_leaves_no_trace(engine_tp1: Engine) -> None:
    mine = job(30, salt=1, sampling=GREEDY)

    async def scenario() -> tuple[list[int], list[int]]:
        first = await solo(engine_tp1, mine)
        streams = [engine_tp1.submit(job(40 + i, salt=2, sampling=GREEDY)) for i in range(8)]
        await anext(streams[0])
        for stream in streams:
            stream.cancel()
        return first, await solo(engine_tp1, mine)

    first, second = asyncio.run(scenario())
    assert first == second


def test_figures_add_up(engine_tp1: Engine) -> None:
    before = engine_tp1.stats()
    asyncio.run(solo(engine_tp1, job(70, salt=4, sampling=GREEDY, tokens=5)))
    after = engine_tp1.stats()
    grown = {name: after[name] - before[name] for name in before if name.endswith("s_total")}
    assert grown == {"generated_tokens_total": 5, "prompt_tokens_total": 70}
    # two prompt chunks, then four decodes of one slot; 24 columns a token and layer
    assert after["steps"] - before["steps"] == 6
    assert after["prefill_steps"] - before["prefill_steps"] == 2
    for layer in (1, 2):
        looked = [stats["rows"][layer]["owned"] for stats in (before, after)]
        assert looked[1] - looked[0] == 24 * 74
    assert after["model_seconds"] > before["model_seconds"]
    assert (after["running"], after["queued"], after["slots"]) == (0, 0, 8)


def test_the_context_bounds_prompt_and_answer(engine_tp1: Engine) -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError, match="D051 the prompt has 4096 tokens"):
            engine_tp1.submit(job(4096, salt=5, sampling=GREEDY))

    asyncio.run(scenario())
