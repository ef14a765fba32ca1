"""A small OCI registry on a real socket: token, redirect to another host, bodies that break off."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "a-token"  # noqa: S105 - of this test registry


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(kw_only=True)
class Content:
    """What the registry has and how it behaves."""

    objects: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    # answers to spoil: how many bodies break off half-way, how many answers are 503
    cuts: int = 0
    busy: int = 0
    login: bool = True
    token: bytes = json.dumps({"token": TOKEN}).encode()
    # what answers for manifests say of them beside their bytes
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    asked: list[str] = field(default_factory=list)

    def add(self, data: bytes) -> str:
        self.objects[digest_of(data)] = data
        return digest_of(data)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.content.asked.append(f"{self.headers.get('Range', '')} {self.path}".strip())
        if self.path.startswith("/token?"):
            self.answer(self.server.content.token)
        elif self.path.startswith("/cdn/"):
            self.cdn(self.server.content.objects[self.path.removeprefix("/cdn/")])
        elif self.server.content.login and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.login()
        else:
            self.give(*self.path.split("/")[-2:])

    def login(self) -> None:
        here = f"http://{self.headers['Host']}"
        self.send_response(401)
        self.send_header(
            "WWW-Authenticate",
            f'Bearer realm="{here}/token",service="test",scope="repository:r:pull"',
        )
        self.end_headers()

    def give(self, kind: str, name: str) -> None:
        if self.server.content.busy:
            self.server.content.busy -= 1
            return self.send_error(503)
        data = self.server.content.objects.get(self.server.content.tags.get(name, name))
        if data is None:
            return self.send_error(404)
        if kind == "manifests":
            return self.answer(data, headers=self.server.content.headers)
        # another host by name, as CDNs are
        port = self.headers["Host"].rpartition(":")[2]
        self.send_response(307)
        self.send_header("Location", f"http://localhost:{port}/cdn/{digest_of(data)}")
        self.end_headers()
        return None

    def cdn(self, data: bytes) -> None:
        if "Authorization" in self.headers:
            return self.send_error(400, "a token of another host")
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if start and self.server.content.ranges:
            return self.answer(data[start:], status=206)
        return self.answer(data)

    def answer(
        self, data: bytes, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.server.content.cuts:
            self.server.content.cuts -= 1
            data = data[: len(data) // 2]
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self, content: Content) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content


@contextlib.contextmanager
def serving(content: Content) -> Iterator[str]:
    """Serve; gives the reference of the repository."""
    server = Server(content)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/group/r"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def synthetic(folder: Path, content: Content) -> dict[str, str]:
    """Put the synthetic base of tests/nix/bases into the registry; its pin."""
    for file in folder.glob("*.json"):
        if file.name != "bases.json":
            content.add(file.read_bytes())
    for blob in (folder / "blobs").iterdir():
        content.add(blob.read_bytes())
    pin: dict[str, str] = json.loads((folder / "bases.json").read_text())["sglang-dev-dsv41"]
    return pin
