"""Bearer keys in front of an engine's whole HTTP app, as an ASGI application around it.

The keys come from the file that `DSV41_API_KEY_FILE` names. They are read in the process and stay
there: no key is in an argument list, in the environment, in the engine's settings (which it logs
and shows at /server_info) or in a message. They are read once, when the engine starts to serve: a
key that is taken out of the file opens the API until the engine is started again.

Open are the paths that probes and Prometheus ask without secrets, and nothing below them. Every
other path of the app needs a key, also those that do not exist, WebSockets included. A browser's
preflight carries no key by design: it passes, and the app's CORS layer answers it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from dsv41 import switches
from dsv41.errors import Error
from dsv41.guards import keys
from dsv41.guards.keys import Keys

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# In SGLang /health_generate is the handler of /health by another name (both may generate one
# token), so closing it would protect nothing and break the probes that use it.
OPEN = frozenset({"/health", "/health_generate", "/ready", "/metrics"})
_ERROR = {
    "message": "No valid API key: send Authorization: Bearer with one of the keys of this server.",
    "type": "invalid_request_error",
    "param": None,
    "code": "invalid_api_key",
}
BODY = json.dumps({"error": _ERROR}).encode()
POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1


def read_keys(environ: Mapping[str, str]) -> Keys:
    """Read the file that the switch names.

    Raises UsageError D070 when it cannot be read, D071 when its mode is looser than 0600, D072 when
    it is empty or a line is not one key.
    """
    path = Path(switches.read_word(environ, "api_key_file"))
    try:
        keys.check_mode(path, path.stat().st_mode)  # to open a FIFO waits, a device may act
        with path.open("rb") as file:
            keys.check_mode(path, os.fstat(file.fileno()).st_mode)
            text = file.read()
    except OSError as error:
        raise keys.unreadable(path, error.strerror) from None
    return keys.parse(path, text)


def keys_or_end(environ: Mapping[str, str]) -> Keys:
    """Like `read_keys`, where the engine serves: a file that went bad since ends the process."""
    try:
        return read_keys(environ)
    except Error as error:
        raise end(error) from error


def end(error: Error) -> SystemExit:
    """What ends the engine, with the error and its mend."""
    return SystemExit(f"dsv41: {error}\ndsv41: to mend it: {error.fix}")


def put_before(app: Any, gate: Callable[[App], KeyGate]) -> None:
    """Make a gate the outermost layer of an app (Starlette's), whatever is added to it later.

    Such an app builds its layers at its first call, and whoever moves layers about builds them
    again; each time the gate goes around the result.
    """
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: gate(build())


class KeyGate:
    """An ASGI application that lets a request through to `app` only with one of `given`.

    `own` are further keys, for requests that the engine sends to itself while it starts.
    """

    def __init__(self, app: App, given: Keys, own: Keys | None = None) -> None:
        self._app = app
        self._given = given
        self._own = own

    def own(self) -> str | None:
        """The key that the engine may show itself, while there is one."""
        return self._own.bearer() if self._own else None

    def no_more_own(self) -> None:
        """The engine has started: its own key opens nothing any more."""
        self._own = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 (a WebSocket is closed before it opens)."""
        if self._passes(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "no key"})
        else:
            await _refuse(send)

    def _passes(self, scope: Scope) -> bool:
        if scope["type"] == "lifespan":
            return True
        if scope["type"] == "http" and (scope["path"] in OPEN or _preflight(scope)):
            return True
        shown = _headers(scope, b"authorization")
        # one header, or it is not clear which of them a proxy in front has judged
        if len(shown) != 1:
            return False
        judges = [self._given, self._own] if self._own else [self._given]
        accepted = [judge.accepts(shown[0]) for judge in judges]  # all of them, in an equal time
        return any(accepted)


def _headers(scope: Scope, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header.lower() == name]


def _preflight(scope: Scope) -> bool:
    asks = _headers(scope, b"origin") and _headers(scope, b"access-control-request-method")
    return scope["method"] == "OPTIONS" and bool(asks)


async def _refuse(send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(BODY)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})
