"""The OpenAI server with rows from files and keys from a file, parsers and graphs on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("GPU test, not run: no vllm", allow_module_level=True)

from gpu.engine_process import COMMON, DSPARK
from gpu.fleet import ENVIRONMENT, Fleet

KEY = "sk-the-key-of-this-test-0123456789"
START_SECONDS = 420
ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
    "logprobs": True,
}


@dataclass(frozen=True, kw_only=True)
class Server:
    url: str
    log: Path

    def ask(self, path: str, body: Any = None, *, key: str | None = None) -> tuple[int, str]:
        """Status and text of a request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers)  # noqa: S310 - our own server
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - as above
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def flags(port: int, model: Path) -> list[str]:
    given = COMMON | DSPARK | {"port": port, "host": "127.0.0.1", "served_model_name": "tiny"}
    given |= {"model": str(model), "reasoning_parser": "deepseek_v41"}
    given |= {"tool_call_parser": "deepseek_v41"}
    found = ["--enable-auto-tool-choice"]
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            found += [] if name == "disable_log_stats" else ["--no-" + flag[2:]]
        else:
            found += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Starting:
    """A server process; `wait` until it answers."""

    def __init__(self, fleet: Fleet, name: str, **environ: str) -> None:
        port = free_port()
        self.server = Server(url=f"http://127.0.0.1:{port}", log=fleet.folder / f"{name}.log")
        env = os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        env |= {"PYTHONPATH": fleet.python_path()} | environ
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        with self.server.log.open("wb") as output:
            self.child = subprocess.Popen(
                [*command, *flags(port, fleet.model)], env=env, stdout=output, stderr=output
            )

    def wait(self) -> Server:
        """Until /health answers."""
        end = time.monotonic() + START_SECONDS
        while not is_up(self.server):
            if self.child.poll() is not None or time.monotonic() > end:
                raise AssertionError(self.server.log.read_text(errors="replace")[-4000:])
            time.sleep(0.5)
        return self.server

    def stop(self) -> None:
        """End it."""
        self.child.terminate()
        self.child.wait(60)


def is_up(server: Server) -> bool:
    try:
        return server.ask("/health")[0] == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def servers(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    """Ours and the stock one, started at the same time."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"{KEY}\n")
    rows = {"DSV41_PACKED_DIR": str(fleet.rows), "DSV41_ENGRAM_PARTITION": "strided"}
    last = str(fleet.devices - 1)
    both = (
        Starting(fleet, "server-rows", DSV41_API_KEY_FILE=str(keys), **rows),
        Starting(fleet, "server-stock", CUDA_VISIBLE_DEVICES=last),
    )
    try:
        yield both[0].wait(), both[1].wait()
    finally:
        for starting in both:
            starting.stop()


@pytest.fixture
def server(servers: tuple[Server, Server]) -> Server:
    return servers[0]


@pytest.fixture
def stock_server(servers: tuple[Server, Server]) -> Server:
    return servers[1]


def test_keys(server: Server) -> None:
    assert server.ask("/health")[0] == 200
    assert server.ask("/metrics")[0] == 200
    for path in ("/v1/models", "/tokenize", "/version", "/nothing"):
        assert server.ask(path)[0] == 401
    for key in ("", "wrong", KEY[:-1]):
        status, text = server.ask("/v1/chat/completions", ASK, key=key)
        assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")
    assert server.ask("/v1/models", key=KEY)[0] == 200
    assert KEY not in server.log.read_text(errors="replace")


def test_chat_is_that_of_the_stock_server(
    server: Server, stock_server: Server, receipts: dict[str, Any]
) -> None:
    status, text = server.ask("/v1/chat/completions", ASK, key=KEY)
    stock_status, stock_text = stock_server.ask("/v1/chat/completions", ASK)
    assert (status, stock_status) == (200, 200), (text, stock_text)
    ours, stock = (json.loads(answer)["choices"][0] for answer in (text, stock_text))
    receipts["server"] = {
        "tokens": len(ours["logprobs"]["content"]),
        "finish": ours["finish_reason"],
    }
    assert ours == stock
    assert len(ours["logprobs"]["content"]) == ASK["max_tokens"]


def test_a_stream(server: Server) -> None:
    status, text = server.ask("/v1/chat/completions", ASK | {"stream": True}, key=KEY)
    assert status == 200
    assert text.rstrip().endswith("data: [DONE]")
    assert text.count("data: ") > 3


def test_a_completion_is_that_of_the_stock_server(server: Server, stock_server: Server) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0, "logprobs": 5}
    body["ignore_eos"] = True
    ours = json.loads(server.ask("/v1/completions", body, key=KEY)[1])["choices"]
    assert ours == json.loads(stock_server.ask("/v1/completions", body)[1])["choices"]
