"""The HTTP server around the engine on rank 0, from listening to a good end.

Stop: no more requests are taken, those that run get GRACE seconds, then an error. Failure: the
running requests have had their error already; /health says 503 for LINGER seconds, so that a
monitor sees it, then the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from threading import Event

    from starlette.types import ASGIApp

    from dsv41.local.engine.loop import Engine

GRACE = 4.0  # seconds for running requests at a stop
LINGER = 2.0  # seconds that /health answers 503 after a failure
STALL = 60.0  # seconds after which a step counts as hung although no collective timed out
TICK = 0.05
EXIT_STOPPED, EXIT_FAILED = 0, 4


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: it would end the process by the signal it caught."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: ASGIApp,
    engine: Engine,
    *,
    listener: socket.socket,
    stop: Event,
    say: Callable[[str], None],
) -> int:
    """Serve until `stop` is set or the engine fails; give the exit status."""
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    running = asyncio.create_task(server.serve(sockets=[listener]))

    def over() -> bool:
        if engine.stalled(STALL):
            engine.fail(f"a step takes longer than {STALL:g} s.")
        return running.done() or not engine.alive or stop.is_set() or engine.stop_wanted.is_set()

    await _until(lambda: server.started or running.done())
    if server.started:
        host, port = listener.getsockname()[:2]
        say(f"ready at http://{host}:{port}")
    await _until(over)
    if engine.stop_wanted.is_set():
        say("another rank was asked to stop")
    if engine.alive and not running.done():
        await _drain(engine, say=say)
    status = await _outcome(engine, running, say=say)
    server.should_exit = True
    await asyncio.wait([running], timeout=2.0)
    return status


async def _until(done: Callable[[], bool], *, seconds: float = math.inf) -> None:
    """Wait until `done` or for `seconds`: what it asks is set by threads, without this loop."""
    began = time.monotonic()
    while not done() and time.monotonic() - began < seconds:  # noqa: ASYNC110
        await asyncio.sleep(TICK)


async def _drain(engine: Engine, *, say: Callable[[str], None]) -> None:
    """Let requests finish for GRACE seconds, end the others, dismiss the other ranks."""
    engine.drain()
    await _until(lambda: not (engine.alive and engine.busy), seconds=GRACE)
    if engine.alive:
        if engine.busy:
            say(f"requests still run after {GRACE:g} s: ending them")
        if not await asyncio.to_thread(engine.close, timeout=LINGER):
            engine.fail("the step in progress did not end.")
        await asyncio.sleep(2 * TICK)  # the last events go out


async def _outcome(
    engine: Engine, running: asyncio.Task[None], *, say: Callable[[str], None]
) -> int:
    if running.done():
        says = None if running.cancelled() else running.exception()
        say(f"the HTTP server ended by itself: {says}")
        return EXIT_FAILED
    if engine.alive:
        return EXIT_STOPPED
    say(f"engine failed: {engine.failure}")
    await asyncio.sleep(LINGER)
    return EXIT_FAILED
