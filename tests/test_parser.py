"""The parts of an answer: text, reasoning, tool calls, stop strings, from pieces of any size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsv41.local.http.prompt import Prompt
from tokenizing import HELLO, OFF, WEATHER, ids_of, prompts

CALL = (
    '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Paris'
    '</｜DSML｜ parameter>\n<｜DSML｜ parameter name="days" string="false">2</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


class Answer:
    """An answer fed to a parser in pieces of `width` ids."""

    def __init__(self, prompt: Prompt, ids: list[int], width: int = 1) -> None:
        self.parser = prompts().parser(prompt, answer="chatcmpl-1", model="m", created=7)
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


def asked(**body: Any) -> Prompt:
    return prompts().prepare({"messages": HELLO, **OFF, **body})


@pytest.mark.parametrize("width", [1, 2, 3, 100])
def test_text_never_splits_a_character(width: int) -> None:
    text = "Grüße 漢字 😀👩‍🚀 ∑ ﷽ end"
    answer = Answer(asked(), ids_of(text), width)
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
    width: int,
    text: str,
    stop: str | list[str],
    content: str,
) -> None:
    """Found across token borders, and no part of one is ever sent."""
    answer = Answer(asked(stop=stop), ids_of(text), width)
    choice = answer.end()
    assert choice["message"]["content"] == content
    assert choice["finish_reason"] == "stop"
    sent = "".join(answer.deltas("content"))
    assert sent == content


def test_stop_string_ends_the_answer_at_once() -> None:
    answer = Answer(asked(stop="b"), ids_of("a b c d e f g"))
    assert answer.parser.finished
    assert answer.used == 2
    assert answer.parser.finish("stop") == []


def test_reasoning_and_answer() -> None:
    prompt = prompts().prepare({"messages": HELLO, "stop": "plus"})
    ids = ids_of("19 plus 23 is 42.</think>42")
    answer = Answer(prompt, ids)
    message = answer.end()["message"]
    assert (message["reasoning_content"], message["content"]) == ("19 plus 23 is 42.", "42")
    usage = answer.chunks[-1]["usage"]
    assert usage["completion_tokens"] == len(ids)
    assert usage["prompt_tokens"] == len(prompt.ids)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(ids) - 2


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tool_call(choice: str) -> None:
    text = CALL if choice == "required" else "\n\n<｜DSML｜ calls>\n" + CALL + "dropped"
    prompt = asked(tools=[WEATHER], tool_choice=choice)
    whole = Answer(prompt, ids_of(text)).end()
    assert whole["finish_reason"] == "tool_calls"
    assert not whole["message"]["content"]
    (call,) = whole["message"]["tool_calls"]
    assert call["id"].startswith("call_00_")
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "days": 2}


def test_one_call_only() -> None:
    """Without parallel calls the second one is not given out, and the answer is complete."""
    text = "\n\n<｜DSML｜ calls>\n" + CALL.replace("</｜DSML｜ calls>", "") + CALL
    both = Answer(asked(tools=[WEATHER]), ids_of(text))
    assert len(both.end()["message"]["tool_calls"]) == 2
    body = {"tools": [WEATHER], "parallel_tool_calls": False}
    one = Answer(asked(**body), ids_of(text))
    assert one.parser.finished
    choice = one.end()
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "days": 2}


def test_truncated_tool_call() -> None:
    prompt = asked(tools=[WEATHER], tool_choice="required")
    whole = Answer(prompt, ids_of(CALL.split("ris</", maxsplit=1)[0])).end("length")
    assert whole["finish_reason"] == "length"
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Pa'


def test_markup_without_tools_is_text() -> None:
    text = "<｜DSML｜ calls>\n" + CALL
    whole = Answer(asked(), ids_of(text)).end()
    assert whole["message"]["content"] == text
    assert whole["finish_reason"] == "stop"
