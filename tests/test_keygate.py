"""The gate in front of an engine's app, around an app that answers everything."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsv41.adapters import keygate
from dsv41.adapters.keygate import OPEN, KeyGate
from dsv41.errors import UsageError
from dsv41.guards.keys import Keys

KEYS = Keys((b"one", b"two"))


async def everything(scope: Any, _: Any, send: Any) -> None:
    await send({"type": f"{scope['type']}.passed"})


def ask(gate: KeyGate, path: str, *headers: tuple[bytes, bytes], **scope: Any) -> list[Any]:
    sent: list[Any] = []
    whole = {"type": "http", "method": "GET", "path": path, "headers": list(headers), **scope}

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the gate reads no body")

    asyncio.run(gate(whole, receive, send))
    return sent


def passes(gate: KeyGate, path: str, *headers: tuple[bytes, bytes], **scope: Any) -> bool:
    sent = ask(gate, path, *headers, **scope)
    return bool(sent[0]["type"].endswith(".passed"))


def bearer(key: bytes) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + key


@pytest.mark.parametrize("path", sorted(OPEN))
def test_open_paths_are_open_and_nothing_below_them(path: str) -> None:
    gate = KeyGate(everything, KEYS)
    assert passes(gate, path)
    for near in (f"{path}/", f"{path}x", f"/v1{path}", path.upper(), f"/{path}"):
        assert not passes(gate, near)
        assert passes(gate, near, bearer(b"two"))
    assert not passes(gate, path, type="websocket")


def test_without_a_key_it_is_a_401() -> None:
    start, body = ask(KeyGate(everything, KEYS), "/v1/models", bearer(b"three"))
    assert start["status"] == 401
    headers = dict(start["headers"])
    assert headers[b"www-authenticate"] == b"Bearer"
    assert int(headers[b"content-length"]) == len(body["body"])
    assert json.loads(body["body"])["error"]["code"] == "invalid_api_key"


def test_a_web_socket_is_closed_and_a_lifespan_is_not() -> None:
    gate = KeyGate(everything, KEYS)
    (closed,) = ask(gate, "/v1/realtime", type="websocket")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    assert passes(gate, "/v1/realtime", bearer(b"one"), type="websocket")
    assert ask(gate, "", type="lifespan") == [{"type": "lifespan.passed"}]


def test_two_headers_are_none() -> None:
    gate = KeyGate(everything, KEYS)
    assert passes(gate, "/x", (b"Authorization", b"Bearer one"))
    assert not passes(gate, "/x", bearer(b"one"), bearer(b"three"))
    assert not passes(gate, "/x", bearer(b"one"), bearer(b"two"))


def test_only_a_whole_preflight_passes() -> None:
    gate = KeyGate(everything, KEYS)
    origin, method = (b"origin", b"http://x"), (b"access-control-request-method", b"POST")
    assert passes(gate, "/x", origin, method, method="OPTIONS")
    assert not passes(gate, "/x", origin, method="OPTIONS")
    assert not passes(gate, "/x", origin, method, method="POST")


def test_the_engines_own_key_ends() -> None:
    gate = KeyGate(everything, KEYS, Keys((b"own",)))
    assert gate.own() == "own"
    assert passes(gate, "/x", bearer(b"own"))
    assert passes(gate, "/x", bearer(b"one"))
    gate.no_more_own()
    assert gate.own() is None
    assert not passes(gate, "/x", bearer(b"own"))
    assert passes(gate, "/x", bearer(b"one"))


def test_the_file_is_named_by_the_switch(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    environ = {"DSV41_API_KEY_FILE": str(path)}
    with pytest.raises(UsageError, match="D070"):
        keygate.read_keys(environ)
    path.touch(mode=0o600)
    path.write_text("one\n")
    assert keygate.read_keys(environ).accepts(b"Bearer one")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="D071"):
        keygate.read_keys(environ)


@pytest.mark.timeout(10)
def test_what_is_no_file_is_refused_unopened(tmp_path: Path) -> None:
    """To open a FIFO that nobody writes to waits for ever."""
    path = tmp_path / "keys"
    os.mkfifo(path, 0o600)
    for name in (path, Path("/dev/null"), tmp_path):
        with pytest.raises(UsageError, match=r"D070 .*is not a regular file"):
            keygate.read_keys({"DSV41_API_KEY_FILE": str(name)})


def test_a_file_that_went_bad_ends_the_process(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"dsv41: D070 .*\ndsv41: to mend it: make it"):
        keygate.keys_or_end({"DSV41_API_KEY_FILE": str(tmp_path / "keys")})
