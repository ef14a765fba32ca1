"""The OpenAI-compatible server in front of the engine: routes, keys, errors.

Every error is the nested object that OpenAI's clients read, also for a wrong path or method.
/health, /ready and /metrics are open to everybody, all else needs a key where keys are set.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dsv41.local.http.chat import Chat
from dsv41.local.http.metrics import Metrics
from dsv41.local.http.openai import RequestError, envelope
from dsv41.local.http.settings import Guards, Settings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from dsv41.local.engine.loop import Engine
    from dsv41.local.http.keys import Keys

__all__ = ["Settings", "create_app"]

OPEN = frozenset({"/health", "/ready", "/metrics"})
RETRY_SECONDS = "5"


def create_app(engine: Engine, settings: Settings) -> Starlette:
    """Make the application for a started engine; loads the tokenizer, about a second.

    Raises UsageError D074 when a switch in the environment has a value that must not be guessed at.
    """
    guards = settings.guards or Guards.from_environ(os.environ)
    metrics = Metrics(engine, settings)
    pages = _Pages(engine, settings, metrics)
    chat = Chat(engine, settings, guards, metrics)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat.complete, methods=["POST"]),
            Route("/v1/models", pages.models, methods=["GET"]),
            Route("/v1/models/{name:path}", pages.model, methods=["GET"]),
            Route("/health", pages.health, methods=["GET"]),
            Route("/ready", pages.health, methods=["GET"]),
            Route("/metrics", pages.metrics, methods=["GET"]),
        ],
        middleware=[Middleware(_Gate, keys=settings.keys)] if settings.keys else [],
        exception_handlers={
            RequestError: _refused,
            HTTPException: _http_error,
            Exception: _unexpected,
        },
    )


class _Gate:
    """Lets only requests with a key pass, but for the open paths."""

    def __init__(self, app: ASGIApp, *, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app if self._passes(scope) else _no_key()
        await app(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["path"] in OPEN:
            return True
        return self._keys.accepts(dict(scope["headers"]).get(b"authorization"))


class _Pages:
    """The answers that need no generation."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._started = int(time.time())

    async def health(self, _: Request) -> Response:
        """200 while all ranks are there, else 503 with what failed."""
        if self._engine.alive:
            return JSONResponse({"status": "ok", "service": self._settings.service})
        says = self._engine.failure or "the engine is not running"
        return JSONResponse(envelope(says, kind="server_error", code="engine_failed"), 503)

    async def models(self, _: Request) -> Response:
        """Give the names that requests may use."""
        cards = [self._card(name) for name in self._settings.names]
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, request: Request) -> Response:
        """Give one of them."""
        name = request.path_params["name"]
        if name not in self._settings.names:
            raise RequestError(
                f"The model {name!r} is not served here.", status=404, code="model_not_found"
            )
        return JSONResponse(self._card(name))

    async def metrics(self, _: Request) -> Response:
        """Give the metrics for Prometheus."""
        return Response(
            self._metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    def _card(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "dsv41",
            "root": self._settings.model,
            "max_model_len": self._settings.context,
        }


def _no_key() -> Response:
    body = envelope(
        "No valid API key: send Authorization: Bearer with one of the keys of this server.",
        kind="invalid_request_error",
        code="invalid_api_key",
    )
    return JSONResponse(body, 401, headers={"WWW-Authenticate": "Bearer"})


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestError):
        raise error
    headers = {"Retry-After": RETRY_SECONDS} if error.status in (429, 503) else None
    return JSONResponse(error.body, error.status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    says = f"{request.method} {request.url.path} is not served here"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    body = envelope(f"{says}: {error.detail}.", kind="invalid_request_error", code=code)
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _unexpected(_: Request, error: Exception) -> Response:
    says = f"An unexpected error, {type(error).__name__}; the server's log has the details."
    return JSONResponse(envelope(says, kind="server_error", code="internal_error"), 500)
