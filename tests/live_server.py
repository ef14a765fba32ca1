"""A real server on a real socket, in a thread of the test process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn

from dsv41.local.http.server import Settings, create_app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2 as httpx

    from dsv41.local.engine.loop import Engine

CONTEXT = 4096  # what the engine of the tests has
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"
# Noise that goes on: the loop stop and the end of the text stay away for many tokens.
ENDLESS: dict[str, Any] = {
    "messages": HELLO,
    "temperature": 2,
    "seed": 3,
    "max_tokens": 3000,
    "model": "dsv41-fixture",
}


@contextlib.contextmanager
def serving(engine: Engine, checkpoint: Path, **settings: Any) -> Iterator[str]:
    """Serve an engine on a free port; gives the base URL."""
    given = {"tokenizer": checkpoint / "tokenizer.json", "context": CONTEXT, **settings}
    app = create_app(engine, Settings(**given))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started, "the server starts")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def until(true: Any, what: str, seconds: float = 10.0) -> None:
    """Wait until `true()`; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, after a check that it is the nested one, whole."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error
