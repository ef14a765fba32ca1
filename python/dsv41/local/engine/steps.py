"""What every rank does in one step: the message that rank 0 broadcasts, and its execution.

Rank 0 decides and sends one int64 tensor of a fixed length per step; all ranks then make the same
model calls in the same order. A beat adds one small all-reduce: unlike a broadcast, which ends in
the socket's buffer, it needs an answer from every rank, so a stopped or dead peer is noticed
although nothing is generated. The beat also carries the wish of any rank to stop.

A step also names the prompt chunk that comes next: every rank asks its store for those rows before
it computes this step, and the disk reads meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dsv41.local.model.ahead import Ahead, Counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dsv41.local.model.comm import Comm

NOBODY = -1  # no prefill in this step, or a slot that does not decode
# words before the decode tokens: stop, beat, resets, prefill slot and length, slot and length of
# the chunk that comes next, whether the one that was asked for before is not wanted any more
HEAD = 8


class Stepper(Protocol):
    """The calls of `dsv41.local.model.transformer.Model` that a step makes."""

    def cache(self, *, slots: int, capacity: int) -> Any:
        """Make the state of `slots` sequences of up to `capacity` tokens."""

    def prefill(
        self, cache: Any, *, slot: int, tokens: Sequence[int], ahead: Ahead | None = None
    ) -> Tensor | None:
        """Append tokens to a slot; logits [vocab] after the last one on rank 0."""

    def decode(
        self, cache: Any, *, tokens: Tensor, active: Tensor, ahead: Ahead | None = None
    ) -> Tensor | None:
        """Append one token to each active slot; logits [slots, vocab] on rank 0."""

    def forget_ahead(self) -> None:
        """Drop what the last `ahead` asked for."""

    def reset(self, cache: Any, *, slot: int) -> None:
        """Empty a slot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of all ranks: empty the `resets`, append a prompt chunk to one slot, decode a batch.

    chunk: the ids to append to slot `prefill`. decode: one id per slot, NOBODY where none decodes,
    empty when no slot does. ahead: a chunk of a later step, whose rows are to be read while this
    one computes; what was asked for before is kept unless there is a new one or `forget` is set.
    stop: leave after this message.
    """

    resets: tuple[int, ...] = ()
    prefill: int = NOBODY
    chunk: tuple[int, ...] = ()
    decode: tuple[int, ...] = ()
    ahead: Ahead | None = None
    forget: bool = False
    beat: bool = False
    stop: bool = False

    def pack(self, *, slots: int, chunk: int) -> Tensor:
        """Give the message: int64 [message_words]."""
        resets = sum(1 << slot for slot in self.resets)
        ahead = self.ahead or Ahead()
        message = [int(self.stop), int(self.beat), resets, self.prefill, len(self.chunk)]
        message += [ahead.slot, len(ahead.tokens), int(self.forget)]
        message += self.decode or (NOBODY,) * slots
        for tokens in (self.chunk, ahead.tokens):
            message += tokens + (0,) * (chunk - len(tokens))
        return torch.tensor(message, dtype=torch.int64)

    @classmethod
    def unpack(cls, message: Tensor, *, slots: int, chunk: int) -> Step:
        """Read a message that `pack` made for the same number of slots and longest chunk."""
        stop, beat, resets, prefill, length, slot_ahead, length_ahead, forget, *rest = (
            message.tolist()
        )
        decode, later = tuple(rest[:slots]), rest[slots + chunk :][:length_ahead]
        return cls(
            resets=tuple(slot for slot in range(slots) if resets >> slot & 1),
            prefill=prefill,
            chunk=tuple(rest[slots : slots + length]),
            decode=decode if any(token != NOBODY for token in decode) else (),
            ahead=Ahead(slot=slot_ahead, tokens=tuple(later)) if later else None,
            forget=bool(forget),
            beat=bool(beat),
            stop=bool(stop),
        )


def message_words(*, slots: int, chunk: int) -> int:
    """How many int64 a step message has."""
    return HEAD + slots + 2 * chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class Logits:
    """What a step gave on rank 0: float [vocab] of the chunk's last token, float [slots, vocab]."""

    prefill: Tensor | None = None
    decode: Tensor | None = None


