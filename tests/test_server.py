"""The server with the real engine, asked by the OpenAI client over a real socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from dsv41 import questions
from dsv41.guards.loop import LoopConfig
from dsv41.local.http.settings import Guards
from live_server import HELLO, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dsv41.local.engine.loop import Engine
    from dsv41.questions import Question

MODEL = "dsv41-fixture"
NOT_OPENAI = ("chat_template_kwargs", "thinking", "enable_thinking", "reasoning_effort")
# A prompt that the fixture was not fitted to: what it says is noise.
UNFITTED = [{"role": "user", "content": "Describe a dragon in JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "heads": {"type": "integer"}},
    "required": ["name", "heads"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url(engine_tp1: Engine, checkpoint: Path) -> Iterator[str]:
    with serving(engine_tp1, checkpoint) as base:
        yield base


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def ask(client: openai.OpenAI, **body: Any) -> Any:
    """One request; what the client has no name for goes as an extra field."""
    extra = {name: body.pop(name) for name in NOT_OPENAI if name in body}
    return client.chat.completions.create(**{"model": MODEL, **body}, extra_body=extra)


def first(answer: Any) -> Any:
    return answer.choices[0]


@pytest.mark.parametrize("question", questions.FITTED[:7], ids=lambda question: question.name)
def test_fitted_conversations(client: openai.OpenAI, question: Question) -> None:
    answer = ask(client, **question.request)
    choice = first(answer)
    if question.call is not None:
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == question.call
        return
    assert choice.finish_reason == "stop"
    assert choice.message.content == question.content
    assert getattr(choice.message, "reasoning_content", None) == question.reasoning
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.object == "chat.completion"


def test_names_of_the_model(client: openai.OpenAI) -> None:
    cards = client.models.list().data
    assert [card.id for card in cards] == [
        MODEL,
        "DeepSeek-V4.1-Flash",
        "deepseek-ai/DeepSeek-V4.1-Flash",
    ]
    assert {getattr(card, "max_model_len", None) for card in cards} == {4096}
    assert client.models.retrieve("deepseek-ai/DeepSeek-V4.1-Flash").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    alias = ask(client, **{**questions.ARITHMETIC.request, "model": cards[1].id})
    assert (first(alias).message.content, alias.model) == ("42", "DeepSeek-V4.1-Flash")


def test_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    question = questions.GREETING
    whole = ask(client, **question.request)
    chunks = list(
        ask(client, stream=True, stream_options={"include_usage": True}, **question.request)
    )
    *parts, usage = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    pieces = [part.choices[0].delta.content or "" for part in parts]
    assert "".join(pieces) == whole.choices[0].message.content == question.content
    assert sum(bool(piece) for piece in pieces) > 5
    assert [first(part).finish_reason for part in parts[-2:]] == [None, "stop"]
    assert usage.choices == []
    assert usage.usage == whole.usage
    assert {part.usage for part in parts} == {None}
    assert len({chunk.id for chunk in chunks}) == 1


def test_streamed_thinking_and_tool_call(client: openai.OpenAI) -> None:
    deltas = [
        part.choices[0].delta for part in ask(client, stream=True, **questions.THINKING.request)
    ]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == questions.THINKING.reasoning
    assert "".join(delta.content or "" for delta in deltas) == "42"
    parts = list(ask(client, stream=True, **questions.TOOL_CALL.request))
    assert all(part.usage is None for part in parts)
    calls = [call for part in parts for call in part.choices[0].delta.tool_calls or []]
    assert calls[0].function.name == "get_weather"
    assert json.loads("".join(call.function.arguments for call in calls)) == {"city": "Paris"}
    assert parts[-1].choices[0].finish_reason == "tool_calls"


def test_stop_string_across_tokens(client: openai.OpenAI) -> None:
    body = {**questions.GREETING.request, "stop": ["iny mod", "few"]}
    answer = ask(client, **body)
    assert first(answer).message.content == "Hello! I am a t"
    assert first(answer).finish_reason == "stop"
    sent = [part.choices[0].delta.content or "" for part in ask(client, stream=True, **body)]
    assert "".join(sent) == "Hello! I am a t"


def test_loop_is_stopped_and_one_copy_kept(client: openai.OpenAI, url: str) -> None:
    answer = ask(client, **questions.LOOP.request)
    choice = first(answer)
    assert choice.finish_reason == "stop"
    assert choice.matched_stop == "repetition"
    assert choice.message.content == "loop loop"
    assert answer.usage.completion_tokens == 2
    page = client.with_options(base_url=url).get("/metrics", cast_to=str)
    assert 'dsv41_loop_aborts_total{kind="identical"} 1.0' in page


@pytest.mark.parametrize("choice", ["required", "named"])
def test_forced_call_on_any_prompt(client: openai.OpenAI, choice: str) -> None:
    tool = questions.WEATHER_TOOL
    other = {"type": "function", "function": {"name": "get_time"}}
    named = {"type": "function", "function": {"name": "get_weather"}}
    answer = ask(
        client,
        messages=UNFITTED,
        tools=[other, tool],
        tool_choice=named if choice == "named" else choice,
    )
    assert first(answer).finish_reason == "tool_calls"
    calls = [call.function for call in first(answer).message.tool_calls]
    if choice == "named":
        assert [call.name for call in calls] == ["get_weather"]
    for call in calls:
        arguments = json.loads(call.arguments)
        wanted = {"get_weather": {"city"}, "get_time": set()}
        assert set(arguments) == wanted[call.name]
        assert all(isinstance(value, str) for value in arguments.values())


@pytest.mark.parametrize("thinks", [True, False], ids=["thinking", "direct"])
def test_schema_on_any_prompt(client: openai.OpenAI, *, thinks: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "dragon", "schema": SCHEMA}}
    kwargs = {"chat_template_kwargs": {"thinking": thinks}}
    choice = first(ask(client, messages=UNFITTED, response_format=form, **kwargs))
    dragon = json.loads(choice.message.content)
    assert set(dragon) == {"name", "heads"}
    assert type(dragon["heads"]) is int
    assert choice.finish_reason == "stop"


def test_limits(client: openai.OpenAI) -> None:
    question = questions.GREETING.request
    for field in ("max_tokens", "max_completion_tokens"):
        answer = ask(client, **question, **{field: 3})
        assert first(answer).finish_reason == "length"
        assert answer.usage.completion_tokens == 3
    both = ask(client, **question, max_tokens=9, max_completion_tokens=2)
    assert both.usage.completion_tokens == 2
    more_than_the_context = ask(client, **question, max_tokens=10**6)
    assert first(more_than_the_context).finish_reason == "stop"


def test_seed(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        answer = ask(client, messages=HELLO, temperature=2, max_tokens=8, seed=seed)
        return str(first(answer).message.reasoning_content)

    assert text(5) == text(5)
    assert len({text(5), text(6), text(7)}) > 1


def test_guards_come_from_the_settings(engine_tp1: Engine, checkpoint: Path) -> None:
    guards = Guards(max_new_tokens=4, loop=LoopConfig(identical=3), effort=60)
    with (
        serving(engine_tp1, checkpoint, guards=guards) as base,
        openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client,
    ):
        for asked in ({}, {"max_tokens": 50}):
            answer = ask(client, **questions.GREETING.request, **asked)
            assert first(answer).finish_reason == "length"
            assert answer.usage.completion_tokens == 4
        loop = questions.LOOP.request
        assert first(ask(client, **loop)).matched_stop == "repetition"
        last = first(list(ask(client, stream=True, **loop))[-1])
        assert (last.finish_reason, last.matched_stop) == ("stop", "repetition")
        page = client.with_options(base_url=base).get("/metrics", cast_to=str)
    assert "dsv41_completion_cap_total 1.0" in page
