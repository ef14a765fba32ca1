"""Formed answers of a model that says anything: each ends, is whole, and is what was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dsv41.geometry import released_tokenizer
from dsv41.local.closing import Position
from dsv41.local.constraint import DSML, EOS, PATIENCE, THINK_END, VOCAB, Formed, Grammars
from dsv41.local.dsml import calls_grammar
from dsv41.local.prompt import Need, Prompts
from dsv41.local.tokenizer_files import packed_tokenizer

Ids = npt.NDArray[np.intp]
Choice = Callable[[Ids], int]

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
NODE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.fixture(scope="module")
def text() -> str:
    return released_tokenizer(packed_tokenizer().read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def grammars(text: str) -> Grammars:
    return Grammars(text)


@pytest.fixture(scope="module")
def prompts(text: str) -> Prompts:
    return Prompts(text, models=["m"])


def noise(seed: int) -> Choice:
    """A model without preferences: any allowed token."""
    rng = np.random.default_rng(seed)
    return lambda ids: int(ids[rng.integers(len(ids))])


def stubborn(seed: int) -> Choice:
    """A model that always prefers the same tokens, as a random body does."""
    rank = np.random.default_rng(seed).permutation(VOCAB)
    return lambda ids: int(ids[np.argmax(rank[ids])])


def never_ending(_: int) -> Choice:
    """A model that goes on with letters and digits wherever it may."""
    rank = np.arange(VOCAB) + 10
    rank[[19, 27, 67, 68, 1457]] = range(5)  # 1 9 a b 100
    return lambda ids: int(ids[np.argmin(rank[ids])])


Make = Callable[[int], Choice]
MODELS: list[tuple[Make, int]] = [
    (noise, 0),
    (noise, 1),
    (stubborn, 0),
    (stubborn, 1),
    (stubborn, 3),
]
MODELS.append((never_ending, 0))
every_model = pytest.mark.parametrize(
    ("make", "seed"), MODELS, ids=[f"{make.__name__}{seed}" for make, seed in MODELS]
)


def allowed(formed: Formed) -> Ids:
    return np.nonzero(np.unpackbits(formed.mask().view(np.uint8), bitorder="little"))[0]


def answer(formed: Formed, choose: Choice, limit: int = 400) -> list[int]:
    """All tokens up to the end; fails when there is none."""
    out: list[int] = []
    while len(out) < limit:
        token = choose(allowed(formed))
        if token == EOS:
            return out
        out.append(token)
        if formed.accept(token):
            return out
    raise AssertionError(f"no end after {limit} tokens")


def json_need(schema: object, *, after_thinking: bool = False) -> Need:
    content = "" if schema is None else json.dumps(schema)
    return Need(kind="json", schema=content, after_thinking=after_thinking)


def says(grammars: Grammars, tokens: list[int]) -> str:
    return grammars.load().decode_bytes(tokens).decode()


@every_model
def test_json_object(grammars: Grammars, make: Make, seed: int) -> None:
    formed = grammars.constraint(json_need(None), max_tokens=32768)
    tokens = answer(formed, make(seed))
    assert isinstance(json.loads(says(grammars, tokens)), dict)
    assert len(tokens) < PATIENCE + 10


@every_model
@pytest.mark.parametrize("name", ["fields", "list", "recursive", "number", "anything", "pattern"])
def test_json_schema(grammars: Grammars, make: Make, seed: int, name: str) -> None:
    schema, check = SCHEMAS[name]
    formed = grammars.constraint(json_need(schema), max_tokens=32768)
    tokens = answer(formed, make(seed))
    assert check(json.loads(says(grammars, tokens)))
    assert len(tokens) < PATIENCE + 60


def _fields(value: Any) -> bool:
    return (
        set(value) == {"a", "b", "c"}
        and type(value["a"]) is int
        and all(isinstance(text, str) for text in value["b"])
        and value["c"] in ("x", "y")
    )


def _recursive(value: Any) -> bool:
    return value is None or (set(value) == {"next"} and _recursive(value["next"]))


SCHEMAS: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "fields": (
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": "array", "items": {"type": "string"}, "minItems": 2},
                "c": {"enum": ["x", "y"]},
            },
            "required": ["a", "b", "c"],
            "additionalProperties": False,
        },
        _fields,
    ),
    "list": ({"type": "array", "items": {"type": "number"}}, lambda value: isinstance(value, list)),
    "recursive": (NODE, _recursive),
    "number": ({"type": "number", "minimum": 5, "maximum": 9}, lambda value: 5 <= value <= 9),
    "anything": (True, lambda _: True),
    "pattern": ({"type": "string", "pattern": "^[a-c]+$"}, lambda value: set(value) <= set("abc")),
}


def call_need(prompts: Prompts, choice: object) -> Need:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": choice}
    need = prompts.prepare(body).need
    assert need is not None
    return need


@every_model
@pytest.mark.parametrize("choice", ["required", "named"])
def test_forced_call(
    grammars: Grammars, prompts: Prompts, make: Make, seed: int, choice: str
) -> None:
    """The publisher's parser finds whole calls of declared tools with arguments that fit."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    need = call_need(prompts, named if choice == "named" else choice)
    formed = grammars.constraint(need, max_tokens=32768)
    tokens = answer(formed, make(seed))
    assert len(tokens) < PATIENCE + 120
    calls = parsed(prompts, tokens)
    if choice == "named":
        assert [name for name, _ in calls] == ["get_weather"]
    for name, arguments in calls:
        check_arguments(name, arguments)
    assert DSML in tokens
    assert says(grammars, tokens).count("｜DSML｜") == tokens.count(DSML)