@dataclass(kw_only=True, slots=True)
class Meter:
    """Seconds of this rank in model calls and in collectives, those inside a call included.

    ahead: the row ids that the model asked for a step early.
    """

    steps: int = 0
    model: float = 0.0
    collectives: float = 0.0
    ahead: Counts = field(default_factory=Counts)


class Metered:
    """A `Comm` that adds the seconds of its calls to a meter."""

    def __init__(self, comm: Comm, meter: Meter) -> None:
        self.rank = comm.rank
        self.world = comm.world
        self._comm = comm
        self._meter = meter

    def sum(self, tensor: Tensor) -> Tensor:
        """All-reduce in place."""
        began = time.perf_counter()
        out = self._comm.sum(tensor)
        self._meter.collectives += time.perf_counter() - began
        return out

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """Give rank 0 the parts of all ranks."""
        began = time.perf_counter()
        out = self._comm.gather(tensor)
        self._meter.collectives += time.perf_counter() - began
        return out

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Give every rank what rank 0 holds."""
        began = time.perf_counter()
        out = self._comm.broadcast(tensor)
        self._meter.collectives += time.perf_counter() - began
        return out

    def close(self) -> None:
        """Leave the group."""
        self._comm.close()


class Runner:
    """Carries out steps on this rank; `comm` is the one that the model uses.

    ahead: whether rank 0 shall name the chunk that comes next; other ranks do what they are told.
    """

    def __init__(
        self,
        model: Stepper,
        comm: Comm,
        *,
        slots: int,
        context: int,
        chunk: int,
        meter: Meter,
        ahead: bool = True,
    ) -> None:
        self.comm = comm
        self.ahead = ahead
        self.slots = slots
        self.context = context
        self.chunk = chunk
        self.meter = meter
        self.stop_wanted = False  # set from outside on any rank, told to all by the next beat
        self.stopping = False  # some rank wants to stop
        self._model = model
        self._cache = model.cache(slots=slots, capacity=context)

    def lead(self, step: Step) -> Logits:
        """Rank 0: send the step, then do it."""
        if self.comm.world > 1:
            self.comm.broadcast(step.pack(slots=self.slots, chunk=self.chunk))
        return self._do(step)

    def follow(self) -> bool:
        """Do the next step of rank 0 on another rank; False after its last one."""
        length = message_words(slots=self.slots, chunk=self.chunk)
        message = self.comm.broadcast(torch.zeros(length, dtype=torch.int64))
        step = Step.unpack(message, slots=self.slots, chunk=self.chunk)
        self._do(step)
        return not step.stop

    def warm_up(self) -> None:
        """Rank 0: run each kind of step once and leave all slots as they were; others follow."""
        tokens = tuple(range(3, 3 + min(self.chunk, self.context // 2)))
        batch = (5,) + (NOBODY,) * (self.slots - 1)
        self.lead(Step(resets=(0,), prefill=0, chunk=tokens, beat=True))
        self.lead(Step(decode=batch))
        self.lead(Step(resets=(0,)))

    def _do(self, step: Step) -> Logits:
        began = time.perf_counter()
        for slot in step.resets:
            self._model.reset(self._cache, slot=slot)
        prefill = decode = None
        if step.forget:
            self._model.forget_ahead()
        if step.chunk:
            prefill = self._model.prefill(
                self._cache, slot=step.prefill, tokens=step.chunk, ahead=step.ahead
            )
        if step.decode:
            tokens = torch.tensor(step.decode, dtype=torch.int64)
            active = tokens != NOBODY
            tokens = tokens.clamp(min=0)
            decode = self._model.decode(
                self._cache,
                tokens=tokens,
                active=active,
                ahead=None if step.chunk else step.ahead,  # asked for already
            )
        self.meter.model += time.perf_counter() - began
        self.meter.steps += 1
        if step.beat:
            self._beat()
        return Logits(prefill=prefill, decode=decode)

    def _beat(self) -> None:
        votes = torch.tensor([1, int(self.stop_wanted)], dtype=torch.int64)
        present, stopping = self.comm.sum(votes).tolist()
        if present != self.comm.world:
            raise RuntimeError(f"{present} of {self.comm.world} ranks answered a beat")
        self.stopping = stopping > 0
