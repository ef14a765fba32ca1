"""What a client of the real SGLang sees with the adapters on: keys, thinking, loops, the cap.

One server for the whole file; only its scheduler is a script (scripted_sglang.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live_sglang
import pytest
from live_sglang import Server

SECRET, OTHER = "sk-first-0123456789", "sk-second-0123456789"
LIMIT = 300
SENTENCE = (
    "All work and no repetition makes jack a dull boy, he said to the long bright river of "
    "evening, where nobody came and nothing was, ever again.\n"
)
PLACEHOLDER = "<\uff5cdeepseek_image\uff5c>"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    keys = folder / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"{SECRET}\n{OTHER}\n")
    asked = {
        "DSV41_API_KEY_FILE": str(keys),
        "DSV41_LOOP_ABORT": "1",
        "DSV41_THINKING_ALIAS": "1",
        "DSV41_IMAGE_TEXT": "1",
        "SGLANG_MAX_NEW_TOKENS_LIMIT": str(LIMIT),
    }
    with live_sglang.started(folder, "--enable-metrics", key=SECRET, **asked) as found:
        yield found


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/metrics"])
def test_probes_need_no_key(server: Server, path: str) -> None:
    assert server.ask("GET", path, key=None)[0] == 200


@pytest.mark.parametrize("key", [SECRET, OTHER])
def test_every_key_of_the_file_opens(server: Server, key: str) -> None:
    status, _, body = server.ask("GET", "/v1/models", key=key)
    assert status == 200
    assert json.loads(body)["data"]


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {SECRET}x",
        f"Bearer {SECRET[:-1]}",
        f"Basic {SECRET}",
        SECRET,
        f"Bearer {SECRET}, Bearer {OTHER}",
        f"Bearer {SECRET}\n{OTHER}".replace("\n", " "),
    ],
)
def test_without_a_key_nothing_is_answered(server: Server, shown: str | None) -> None:
    headers = {} if shown is None else {"Authorization": shown}
    status, sent, body = server.ask("GET", "/v1/models", key=None, headers=headers)
    assert status == 401
    assert sent["www-authenticate"] == "Bearer"
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"


def test_every_route_of_the_app_is_closed(server: Server) -> None:
    """By the app's own list: native, OpenAI, admin and documentation paths, and unknown ones."""
    listed = json.loads(server.ask("GET", "/openapi.json")[2])["paths"]
    routes = [(method.upper(), path) for path in listed for method in listed[path]]
    assert {("POST", "/generate"), ("POST", "/v1/chat/completions"), ("POST", "/flush_cache")} <= {
        *routes
    }
    assert len(routes) > 60
    unknown = [("GET", path) for path in ("/", "/docs", "/nothing", "/health/x", "/metricsx")]
    opened = {"/health", "/health_generate", "/ready", "/metrics"}
    closed = [route for route in routes + unknown if route[1] not in opened]
    answers = {route: server.ask(*route, {}, key=None)[0] for route in closed}
    assert set(answers.values()) == {401}, answers


def test_a_preflight_needs_no_key_and_opens_nothing(server: Server) -> None:
    asks = {"Origin": "http://page", "Access-Control-Request-Method": "POST"}
    status, sent, _ = server.ask("OPTIONS", "/v1/chat/completions", key=None, headers=asks)
    assert status == 200
    assert "access-control-allow-origin" in sent
    assert server.ask("OPTIONS", "/v1/chat/completions", key=None)[0] == 401


def test_a_web_socket_needs_a_key(server: Server) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    status = server.ask("GET", "/v1/realtime", key=None, headers=upgrade)[0]
    assert status in {401, 403}  # 403 where uvicorn has a library for WebSockets


def test_the_keys_are_nowhere_to_be_read(server: Server) -> None:
    """Not in the log with its server arguments, not in argv and environment of any process."""
    log = server.log.read_text()
    assert "server_args=" in log
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    ours = [pid for pid in pids if group_of(pid) == server.process]
    assert len(ours) >= 3  # HTTP, scheduler, detokenizer
    read = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in ours for name in PLACES]
    assert not [text for text in (log.encode(), *read) if SECRET.encode() in text]
    assert not [text for text in (log.encode(), *read) if OTHER.encode() in text]


