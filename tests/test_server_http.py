"""The server below the OpenAI client: errors, keys, open pages, keepalive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import openai
import pytest

from dsv41 import questions
from dsv41.local.http.keys import Keys
from live_server import CHAT, CONTEXT, HELLO, error_of, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dsv41.local.engine.loop import Engine

FEW = {"type": "object", "minProperties": 1}  # no grammar of tool markup can say that


@pytest.fixture(scope="module")
def url(engine_tp1: Engine, checkpoint: Path) -> Iterator[str]:
    with serving(engine_tp1, checkpoint, body_bytes=100_000, keepalive=0.05) as base:
        yield base


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    """One client for all: making one loads the TLS roots, which takes longer than most tests."""
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


def schema(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


REFUSED: list[tuple[dict[str, Any], str | None, str, str]] = [
    ({"n": 2}, "n", "unsupported_parameter", "only 1 is accepted"),
    ({"logprobs": True}, "logprobs", "unsupported_parameter", "only false"),
    ({"top_logprobs": 3}, "top_logprobs", "unsupported_parameter", "top_logprobs"),
    ({"presence_penalty": 0.5}, "presence_penalty", "unsupported_parameter", "penalty"),
    ({"logit_bias": {"1": 2}}, "logit_bias", "unsupported_parameter", "logit_bias"),
    ({"functions": [{}]}, "functions", "unsupported_parameter", "functions"),
    ({"top_k": 5}, "top_k", "unsupported_parameter", "only -1 or 0"),
    ({"frobnicate": 1}, "frobnicate", "unknown_parameter", "frobnicate"),
    (
        {"chat_template_kwargs": {"foo": 1}},
        "chat_template_kwargs.foo",
        "unsupported_parameter",
        "foo",
    ),
    ({"chat_template_kwargs": 1}, "chat_template_kwargs", "invalid_value", "object"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
        "unsupported_parameter",
        "usage",
    ),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value", "stream true"),
    ({"stream": 1}, "stream", "invalid_value", "true or false"),
    ({"temperature": 2.5}, "temperature", "invalid_value", "0 to 2"),
    ({"temperature": "hot"}, "temperature", "invalid_value", "number"),
    ({"top_p": 0}, "top_p", "invalid_value", "above 0"),
    ({"seed": -1}, "seed", "invalid_value", "integer"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value", "1 or more"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens", "invalid_value", "integer"),
    ({"model": "gpt-4"}, "model", "model_not_found", "dsv41-fixture"),
    ({"messages": []}, None, "invalid_value", "Empty"),
    (
        {"messages": [{"role": "user", "content": "word " * 5000}]},
        "messages",
        "context_length_exceeded",
        f"holds {CONTEXT}",
    ),
    ({"reasoning_effort": 0}, "reasoning_effort", "invalid_value", "1 to 100"),
    ({"response_format": schema(deep(100))}, None, "invalid_value", "nesting depth"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value", "no tools"),
    ({"response_format": {"type": "json_object"}}, None, "invalid_value", "json"),
    (
        {"response_format": schema({"type": "string", "pattern": "(?<=a)b"})},
        "response_format",
        "invalid_value",
        "cannot enforce",
    ),
    (
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": FEW}}],
            "tool_choice": "required",
        },
        "tools",
        "invalid_value",
        "'minProperties'",
    ),
]


@pytest.mark.parametrize(
    ("body", "param", "code", "says"), REFUSED, ids=[str(i) for i in range(len(REFUSED))]
)
def test_refused(
    http: httpx.Client, body: dict[str, Any], param: str | None, code: str, says: str
) -> None:
    response = http.post(CHAT, json={"messages": HELLO, **body})
    error = error_of(response)
    assert response.status_code == 400
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert says in error["message"]


def test_fields_that_ask_for_nothing_special(http: httpx.Client) -> None:
    usual = {
        "n": 1,
        "logprobs": False,
        "presence_penalty": 0.0,
        "user": "me",
        "metadata": {"a": "b"},
    }
    usual |= {"top_p": None, "stop": None, "tools": None, "logit_bias": {}, "store": False}
    request = {**questions.ARITHMETIC.request, **usual}
    answer = http.post(CHAT, json=request).json()
    assert answer["choices"][0]["message"]["content"] == "42"
    assert answer["model"] == "dsv41-fixture"


NO_OBJECTS = [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"\\ud800": 1}', b"[" * 9999]


@pytest.mark.parametrize("content", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_body_that_is_no_object(http: httpx.Client, content: bytes) -> None:
    response = http.post(CHAT, content=content)
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_json"


def test_paths_methods_and_sizes(http: httpx.Client) -> None:
    for method, path, status, code in (
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/completions", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ):
        response = http.request(method, path)
        assert response.status_code == status
        assert error_of(response)["code"] == code
    assert http.get(CHAT).headers["allow"] == "POST"
    declared = http.post(CHAT, content=b"x" * 100_001)
    chunked = http.post(CHAT, content=iter([b"x" * 60_000, b"x" * 60_000]))
    for response in (declared, chunked):
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"


def test_keys(engine_tp1: Engine, checkpoint: Path) -> None:
    keys = Keys((b"first-key", b"second-key"))
    with (
        serving(engine_tp1, checkpoint, keys=keys) as base,
        httpx.Client(base_url=base) as http,
    ):
        for path in ("/health", "/ready", "/metrics"):
            assert http.get(path).status_code == 200
        for path in ("/v1/models", "/nothing", "/health/", "/metrics/x"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first-key"}):
                refused = http.get(path, headers=headers)
                assert refused.status_code == 401
                assert error_of(refused)["code"] == "invalid_api_key"
                assert refused.headers["www-authenticate"] == "Bearer"
        for key in ("first-key", "second-key"):
            headers = {"Authorization": f"Bearer {key}"}
            assert http.get("/v1/models", headers=headers).status_code == 200
        with (
            openai.OpenAI(base_url=f"{base}/v1", api_key="no", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="No valid API key"),
        ):
            client.models.list()


def test_open_pages(http: httpx.Client) -> None:
    for path in ("/health", "/ready"):
        response = http.get(path)
        assert response.status_code == 200
        assert response.json() == {"status": "ok", "service": ""}
    page = http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if line[0] != "#")
    for name in ("prompt_tokens_total", "generated_tokens_total", "steps_total"):
        assert float(values[f"dsv41_{name}"]) > 0
    assert float(values["dsv41_memory_available_bytes"]) > 2**20
    assert float(values['dsv41_rank_up{rank="0"}']) == 1
    for layer in (1, 2):
        assert float(values[f'dsv41_rows_read_total{{layer="{layer}"}}']) > 0
    assert values["dsv41_requests_running"] == "0.0"


def test_keepalive_until_the_first_token(http: httpx.Client) -> None:
    """The long prompt takes longer than the 50 ms of silence that this server bears."""
    body = {**questions.LONG_PROMPT.request, "stream": True}
    with http.stream("POST", CHAT, json=body) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in response.iter_lines() if line]
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    assert lines[1] == ": keepalive"
    assert lines[-1] == "data: [DONE]"
