"""SGLang's server from scripted_sglang.py in a process of its own, and a client of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scripted_sglang

PATIENCE = 540  # three processes import SGLang, which takes minutes on a busy machine


@dataclass(frozen=True, kw_only=True)
class Server:
    port: int
    process: int  # the id of the first process, and of the group of all
    log: Path
    key: str

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = "",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, and the whole body; the server's key unless another."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        sent = {"Content-Type": "application/json", **(headers or {})}
        if key is not None:
            sent["Authorization"] = f"Bearer {key or self.key}"
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = connection.getresponse()
        found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def chat(self, text: str, **fields: object) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        body = {"model": "x", "messages": messages, **fields}
        status, _, answer = self.ask("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        found: dict[str, Any] = json.loads(answer)
        return found

    def stream(self, text: str, **fields: object) -> list[dict[str, Any]]:
        """Every event of a stream, which must end as streams end."""
        messages = [{"role": "user", "content": text}]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": "x", "messages": messages, **options, **fields}
        status, _, answer = self.ask("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        *events, end, rest = answer.decode().split("\n\n")
        assert (end, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def started(folder: Path, *flags: str, key: str, **environ: str) -> Iterator[Server]:
    """A server whose files lie in `folder`, until the block ends."""
    model = scripted_sglang.write_model(folder / "model")
    port = free_port()
    here = Path(__file__).parent
    paths = [os.environ.get("PYTHONPATH", ""), str(here), str(here.parent)]
    env = {**os.environ, **environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    argv = [sys.executable, scripted_sglang.__file__, str(model), str(port), *flags]
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, start_new_session=True)
    found = Server(port=port, process=process.pid, log=log, key=key)
    try:
        wait(found, process)
        yield found
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait(server: Server, started: subprocess.Popen[bytes]) -> None:
    """Until SGLang says that it has answered its own first requests."""
    end = time.monotonic() + PATIENCE
    while "The server is fired up" not in server.log.read_text():
        assert started.poll() is None, server.log.read_text()[-3000:]
        assert time.monotonic() < end, server.log.read_text()[-3000:]
        time.sleep(1)
