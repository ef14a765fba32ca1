"""The key gate on SGLang's real app and settings, in this process; over HTTP: test_served.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hooked import hooked
from sglang.srt.entrypoints import http_server
from sglang.srt.runtime_context import get_context, get_serving
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.auth import AuthLevel, add_api_key_middleware

from dsv41.adapters import install, keygate, probe
from dsv41.adapters.sglang import api_keys
from dsv41.errors import CheckFailed, UsageError
from dsv41.guards.keys import Keys

KEY = "sk-0123456789"
HEADER = [(b"authorization", f"Bearer {KEY}".encode())]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(f"{KEY}\n")
    return path


@pytest.fixture
def app() -> Iterator[Any]:
    """SGLang's app, which no test has served, as it was afterwards."""
    found = http_server.app
    kept = dict(vars(found))
    layers = list(found.user_middleware)
    yield found
    vars(found).clear()
    vars(found).update(kept)
    found.user_middleware[:] = layers
    api_keys._gates.clear()


def status_of(app: Any, path: str, headers: Any = (), method: str = "GET", **more: Any) -> int:
    """One request through the whole app, without a server."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
        **more,
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    if sent[0]["type"] == "websocket.close":
        return -int(sent[0]["code"])
    return int(sent[0]["status"])


def test_the_gate_is_the_outermost_layer(app: Any) -> None:
    """SGLang adds its own check of keys afterwards; a stranger never reaches it."""
    api_keys.put_before(app, Keys((KEY.encode(),)))
    add_api_key_middleware(app, api_key=None, admin_api_key=None)
    forced = [
        route.path
        for route in app.routes
        if getattr(getattr(route, "endpoint", None), "_auth_level", None) == AuthLevel.ADMIN_FORCE
    ]
    for path in forced:
        assert status_of(app, path) == 401
        assert status_of(app, path, HEADER, method="POST") in {403, 405}
    assert status_of(app, "/nothing") == 401
    assert status_of(app, "/nothing", HEADER) == 404
    assert status_of(app, "/v1/realtime", type="websocket", subprotocols=[]) == -1008


def test_the_app_must_not_have_served(app: Any) -> None:
    app.middleware_stack = object()
    with pytest.raises(SystemExit, match="D157"):
        api_keys.put_before(app, Keys((KEY.encode(),)))


def test_the_engines_own_requests(
    app: Any, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They show a key of their own, which opens the app until the engine is warm."""
    shown = []

    def warm_up(*_: object, **__: object) -> None:
        headers = [(b"authorization", f"Bearer {get_serving().api_key}".encode())]
        shown.append(headers)
        assert get_serving().api_key != KEY
        assert status_of(app, "/nothing", headers) == 404

    settings = SimpleNamespace(called=[])
    monkeypatch.setattr(http_server, "_setup_and_run_http_server", settings.called.append)
    monkeypatch.setattr(http_server, "_wait_and_warmup", warm_up)
    with (
        hooked(api_keys.ADAPTER, DSV41_API_KEY_FILE=str(key_file)),
        get_context().override_server_args(model_path="dummy"),
    ):
        http_server._setup_and_run_http_server("server_args")
        assert settings.called == ["server_args"]
        assert status_of(app, "/nothing", HEADER) == 404
        http_server._wait_and_warmup(server_args=None)
        assert get_serving().api_key is None
        assert status_of(app, "/nothing", shown[0]) == 401
        assert status_of(app, "/nothing", HEADER) == 404


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"api_key": "k"}, "D156"),
        ({"admin_api_key": "k"}, "D156"),
        ({"grpc_port": 50_051}, "D155"),
        ({"smg_grpc_mode": True}, "D155"),
        ({"grpc_mode": True}, "D155"),
        ({"encoder_only": True}, "D155"),
    ],
    ids=str,
)
def test_what_leads_past_the_keys_is_refused(given: dict[str, Any], code: str) -> None:
    with pytest.raises(CheckFailed) as caught:
        api_keys.judge(SimpleNamespace(**given))
    assert caught.value.code == code
    assert all(hasattr(ServerArgs(model_path="dummy"), name) for name in given)


def test_the_engines_own_settings_are_judged(key_file: Path) -> None:
    """As soon as SGLang has resolved them, long before it loads weights."""
    with hooked(api_keys.ADAPTER, DSV41_API_KEY_FILE=str(key_file)):
        ServerArgs(model_path="dummy").resolve_once()
        with pytest.raises(SystemExit, match="D156"):
            ServerArgs(model_path="dummy", api_key="k").resolve_once()


@pytest.mark.parametrize(
    ("mode", "content", "code"),
    [(0o644, f"{KEY}\n", "D071"), (0o600, "", "D072"), (0o600, "a b\n", "D072"), (0, "", "D070")],
)
def test_a_bad_file_ends_the_start(key_file: Path, mode: int, content: str, code: str) -> None:
    key_file.write_text(content)
    key_file.chmod(mode or 0o600)
    if not mode:
        key_file.unlink()
    before = probe.find(f"{api_keys.HTTP}._setup_and_run_http_server").raw
    with pytest.raises(CheckFailed) as caught:
        install.install("sglang", (api_keys.ADAPTER,), {"DSV41_API_KEY_FILE": str(key_file)})
    assert caught.value.code == code
    assert probe.find(f"{api_keys.HTTP}._setup_and_run_http_server").raw is before
    with pytest.raises(UsageError):
        keygate.read_keys({"DSV41_API_KEY_FILE": str(key_file)})
