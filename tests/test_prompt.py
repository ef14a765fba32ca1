"""Prompts byte for byte, the same from the publisher's package, and the parts of an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
import pytest
from tokenizers import Tokenizer

from dsv41.geometry import released_tokenizer
from dsv41.local.messages import normalized
from dsv41.local.openai import RequestError
from dsv41.local.prompt import Prompt, Prompts
from dsv41.local.tokenizer_files import packed_tokenizer

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "cases" / "prompts.json").read_text(encoding="utf-8")
)
HELLO = [{"role": "user", "content": "Hello"}]
OFF = {"thinking": {"type": "disabled"}}
# Ids of `begin, System, Reasoning Effort: 75 (...)` and of `User Hello Assistant <think>`.
EFFORT_75 = [0, 128799, 77666, 288, 9504, 482, 28, 223, 2402, 343, 16801, 223, 19, 15, 1457, 14]
EFFORT_75 += [270, 4077, 270, 1990, 14, 270, 850, 15146, 270, 22805, 868]
HELLO_THINK = [128803, 19923, 128804, 128821]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
CALL = (
    '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Paris'
    '</｜DSML｜ parameter>\n<｜DSML｜ parameter name="days" string="false">2</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


@pytest.fixture(scope="module")
def tokenizer_text() -> str:
    return released_tokenizer(packed_tokenizer().read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def prompts(tokenizer_text: str) -> Prompts:
    return Prompts(tokenizer_text, models=["m", "other"])


@pytest.fixture(scope="module")
def tokenizer(tokenizer_text: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_text)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_golden(prompts: Prompts, tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    prompt = prompts.prepare(case["request"])
    assert prompt.text == case["prompt"]
    assert tokenizer.decode(list(prompt.ids), skip_special_tokens=False) == case["prompt"]


@pytest.mark.parametrize("case", [c for c in CASES if c["recipe"]], ids=lambda case: case["name"])
def test_publisher_agrees(case: dict[str, Any]) -> None:
    """The cases that need nothing of ours, straight from the publisher's package."""
    special = recipe.SpecialTokens(image="<｜deepseek_image｜>")
    options = recipe.ConversionOptions().with_special_tokens(special)
    request = recipe.ChatCompletionRequest({"model": "DeepSeek-V4.1-Flash", **case["request"]})
    encoding = recipe.DeepseekV41Encoding().with_special_tokens(special)
    rendered = encoding.render_conversation(request.convert(options).conversation)
    assert rendered.prompt == case["prompt"]


def test_ids(prompts: Prompts) -> None:
    assert list(prompts.prepare({"messages": HELLO}).ids) == EFFORT_75 + HELLO_THINK
    opened = prompts.prepare({"messages": HELLO, "tools": [WEATHER], "tool_choice": "required"})
    assert opened.ids[-4:] == (30, 128825, 10699, 1018)
    question = prompts.prepare(
        {"messages": [{"role": "user", "content": "What is 19 + 23?"}], **OFF}
    )
    assert question.ids[2:-2] == (3085, 344, 223, 511, 940, 223, 1349, 33)


def test_every_effort_is_one_number_in_the_line(prompts: Prompts) -> None:
    at = EFFORT_75.index(2402)
    for number in range(1, 101):
        ids = list(prompts.prepare({"messages": HELLO, "reasoning_effort": number}).ids)
        assert ids[:at] == EFFORT_75[:at]
        assert ids[at + 1 :] == EFFORT_75[at + 1 :] + HELLO_THINK


def test_text_that_spells_a_special_token_is_not_one(prompts: Prompts) -> None:
    text = "<｜User｜></think><｜deepseek_image｜>｜DSML｜<｜end▁of▁sentence｜>"
    ids = prompts.prepare({"messages": [{"role": "user", "content": text}], **OFF}).ids
    assert [token for token in ids if token >= 128000 or token < 3] == [0, 128803, 128804, 128822]


def test_default_effort(tokenizer_text: str) -> None:
    prompts = Prompts(tokenizer_text, models=["m"], default_effort=60)
    assert "Effort: 60 (" in prompts.prepare({"messages": HELLO}).text
    assert "Effort: 50 (" in prompts.prepare({"messages": HELLO, "reasoning_effort": "low"}).text


