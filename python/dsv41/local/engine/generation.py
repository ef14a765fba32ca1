"""What is generated for one request, and when it ends; pure, without tensors, threads or I/O.

A `Job` is what the server submits. `Generation` is its state: how many tokens were made, what
may come next, and why it ended. `Event` is what one step brought. `dsv41.local.engine.loop` runs
jobs; it exports `Engine` and `Stream`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from dsv41.errors import Error, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

Finish = Literal["stop", "length", "loop"]

# Input-side sentinels of the tokenizer (image parts, placeholders, task markers): read, never
# sampled. A public four-node recipe of the real model bans the same ids by a logit of -inf.
SENTINELS: tuple[int, ...] = (*range(128847, 129271), 129279)


class QueueFullError(Error):
    """The queue is full (D052): the client may come again; the engine itself is well."""


class Constraint(Protocol):
    """What the output may be, one token at a time; used by one request only."""

    def mask(self) -> npt.NDArray[np.int32] | npt.NDArray[np.uint32] | npt.NDArray[np.bool_] | None:
        """Which ids may come next; None allows all.

        Either 32-bit words (bit i of word w is id 32 * w + i) or one bool per id; ids beyond the
        array are forbidden.
        """

    def accept(self, token: int) -> bool:
        """Take the sampled token (never an end-of-sequence id); True when nothing may follow it."""


class Loop(Protocol):
    """A loop detector: `dsv41.guards.loop.LoopDetector` is one."""

    def push(self, tokens: Sequence[int]) -> int | None:
        """Take the next tokens; how many of all tokens to keep once they repeat, else None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is drawn: temperature 0 is greedy; without a seed the engine draws one."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise UsageError(
                "D051",
                f"temperature is {self.temperature}; it must lie in 0..100.",
                fix="send a temperature from 0 (greedy) to 2",
            )
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(
                "D051",
                f"top_p is {self.top_p}; it must be above 0 and at most 1.",
                fix="send a top_p above 0 and at most 1",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One request to the engine, in token ids.

    prompt: at least one id. max_tokens: at least 1; the engine lowers it to the context left.
    eos: ids that end the text and are not part of it. banned: ids that are never sampled.
    constraint and loop carry state and belong to this job alone.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    eos: frozenset[int] = frozenset({1})
    banned: Sequence[int] = SENTINELS
    constraint: Constraint | None = None
    loop: Loop | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UsageError("D051", "the prompt has no tokens.", fix="send at least one message")
        if self.max_tokens < 1:
            raise UsageError(
                "D051",
                f"max_tokens is {self.max_tokens}; it must be at least 1.",
                fix="send max_tokens of 1 or more, or leave it out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """What one step brought to a stream.

    tokens: the new ids, without the end-of-sequence id. finish: why the text ended, None while it
    goes on. keep: with finish "loop", how many of all tokens of this stream to keep (the
    repetition is cut down to one copy).
    """

    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    keep: int | None = None


class Generation:
    """The state of one job: feed it every sampled token in order until its event says `finish`."""

    def __init__(self, job: Job, *, context: int) -> None:
        """Begin; `context` is how many tokens prompt and output may have together, else D051."""
        if len(job.prompt) >= context:
            raise UsageError(
                "D051",
                f"the prompt has {len(job.prompt)} tokens; context and output have {context}.",
                fix="send a shorter prompt, or serve with a larger context",
            )
        self.job = job
        self.limit = min(job.max_tokens, context - len(job.prompt))
        self.length = 0
        self.finish: Finish | None = None

    def mask(self) -> npt.NDArray[np.int32] | npt.NDArray[np.uint32] | npt.NDArray[np.bool_] | None:
        """Give the ids that the constraint allows next; None allows all."""
        return None if self.job.constraint is None else self.job.constraint.mask()

    def push(self, token: int) -> Event:
        """Take the next sampled token.

        The first cause in this order ends the text: end of sequence, constraint, loop, length.
        """
        if self.finish is not None:
            raise ValueError(f"the text already ended by {self.finish}")
        event = self._judge(token)
        self.finish = event.finish
        return event

    def _judge(self, token: int) -> Event:
        if token in self.job.eos:
            return Event(finish="stop")
        self.length += 1
        if self.job.constraint is not None and self.job.constraint.accept(token):
            return Event(tokens=(token,), finish="stop")
        keep = None if self.job.loop is None else self.job.loop.push((token,))
        if keep is not None:
            return Event(tokens=(token,), finish="loop", keep=keep)
        return Event(tokens=(token,), finish="length" if self.length >= self.limit else None)
