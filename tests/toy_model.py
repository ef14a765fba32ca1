"""A model whose logits are noise drawn from the slot's whole history: scheduling needs no more.

It keeps what the real one keeps (a history per slot, a capacity), so a step that feeds the wrong
slot, skips a reset or repeats a token changes the text.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from dsv41.local.engine.generation import Job, Sampling
from dsv41.local.engine.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

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
        self.hook = hook

    def cache(self, *, slots: int, capacity: int) -> Histories:
        return Histories(slots=slots, capacity=capacity)

    def prefill(self, cache: Histories, *, slot: int, tokens: Sequence[int]) -> Tensor:
        self._note("prefill", (slot, len(tokens)))
        return self._append(cache, slot, tokens)

    def decode(self, cache: Histories, *, tokens: Tensor, active: Tensor) -> Tensor:
        slots = [slot for slot, on in enumerate(active.tolist()) if on]
        self._note("decode", tuple(slots))
        out = torch.full((len(cache.tokens), VOCAB), float("nan"))
        for slot in slots:
            out[slot] = self._append(cache, slot, [int(tokens[slot])])
        return out

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