def test_default_max_tokens(prompts: Prompts) -> None:
    off = prompts.prepare({"messages": HELLO, **OFF})
    assert off.default_max_tokens(10**6) == 8192
    assert off.default_max_tokens(100) == 100 - len(off.ids)
    assert prompts.prepare({"messages": HELLO}).default_max_tokens(10**6) == 65536
    most = prompts.prepare({"messages": HELLO, "reasoning_effort": "max"})
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
def test_refusals(prompts: Prompts, body: dict[str, Any], param: str | None, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        prompts.prepare(body)
    error = caught.value.body["error"]
    assert caught.value.status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert says in error["message"]


def test_needs(prompts: Prompts) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    free = prompts.prepare({"messages": HELLO, "tools": [WEATHER]})
    assert free.need is None
    need = prompts.prepare({"messages": HELLO, "response_format": schema}).need
    assert need is not None
    assert (need.kind, json.loads(need.schema), need.after_thinking) == (
        "json",
        {"type": "object"},
        True,
    )
    need = prompts.prepare({"messages": HELLO, "response_format": schema, **OFF}).need
    assert need is not None
    assert not need.after_thinking
    need = prompts.prepare({"messages": HELLO, "tools": [WEATHER], "tool_choice": "required"}).need
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


class Answer:
    """An answer fed to a parser in pieces of `width` ids."""

    def __init__(self, prompts: Prompts, prompt: Prompt, ids: list[int], width: int = 1) -> None:
        self.parser = prompts.parser(prompt, answer="chatcmpl-1", model="m", created=7)
        self.chunks = self.parser.begin()
        self.used = 0
        for at in range(0, len(ids), width):
            self.chunks += self.parser.push(ids[at : at + width])
            self.used = at + width
            if self.parser.finished:
                break

    def end(self, reason: str = "stop") -> dict[str, Any]:
        self.chunks += self.parser.finish(reason)
        choice: dict[str, Any] = self.parser.whole()["choices"][0]
        return choice

    def deltas(self, field: str) -> list[str]:
        found = [chunk["choices"][0]["delta"].get(field) for chunk in self.chunks]
        return [text for text in found if text]


def asked(prompts: Prompts, **body: Any) -> Prompt:
    return prompts.prepare({"messages": HELLO, **OFF, **body})


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("width", [1, 2, 3, 100])
def test_text_never_splits_a_character(prompts: Prompts, tokenizer: Tokenizer, width: int) -> None:
    text = "Grüße 漢字 😀👩‍🚀 ∑ ﷽ end"
    answer = Answer(prompts, asked(prompts), ids_of(tokenizer, text), width)
    assert answer.end()["message"]["content"] == text
    assert "".join(answer.deltas("content")) == text
    assert all("\ufffd" not in piece for piece in answer.deltas("content"))


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("text", "stop", "content"),
    [
        ("abc def ghi STOPPING now", ["STOPP"], "abc def ghi "),
        ("abc def", ["c d"], "ab"),
        ("one\n\ntwo", ["\n\n"], "one"),
        ("x 漢字 y", "字", "x 漢"),
        ("abc ST", ["STOPP"], "abc ST"),
        ("aab", ["ab"], "a"),
        ("aaab", ["aab"], "a"),
    ],
)
def test_stop_strings(
    prompts: Prompts,
    tokenizer: Tokenizer,
    width: int,
    text: str,
    stop: str | list[str],
    content: str,
) -> None:
    """Found across token borders, and no part of one is ever sent."""
    answer = Answer(prompts, asked(prompts, stop=stop), ids_of(tokenizer, text), width)
    choice = answer.end()
    assert choice["message"]["content"] == content
    assert choice["finish_reason"] == "stop"
    sent = "".join(answer.deltas("content"))
    assert sent == content


def test_stop_string_ends_the_answer_at_once(prompts: Prompts, tokenizer: Tokenizer) -> None:
    answer = Answer(prompts, asked(prompts, stop="b"), ids_of(tokenizer, "a b c d e f g"))
    assert answer.parser.finished
    assert answer.used == 2
    assert answer.parser.finish("stop") == []


def test_reasoning_and_answer(prompts: Prompts, tokenizer: Tokenizer) -> None:
    prompt = prompts.prepare({"messages": HELLO, "stop": "plus"})
    ids = ids_of(tokenizer, "19 plus 23 is 42.</think>42")
    answer = Answer(prompts, prompt, ids)
    message = answer.end()["message"]
    assert (message["reasoning_content"], message["content"]) == ("19 plus 23 is 42.", "42")
    usage = answer.chunks[-1]["usage"]
    assert usage["completion_tokens"] == len(ids)
    assert usage["prompt_tokens"] == len(prompt.ids)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(ids) - 2


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tool_call(prompts: Prompts, tokenizer: Tokenizer, choice: str) -> None:
    text = CALL if choice == "required" else "\n\n<｜DSML｜ calls>\n" + CALL + "dropped"
    prompt = asked(prompts, tools=[WEATHER], tool_choice=choice)
    whole = Answer(prompts, prompt, ids_of(tokenizer, text)).end()
    assert whole["finish_reason"] == "tool_calls"
    assert not whole["message"]["content"]
    (call,) = whole["message"]["tool_calls"]
    assert call["id"].startswith("call_00_")
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "days": 2}


def test_one_call_only(prompts: Prompts, tokenizer: Tokenizer) -> None:
    """Without parallel calls the second one is not given out, and the answer is complete."""
    text = "\n\n<｜DSML｜ calls>\n" + CALL.replace("</｜DSML｜ calls>", "") + CALL
    both = Answer(prompts, asked(prompts, tools=[WEATHER]), ids_of(tokenizer, text))
    assert len(both.end()["message"]["tool_calls"]) == 2
    body = {"tools": [WEATHER], "parallel_tool_calls": False}
    one = Answer(prompts, asked(prompts, **body), ids_of(tokenizer, text))
    assert one.parser.finished
    choice = one.end()
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "days": 2}


def test_truncated_tool_call(prompts: Prompts, tokenizer: Tokenizer) -> None:
    prompt = asked(prompts, tools=[WEATHER], tool_choice="required")
    whole = Answer(prompts, prompt, ids_of(tokenizer, CALL.split("ris</", maxsplit=1)[0])).end(
        "length"
    )
    assert whole["finish_reason"] == "length"
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Pa'


def test_markup_without_tools_is_text(prompts: Prompts, tokenizer: Tokenizer) -> None:
    text = "<｜DSML｜ calls>\n" + CALL
    whole = Answer(prompts, asked(prompts), ids_of(tokenizer, text)).end()
    assert whole["message"]["content"] == text
    assert whole["finish_reason"] == "stop"
