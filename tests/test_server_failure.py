"""Clients that leave, an engine that dies, a queue that is full."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import TYPE_CHECKING

import httpx2 as httpx
import openai
import pytest

from dsv41.local.engine.loop import Engine
from live_server import CHAT, ENDLESS, error_of, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def url(engine_tp1: Engine, checkpoint: Path) -> Iterator[str]:
    with serving(engine_tp1, checkpoint) as base:
        yield base


@pytest.fixture
def engine(engine_tp1: Engine) -> Iterator[Engine]:
    """An engine that may fail, on the ranks of the shared one, which idles meanwhile."""
    engine = Engine(engine_tp1._runner, queue=0)
    engine.start()
    yield engine
    engine.fail("the test is over")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_client_that_leaves_frees_its_slot(engine_tp1: Engine, url: str, *, stream: bool) -> None:
    before = engine_tp1.stats()["generated_tokens_total"]
    body = json.dumps({**ENDLESS, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        until(lambda: engine_tp1.stats()["generated_tokens_total"] > before + 3, "it runs")
        assert engine_tp1.stats()["running"] == 1
    until(lambda: engine_tp1.stats()["running"] == 0, "the slot is free", seconds=3)


def test_engine_that_dies(engine: Engine, checkpoint: Path) -> None:
    """Running requests end with an error, both kinds, within a second; then nothing is taken."""
    with (
        serving(engine, checkpoint) as base,
        openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client,
        httpx.Client(base_url=base, timeout=20) as http,
    ):
        whole: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: whole.append(http.post(CHAT, json=ENDLESS)))
        waiting.start()
        stream = client.chat.completions.create(**ENDLESS, stream=True)
        for _, _part in zip(range(4), stream, strict=False):
            pass
        until(lambda: engine.stats()["running"] == 2, "both run")
        died = time.monotonic()
        engine.fail("rank 1 does not answer.")
        with pytest.raises(openai.APIError, match="rank 1 does not answer"):
            list(stream)
        waiting.join(5)
        assert time.monotonic() - died < 2
        assert whole[0].status_code == 503
        assert "rank 1 does not answer" in error_of(whole[0])["message"]
        for response in (
            http.get("/health"),
            http.get("/ready"),
            http.post(CHAT, json=ENDLESS),
        ):
            assert response.status_code == 503
            error = error_of(response)
            assert (error["type"], error["code"]) == ("server_error", "engine_failed")
        assert 'dsv41_rank_up{rank="0"} 0.0' in http.get("/metrics").text


def test_full_queue(engine: Engine, checkpoint: Path) -> None:
    slots = engine.stats()["slots"]
    with serving(engine, checkpoint) as base, httpx.Client(base_url=base, timeout=20) as http:
        streams = [
            http.stream("POST", CHAT, json={**ENDLESS, "stream": True}) for _ in range(slots)
        ]
        for stream in streams:
            stream.__enter__()
        until(lambda: engine.stats()["running"] == slots, "all slots are taken")
        refused = http.post(CHAT, json=ENDLESS)
        for stream in streams:
            stream.__exit__(None, None, None)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "5"
        assert error_of(refused)["code"] == "queue_full"
        until(lambda: engine.stats()["running"] == 0, "the slots are free", seconds=5)