PLACES = ("cmdline", "environ")


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


@pytest.mark.parametrize(
    ("kwargs", "thinks"),
    [
        ({"thinking": True}, True),
        ({"enable_thinking": True}, True),
        ({"thinking": False}, False),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": "false"}, False),
        ({"thinking": True, "enable_thinking": False}, True),
        ({"thinking": False, "enable_thinking": True}, False),
        ({"thinking": None, "enable_thinking": True}, True),
    ],
    ids=str,
)
def test_both_names_of_thinking(server: Server, kwargs: dict[str, Any], thinks: bool) -> None:
    """The script answers as the prompt opened it; the parser must have been told the same."""
    (choice,) = server.chat("hi", chat_template_kwargs=kwargs)["choices"]
    message = choice["message"]
    expected = ("Some reasoning.", "Thought.") if thinks else (None, "Plain.")
    assert (message["reasoning_content"], message["content"]) == expected
    events = server.stream("hi", chat_template_kwargs=kwargs)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    content = "".join(delta.get("content") or "" for delta in deltas)
    assert (reasoning or None, content) == expected


def test_an_effort_does_not_overrule_the_switch(server: Server) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    (choice,) = server.chat("hi", reasoning_effort="high", **off)["choices"]
    assert choice["message"]["content"] == "Plain."
    (choice,) = server.chat("hi", reasoning_effort="high")["choices"]
    assert choice["message"]["content"] == "Thought."


def test_a_loop_ends_the_answer(server: Server) -> None:
    answer = server.chat(f"LOOP:{SENTENCE}|")
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "repetition")
    text = choice["message"]["content"]
    assert (SENTENCE * 9).startswith(text)
    assert len(SENTENCE) <= len(text)
    assert answer["usage"]["completion_tokens"] < LIMIT


def test_a_loop_ends_a_stream(server: Server) -> None:
    """With a finish reason, the usage of what was sent, and [DONE]."""
    events = server.stream(f"LOOP:{SENTENCE}|")
    choices = [choice for event in events for choice in event["choices"]]
    ends = [(one["finish_reason"], one["matched_stop"]) for one in choices if one["finish_reason"]]
    assert ends == [("stop", "repetition")]
    text = "".join(one["delta"].get("content") or "" for one in choices)
    assert (SENTENCE * 9).startswith(text)
    (usage,) = [event["usage"] for event in events if event.get("usage")]
    assert 100 < usage["completion_tokens"] < LIMIT
    assert len(text) > 2 * len(SENTENCE)  # a stream cannot take back what it has sent


def test_a_loop_of_the_native_path(server: Server) -> None:
    body = {"text": f"LOOP:{SENTENCE}|", "sampling_params": {"max_new_tokens": 290}}
    status, _, answer = server.ask("POST", "/generate", body)
    assert status == 200
    found = json.loads(answer)
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": "repetition"}
    assert found["meta_info"]["completion_tokens"] == len(found["output_ids"])


@pytest.mark.parametrize("asked", [None, 2000, LIMIT - 1])
def test_the_engines_limit_caps_every_path(server: Server, asked: int | None) -> None:
    kept = LIMIT if asked is None else min(asked, LIMIT)
    chat = server.chat("COUNT", **({} if asked is None else {"max_tokens": asked}))
    assert chat["usage"]["completion_tokens"] == kept
    assert chat["choices"][0]["finish_reason"] == "length"
    if asked is None:
        return  # the other two have small defaults of their own
    body = {"model": "x", "prompt": "COUNT", "max_tokens": asked}
    status, _, answer = server.ask("POST", "/v1/completions", body)
    assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, kept)
    body = {"text": "COUNT", "sampling_params": {"max_new_tokens": asked}}
    status, _, answer = server.ask("POST", "/generate", body)
    assert (status, json.loads(answer)["meta_info"]["completion_tokens"]) == (200, kept)


def test_a_placeholder_in_text_is_answered(server: Server) -> None:
    """By our adapter in 0.5.21, by the publisher's package in 0.5.23."""
    (choice,) = server.chat(f"what is {PLACEHOLDER} for?")["choices"]
    assert choice["message"]["content"] == "Plain."
