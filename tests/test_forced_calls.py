"""Forced tool calls of a model that says anything: whole, of declared tools, well filled."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsv41.local.http.closing import Position
from dsv41.local.http.constraint import DSML, PATIENCE
from dsv41.local.http.dsml import calls_grammar
from dsv41.local.http.prompt import Need
from tokenizing import grammars, prompts, spelled
from wild_models import Make, answer, every_model, follow, noise

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer"},
        "when": {"type": "string", "format": "date"},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["city", "days", "place"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"inside": {"type": "boolean"}},
            "required": ["inside"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]


def call_need(choice: object) -> Need:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": choice}
    need = prompts().prepare(body).need
    assert need is not None
    return need


@every_model
@pytest.mark.parametrize("choice", ["required", "named"])
def test_forced_call(make: Make, seed: int, choice: str) -> None:
    """The publisher's parser finds whole calls of declared tools with arguments that fit."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    need = call_need(named if choice == "named" else choice)
    formed = grammars().constraint(need, max_tokens=32768)
    tokens = answer(formed, make(seed))
    assert len(tokens) < PATIENCE + 120
    calls = parsed(tokens)
    if choice == "named":
        assert [name for name, _ in calls] == ["get_weather"]
    for name, arguments in calls:
        check_arguments(name, arguments)
    assert DSML in tokens
    assert spelled(tokens).count("｜DSML｜") == tokens.count(DSML)


def parsed(tokens: list[int]) -> list[tuple[str, dict[str, Any]]]:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": TOOLS,
        "tool_choice": "required",
    }
    parser = prompts().parser(prompts().prepare(body), answer="a", model="m", created=1)
    parser.begin()
    parser.push(tokens)
    parser.finish("stop")
    choice = parser.whole()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    return [(f["name"], json.loads(f["arguments"])) for f in functions]


def check_arguments(name: str, arguments: dict[str, Any]) -> None:
    if name == "get_time":
        assert arguments == {}
        return
    assert set(arguments) <= {"city", "unit", "days", "when", "place"}
    assert type(arguments["city"]) is str
    assert type(arguments["days"]) is int
    assert type(arguments["place"]["inside"]) is bool
    assert arguments.get("unit", "C") in ("C", "F")
    assert len(arguments.get("when", "2026-01-01")) == 10


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"type": "array"}, "must have the type object"),
        ({"anyOf": [{}]}, "use 'anyOf'"),
        ({"type": "object", "properties": {'a"b': {}}}, "no tag can hold"),
        ({"type": "object", "required": ["a>b"]}, "no tag can hold"),
        ([], "must be an object schema"),
    ],
)
def test_parameters_that_no_markup_can_say(parameters: Any, match: str) -> None:
    tools = [{"name": "f", "parameters": parameters or [1]}]
    with pytest.raises(ValueError, match=match):
        calls_grammar(tools, several=False)


def test_many_tools() -> None:
    """As many as a coding agent declares: 131 were seen."""
    parameters = {**WEATHER, "properties": {**WEATHER["properties"], "more": {}}}
    tools = [{"function": {"name": f"tool_{n}", "parameters": parameters}} for n in range(131)]
    need = Need(kind="tool_call_required", schema=json.dumps(tools), several=True)
    tokens = answer(grammars().constraint(need, max_tokens=1000), noise(2))
    assert spelled(tokens).startswith('<｜DSML｜ invoke name="tool_')


def test_position() -> None:
    position = Position(markup=False)
    position.feed(b'{"a\\"')
    assert position.closers() == ('"',)
    position.feed(b'": ')
    assert position.closers()[1:3] == ("}", "]")
    markup = Position(markup=True)
    assert markup.closers() == ("</",)
    markup.feed('<｜DSML｜ parameter name="a" string="true">x</'.encode())
    assert markup.closers() == ("｜DSML｜",)
    markup.feed('｜DSML｜ parameter>\n<｜DSML｜ parameter name="b" string="false">"<'.encode())
    assert markup.closers() == ('"',)
    markup.feed(b'"<')
    assert markup.closers() == ("</",)


def test_model_that_knows_the_markup_is_left_alone() -> None:
    call = (
        '<｜DSML｜ invoke name="get_weather">\n'
        '<｜DSML｜ parameter name="city" string="true">a</b>"\n</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="days" string="false">2</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="place" string="false">{"inside": true}</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    )
    follow(grammars().constraint(call_need("required"), max_tokens=300), call)
