"""A model whose logits are noise drawn from the slot's whole history: scheduling needs no more.

It keeps what the real one keeps (a history per slot, a capacity), so a step that feeds the wrong
slot, skips a reset or repeats a token changes the text.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from dsv41.local.engine.generation import Event, Generation, Job, Sampling
from dsv41.local.engine.sampling import Sampler
from dsv41.local.engine.scheduler import Request, Scheduler
from dsv41.local.engine.steps import Meter, Runner, Step
from dsv41.local.model.comm import Alone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from dsv41.errors import Error
    from dsv41.local.model.ahead import Ahead

VOCAB = 97


class Histories:
    """The cache: the tokens of every slot."""

    def __init__(self, *, slots: int, capacity: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(slots)]
        self.capacity = capacity


class NoiseModel:
    """Logits of a history are noise seeded by its CRC; `hook` runs before every call."""

    def __init__(self, hook: Callable[[], None] | None = None) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.held: tuple[int, ...] = ()  # history and tokens of the chunk that was asked for
        self.early: list[bool] = []  # of every prefill: was it the chunk that was asked for
        self.dropped = 0
        self.hook = hook

    def cache(self, *, slots: int, capacity: int) -> Histories:
        return Histories(slots=slots, capacity=capacity)

    def prefill(
        self, cache: Histories, *, slot: int, tokens: Sequence[int], ahead: Ahead | None = None
    ) -> Tensor:
        self._note("prefill", (slot, len(tokens)))
        self.early.append((*cache.tokens[slot], *tokens) == self.held)
        if self.early[-1]:
            self.held = ()
        logits = self._append(cache, slot, tokens)
        self._ask(cache, ahead)
        return logits

    def decode(
        self, cache: Histories, *, tokens: Tensor, active: Tensor, ahead: Ahead | None = None
    ) -> Tensor:
        self._ask(cache, ahead)
        slots = [slot for slot, on in enumerate(active.tolist()) if on]
        self._note("decode", tuple(slots))
        out = torch.full((len(cache.tokens), VOCAB), float("nan"))
        for slot in slots:
            out[slot] = self._append(cache, slot, [int(tokens[slot])])
        return out

    def forget_ahead(self) -> None:
        self.dropped += bool(self.held)
        self.held = ()

    def _ask(self, cache: Histories, ahead: Ahead | None) -> None:
        if ahead is not None:
            self.forget_ahead()
            before = cache.tokens[ahead.slot] if ahead.slot >= 0 else ()
            self.held = (*before, *ahead.tokens)

    def reset(self, cache: Histories, *, slot: int) -> None:
        self._note("reset", (slot,))
        cache.tokens[slot] = []

    def _note(self, what: str, detail: tuple[int, ...]) -> None:
        if self.hook is not None:
            self.hook()
        self.calls.append((what, detail))

    def _append(self, cache: Histories, slot: int, tokens: Sequence[int]) -> Tensor:
        history = cache.tokens[slot]
        history.extend(tokens)
        if len(history) > cache.capacity:
            raise RuntimeError(f"slot {slot} holds {len(history)} of {cache.capacity} tokens")
        return noise(history)


def noise(history: Sequence[int]) -> Tensor:
    """The logits [VOCAB] after a history."""
    seed = zlib.crc32(b",".join(b"%d" % token for token in history))
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    row[1] = -1e9  # texts end by their length only, so that tests know how long they are
    return row


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

    def __init__(
        self, *, slots: int = 2, chunk: int = 4, context: int = 64, ahead: bool = True
    ) -> None:
        self.model = NoiseModel()
        self.scheduler = Scheduler(slots=slots, context=context, chunk=chunk, queue=9, ahead=ahead)
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
