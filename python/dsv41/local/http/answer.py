"""One answer on its way: events of the engine in, the chunks of the OpenAI interface out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dsv41.errors import Error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dsv41.guards.loop import LoopDetector
    from dsv41.local.engine.generation import Event
    from dsv41.local.engine.loop import Stream
    from dsv41.local.http.metrics import Metrics
    from dsv41.local.http.prompt import Prompt, Prompts

    Chunk = dict[str, Any]

REPETITION = "repetition"  # what the loop stop says it matched, as SGLang's `matched_stop` does


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What every part of an answer carries."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))


class Answer:
    """Reads one stream of the engine; either `chunks` or `whole` is used, once.

    The loop stop keeps one copy of what repeats. A stream cannot take back what it has sent: there
    only the end is marked.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        prompts: Prompts,
        prompt: Prompt,
        header: Header,
        loop: LoopDetector | None,
        metrics: Metrics,
    ) -> None:
        self._stream = stream
        self._new_parser = partial(
            prompts.parser, prompt, answer=header.id, model=header.model, created=header.created
        )
        self._loop = loop
        self._metrics = metrics
        self._began = time.monotonic()
        self._waiting = True
        self._counted = False

    def cancel(self) -> None:
        """Give the engine's slot back; an answer that was not complete is one that nobody took."""
        self._stream.cancel()
        self._count("gone")

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        """Give the chunks of a streamed answer as they become certain."""
        parser = self._new_parser()
        yield parser.begin()
        async for event in self._events():
            new = parser.push(event.tokens)
            if event.finish is not None:
                new += parser.finish(_reason(event))
            if parser.finished:
                self._close(new[-1], event)
                yield new
                return
            yield new

    async def whole(self) -> Chunk:
        """Give the complete answer."""
        parser = self._new_parser()
        parser.begin()
        tokens: list[int] = []
        async for event in self._events():
            tokens += event.tokens
            parser.push(event.tokens)
            if event.finish == "loop":
                parser = self._new_parser()
                parser.begin()
                parser.push(tokens[: event.keep])
            if event.finish is not None:
                parser.finish(_reason(event))
            if parser.finished:
                answer = parser.whole()
                self._close(answer, event)
                return answer
        raise RuntimeError("the engine's stream ended without a finish")

    async def _events(self) -> AsyncIterator[Event]:
        try:
            async for event in self._stream:
                if self._waiting:
                    self._waiting = False
                    self._metrics.first_token.observe(time.monotonic() - self._began)
                yield event
        except Error:
            self._count("failed")
            raise

    def _close(self, last: Chunk, event: Event) -> None:
        """Count the outcome; say of a stopped loop that it was one."""
        choice = last["choices"][0]
        outcome = choice["finish_reason"]
        if event.finish == "loop":
            outcome = "loop"
            # a call that the stop cut off is not a call to be made
            choice.update(finish_reason="stop", matched_stop=REPETITION)
            kind = self._loop.kind if self._loop is not None else None
            self._metrics.loop_aborts.labels(kind=kind or "unknown").inc()
        self._count(outcome)
        self._stream.cancel()  # after a stop string the engine would go on

    def _count(self, outcome: str) -> None:
        if not self._counted:
            self._metrics.requests.labels(outcome=outcome).inc()
        self._counted = True


def _reason(event: Event) -> str:
    return "length" if event.finish == "length" else "stop"