def parsed(prompts: Prompts, tokens: list[int]) -> list[tuple[str, dict[str, Any]]]:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": TOOLS,
        "tool_choice": "required",
    }
    parser = prompts.parser(prompts.prepare(body), answer="a", model="m", created=1)
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


def test_model_that_knows_the_form_is_left_alone(grammars: Grammars, prompts: Prompts) -> None:
    """What a model writes in the right form passes token by token, spelled as it spells it."""
    tokenizer = grammars.load()
    call = (
        '<｜DSML｜ invoke name="get_weather">\n'
        '<｜DSML｜ parameter name="city" string="true">a</b>"\n</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="days" string="false">2</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="place" string="false">{"inside": true}</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    )
    for need, text in (
        (json_need(None), '{"ok": true}'),
        (json_need(None), '{"a": [1, 2.5, "x\\"y"], "b": {"c": null}}'),
        (call_need(prompts, "required"), call),
    ):
        formed = grammars.constraint(need, max_tokens=300)
        tokens = tokenizer.tokenize_str(text)
        for token in tokens[:-1]:
            assert token in allowed(formed)
            assert not formed.accept(token)
        assert tokens[-1] in allowed(formed)
        assert formed.accept(tokens[-1])


def test_thinking_comes_first(grammars: Grammars) -> None:
    need = json_need(None, after_thinking=True)
    formed = grammars.constraint(need, max_tokens=1000)
    first = allowed(formed)
    assert EOS not in first
    assert len(first) == VOCAB - 1
    for token in (67, 68, THINK_END):
        assert not formed.accept(token)
    assert {says(grammars, [token])[0] for token in allowed(formed).tolist()} == {"{"}


def test_endless_thinking_is_ended(grammars: Grammars) -> None:
    need = json_need(None, after_thinking=True)
    formed = grammars.constraint(need, max_tokens=1000)
    tokens = answer(formed, never_ending(0))
    assert tokens.index(THINK_END) == PATIENCE
    assert isinstance(json.loads(says(grammars, tokens[PATIENCE + 1 :])), dict)


@pytest.mark.parametrize("limit", [24, 40, 100])
def test_small_limit_still_gives_a_whole_answer(grammars: Grammars, limit: int) -> None:
    formed = grammars.constraint(json_need(None), max_tokens=limit)
    tokens = answer(formed, never_ending(0), limit)
    assert isinstance(json.loads(says(grammars, tokens)), dict)


def test_regex(grammars: Grammars) -> None:
    need = Need(kind="regex", schema="[ab]{3}c", after_thinking=False)
    formed = grammars.constraint(need, max_tokens=50)
    text = says(grammars, answer(formed, noise(1)))
    assert len(text) == 4
    assert text.endswith("c")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "patternProperties": {"^(?=a)": {}}},
        {"type": "string", "pattern": "(?<=a)b"},
        {"type": "object", "minProperties": 3, "dependentSchemas": {}},
        {"$ref": "https://example.com/schema"},
        {"type": "number", "multipleOf": 0.3, "exclusiveMinimum": 9, "maximum": 1},
    ],
)
def test_schema_that_cannot_be_compiled(grammars: Grammars, schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        grammars.constraint(json_need(schema), max_tokens=50)


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


def test_many_tools(grammars: Grammars) -> None:
    """As many as a coding agent declares: 131 were seen."""
    parameters = {**WEATHER, "properties": {**WEATHER["properties"], "more": {}}}
    tools = [{"function": {"name": f"tool_{n}", "parameters": parameters}} for n in range(131)]
    need = Need(kind="tool_call_required", schema=json.dumps(tools), several=True)
    tokens = answer(grammars.constraint(need, max_tokens=1000), noise(2))
    assert says(grammars, tokens).startswith('<｜DSML｜ invoke name="tool_')


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
