"""Answers over HTTP whose client may go away: server-sent events, and waiting for one whole answer.

A client that disconnects while the model still works must free its slot. Starlette notices only
when something is sent, so both kinds of answer listen for the disconnect themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from starlette.types import Receive, Scope, Send

Answer = TypeVar("Answer")
KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


class EventStream(Response):
    """Sends the lines of `source`; `closed` is called when the last byte is out or nobody listens.

    After `keepalive` seconds without a line a comment is sent: between the request and its first
    token clients and proxies see no byte otherwise, and give up.
    """

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncGenerator[bytes], *, keepalive: float, closed: Callable[[], None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._keepalive = keepalive
        self._closed = closed

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send until the source ends or the client is gone."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with contextlib.suppress(ClientGoneError):
                await unless_gone(self._pump(send), receive)
        finally:
            self._closed()
            await self._source.aclose()

    async def _pump(self, send: Send) -> None:
        async with contextlib.aclosing(with_keepalive(self._source, self._keepalive)) as lines:
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def with_keepalive(source: AsyncGenerator[bytes], seconds: float) -> AsyncGenerator[bytes]:
    """Give the items of `source`, and KEEPALIVE whenever none came for so long."""
    while True:
        step = asyncio.ensure_future(anext(source, None))
        try:
            while not (await asyncio.wait({step}, timeout=seconds))[0]:
                yield KEEPALIVE
        finally:
            await _end(step)
        item = step.result()
        if item is None:
            return
        yield item


async def unless_gone(work: Coroutine[Any, Any, Answer], receive: Receive) -> Answer:
    """Wait for `work`; cancel it and raise ClientGoneError when the client disconnects first."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGoneError
        return doing.result()
    finally:
        leaving.cancel()
        await _end(doing)


def event(data: Any) -> bytes:
    """Write one server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


async def _end(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
