"""A stand-in for the model hub: its HTTP protocol over one folder, as its own client speaks it.

The tree and the revision of a model (/api/models/...), and /resolve/ with HEAD, ETag, Range and a
redirect for large files. The hub itself cannot be reached where the tests run.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dsv41.weights.published import REPOSITORY

REVISION = "fb2764a5cf321eaa5070ca8f9e892818f477c16d"  # profile tp3's
LARGE = ".safetensors"


@dataclass
class Hub:
    """A running hub. Large bodies break off after `cut` bytes, once each."""

    folder: Path
    url: str = ""
    token: str | None = None
    cut: int | None = None
    page: int = 1000
    silent: bool = False  # large bodies give their first half, then nothing
    sent: Counter[str] = field(default_factory=Counter)
    asked: list[str] = field(default_factory=list)
    cuts: Counter[str] = field(default_factory=Counter)

    def entries(self) -> list[dict[str, Any]]:
        return [self.entry(path) for path in sorted(self.folder.rglob("*")) if path.is_file()]

    def entry(self, path: Path) -> dict[str, Any]:
        name, data = path.relative_to(self.folder).as_posix(), path.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        found: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": blob}
        if name.endswith(LARGE):
            digest = hashlib.sha256(data).hexdigest()
            found["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.hub.asked.append(f"{self.command} {self.path}")
        given = self.headers.get("Authorization")
        if self.hub.token and given != f"Bearer {self.hub.token}" and "/cdn/" not in path:
            return self._json({"error": "Access is restricted"}, status=401)
        if path == f"/api/models/{REPOSITORY}/tree/{REVISION}":
            return self._tree(parts.query)
        if path == f"/api/models/{REPOSITORY}/revision/{REVISION}":
            names = [{"rfilename": entry["path"]} for entry in self.hub.entries()]
            return self._json({"id": REPOSITORY, "sha": REVISION, "siblings": names})
        prefix = f"/{REPOSITORY}/resolve/{REVISION}/"
        if path.startswith(prefix):
            return self._file(path.removeprefix(prefix), body=body, redirect=True)
        if path.startswith("/cdn/"):
            return self._file(path.removeprefix("/cdn/"), body=body, redirect=False)
        return self._json({"error": "not found"}, status=404)

    def _tree(self, query: str) -> None:
        found = re.search(r"cursor=(\d+)", query)
        at = int(found[1]) if found else 0
        entries = self.hub.entries()
        link = ""
        if at + self.hub.page < len(entries):
            link = f"<{self.hub.url}{self.path.split('?')[0]}?recursive=true&cursor="
            link += f'{at + self.hub.page}>; rel="next"'
        self._json(entries[at : at + self.hub.page], link=link)

    def _json(self, data: object, *, status: int = 200, link: str = "") -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if link:
            self.send_header("Link", link)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _file(self, name: str, *, body: bool, redirect: bool) -> None:
        path = self.hub.folder / name
        if not path.is_file():
            return self._json({"error": "no such entry"}, status=404)
        entry, large = self.hub.entry(path), name.endswith(LARGE)
        etag = entry["lfs"]["oid"] if large else entry["oid"]
        if large and redirect:
            self.send_response(302)
            self.send_header("Location", f"{self.hub.url}/cdn/{name}")
            self.send_header("X-Linked-Etag", f'"{etag}"')
            self.send_header("X-Linked-Size", str(entry["size"]))
            self.send_header("X-Repo-Commit", REVISION)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        data = path.read_bytes()
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        first = int(span[1]) if span else 0
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - first))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if body:
            self._body(name, data[first:], large=large)
        return None

    def _body(self, name: str, data: bytes, *, large: bool) -> None:
        cut = self.hub.cut if large and not self.hub.cuts[name] else None
        if self.hub.silent and large:
            cut = len(data) // 2
        self.wfile.write(data[:cut])
        self.wfile.flush()
        self.hub.sent[name] += len(data[:cut])
        if cut is not None:
            self.hub.cuts[name] += 1
            if self.hub.silent:
                threading.Event().wait(20)
            self.close_connection = True


@contextmanager
def serving(folder: Path, **how: Any) -> Iterator[Hub]:
    """A hub over a folder, while the block runs."""
    hub = Hub(folder=folder, **how)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def checkpoint(folder: Path) -> Path:
    """A small checkpoint: an index, a config, an encoder, two shards of a few MiB."""
    (folder / "encoding").mkdir(parents=True)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "config.json").write_text('{"architectures": ["DeepseekV41ForCausalLM"]}\n')
    (folder / "encoding" / "encoding.py").write_text("EFFORT = 75\n")
    index = {"weight_map": {f"layers.{n}.w": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for place, name in enumerate(names):
        (folder / name).write_bytes(bytes(range(place, 251)) * (12 << 10))
    return folder
