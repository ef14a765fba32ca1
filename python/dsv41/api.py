"""A small client of an OpenAI-compatible endpoint, on http.client: requests, streams, readiness."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dsv41.errors import EngineFailed, Unreachable, UsageError

LOGS = "see what the service says: dsv41 logs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An endpoint at `url` (with or without /v1); `key` goes into the Authorization header."""

    url: str
    key: str | None = None
    timeout: float = 120.0

    def __post_init__(self) -> None:
        """Refuse a URL that is not http(s)."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "D110",
                f"{self.url!r} is not a URL like http://127.0.0.1:8888/v1.",
                fix="give --url with http:// or https://, a host and a port",
            )

    @property
    def root(self) -> str:
        """The URL without its /v1."""
        return self.url.rstrip("/").removesuffix("/v1")

    def status(self, path: str) -> int | None:
        """The HTTP status of a GET below the root; None when nobody answers."""
        try:
            with self._exchange("GET", path, None) as answer:
                answer.read()
                return answer.status
        except Unreachable:
            return None

    def text(self, path: str) -> str:
        """The body of a GET below the root; EngineFailed D111 unless it is a 200."""
        with self._exchange("GET", path, None) as answer:
            return self._ok(answer).decode()

    def models(self) -> list[dict[str, Any]]:
        """The model cards of /v1/models."""
        cards: list[dict[str, Any]] = json.loads(self.text("/v1/models"))["data"]
        return cards

    def chat(self, **body: Any) -> dict[str, Any]:
        """One chat completion; EngineFailed D111 with the server's own words on an error."""
        with self._exchange("POST", "/v1/chat/completions", body) as answer:
            completion: dict[str, Any] = json.loads(self._ok(answer))
            return completion

    def stream(self, **body: Any) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed chat completion, until [DONE]; comment lines are skipped."""
        with self._exchange("POST", "/v1/chat/completions", {**body, "stream": True}) as answer:
            if answer.status != http.client.OK:
                self._ok(answer)
            for line in answer:
                data = line.decode().strip().removeprefix("data: ")
                if data == "[DONE]":
                    return
                if line.startswith(b"data: "):
                    yield _chunk(data)
        raise EngineFailed("D112", "The stream ended without [DONE].", fix=LOGS)

    @contextmanager
    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(self.root)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout)
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, parts.path + path, data, headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                "D113",
                f"{self.root} does not answer: {error or type(error).__name__}.",
                fix="is the service up? dsv41 status",
            ) from error
        finally:
            connection.close()

    def _ok(self, answer: http.client.HTTPResponse) -> bytes:
        body = answer.read()
        if answer.status != http.client.OK:
            says = f"{self.root} answered {answer.status}: {_message(body)}"
            raise EngineFailed("D111", says, fix=LOGS)
        return body


def _chunk(data: str) -> dict[str, Any]:
    chunk: dict[str, Any] = json.loads(data)
    if "error" in chunk:
        says = f"The stream carried an error: {_message(data.encode())}"
        raise EngineFailed("D111", says, fix=LOGS)
    return chunk


def _message(body: bytes) -> str:
    """The sentence in an error body, nested (OpenAI) or flat (SGLang)."""
    try:
        data = json.loads(body)
        return str(data.get("error", data)["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return body[:200].decode(errors="replace") or "an empty body"
