"""Prompts byte for byte, and the same from the publisher's package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
import pytest

from dsv41.local.http.messages import normalized
from dsv41.local.http.openai import RequestError
from dsv41.local.http.prompt import Prompts
from tokenizing import HELLO, OFF, WEATHER, prompts, spelled, text

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "cases" / "prompts.json").read_text(encoding="utf-8")
)
# Ids of `begin, System, Reasoning Effort: 75 (...)` and of `User Hello Assistant <think>`.
EFFORT_75 = [0, 128799, 77666, 288, 9504, 482, 28, 223, 2402, 343, 16801, 223, 19, 15, 1457, 14]
EFFORT_75 += [270, 4077, 270, 1990, 14, 270, 850, 15146, 270, 22805, 868]
HELLO_THINK = [128803, 19923, 128804, 128821]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_golden(case: dict[str, Any]) -> None:
    prompt = prompts().prepare(case["request"])
    assert prompt.text == case["prompt"]
    assert spelled(prompt.ids) == case["prompt"]


@pytest.mark.parametrize("case", [c for c in CASES if c["recipe"]], ids=lambda case: case["name"])
def test_publisher_agrees(case: dict[str, Any]) -> None:
    """The cases that need nothing of ours, straight from the publisher's package."""
    special = recipe.SpecialTokens(image="<｜deepseek_image｜>")
    options = recipe.ConversionOptions().with_special_tokens(special)
    request = recipe.ChatCompletionRequest({"model": "DeepSeek-V4.1-Flash", **case["request"]})
    encoding = recipe.DeepseekV41Encoding().with_special_tokens(special)
    rendered = encoding.render_conversation(request.convert(options).conversation)
    assert rendered.prompt == case["prompt"]


def test_ids() -> None:
    assert list(prompts().prepare({"messages": HELLO}).ids) == EFFORT_75 + HELLO_THINK
    opened = prompts().prepare({"messages": HELLO, "tools": [WEATHER], "tool_choice": "required"})
    assert opened.ids[-4:] == (30, 128825, 10699, 1018)
    question = prompts().prepare(
        {"messages": [{"role": "user", "content": "What is 19 + 23?"}], **OFF}
    )
    assert question.ids[2:-2] == (3085, 344, 223, 511, 940, 223, 1349, 33)


def test_every_effort_is_one_number_in_the_line() -> None:
    at = EFFORT_75.index(2402)
    for number in range(1, 101):
        ids = list(prompts().prepare({"messages": HELLO, "reasoning_effort": number}).ids)
        assert ids[:at] == EFFORT_75[:at]
        assert ids[at + 1 :] == EFFORT_75[at + 1 :] + HELLO_THINK


def test_text_that_spells_a_special_token_is_not_one() -> None:
    words = "<｜User｜></think><｜deepseek_image｜>｜DSML｜<｜end▁of▁sentence｜>"
    ids = prompts().prepare({"messages": [{"role": "user", "content": words}], **OFF}).ids
    assert [token for token in ids if token >= 128000 or token < 3] == [0, 128803, 128804, 128822]


def test_default_effort() -> None:
    other = Prompts(text(), models=["m"], default_effort=60)
    assert "Effort: 60 (" in other.prepare({"messages": HELLO}).text
    assert "Effort: 50 (" in other.prepare({"messages": HELLO, "reasoning_effort": "low"}).text


def test_default_max_tokens() -> None:
    off = prompts().prepare({"messages": HELLO, **OFF})
    assert off.default_max_tokens(10**6) == 8192
    assert off.default_max_tokens(100) == 100 - len(off.ids)
    assert prompts().prepare({"messages": HELLO}).default_max_tokens(10**6) == 65536
    most = prompts().prepare({"messages": HELLO, "reasoning_effort": "max"})
    assert most.default_max_tokens(10**6) == 131072


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "messages", "list of objects"),
        ({"messages": "x"}, "messages", "list of objects"),
        ({"messages": ["x"]}, "messages", "list of objects"),
        ({"messages": []}, None, "Empty input messages"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, None, "narrator"),
        ({"messages": [{"role": "user"}]}, None, "content"),
        ({"messages": HELLO, "model": "gpt"}, "model", "'gpt' is not served here"),
        ({"messages": HELLO, "reasoning_effort": "hard"}, "reasoning_effort", "'hard'"),
        ({"messages": HELLO, "reasoning_effort": 101}, "reasoning_effort", "101"),
        ({"messages": HELLO, "thinking": {"type": "maybe"}}, "thinking", "enabled"),
        (
            {"messages": HELLO, "thinking": {"type": "enabled", "budget_tokens": 9}},
            "thinking",
            "enabled",
        ),
        (
            {
                "messages": HELLO,
                "tools": [WEATHER],
                "tool_choice": "required",
                "chat_template_kwargs": {"enable_thinking": True},
            },
            "tool_choice",
            "while thinking is on",
        ),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"messages": HELLO, "tools": [WEATHER, WEATHER]}, None, "unique"),
        ({"messages": HELLO, "tools": [{"type": "web_search"}]}, None, "web_search"),
        ({"messages": HELLO, "response_format": {"type": "json_object"}}, None, "'json'"),
        ({"messages": HELLO, "stop": [""]}, None, "stop[0]"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}],
                    }
                ]
            },
            "messages",
            "no images",
        ),
    ],
    ids=str,
)
def test_refusals(body: dict[str, Any], param: str | None, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        prompts().prepare(body)
    error = caught.value.body["error"]
    assert caught.value.status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert says in error["message"]


def test_needs() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    free = prompts().prepare({"messages": HELLO, "tools": [WEATHER]})
    assert free.need is None
    need = prompts().prepare({"messages": HELLO, "response_format": schema}).need
    assert need is not None
    assert (need.kind, json.loads(need.schema), need.after_thinking) == (
        "json",
        {"type": "object"},
        True,
    )
    need = prompts().prepare({"messages": HELLO, "response_format": schema, **OFF}).need
    assert need is not None
    assert not need.after_thinking
    need = (
        prompts().prepare({"messages": HELLO, "tools": [WEATHER], "tool_choice": "required"}).need
    )
    assert need is not None
    assert (need.kind, need.after_thinking) == ("tool_call_required", False)
    assert [tool["function"]["name"] for tool in json.loads(need.schema)] == ["get_weather"]


def test_messages_given_are_not_changed() -> None:
    given = [{"role": "developer", "content": ["x"], "reasoning": "r", "tool_calls": []}]
    before = json.dumps(given)
    assert normalized(given) == [
        {"role": "system", "content": [{"type": "text", "text": "x"}], "reasoning_content": "r"}
    ]
    assert json.dumps(given) == before
