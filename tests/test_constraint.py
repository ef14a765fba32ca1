"""JSON answers of a model that says anything: each ends, is whole, and fits its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dsv41.local.http import dsml
from dsv41.local.http.constraint import EOS, PATIENCE, THINK_END, VOCAB
from dsv41.local.http.prompt import Need
from tokenizing import grammars, spelled
from wild_models import Make, allowed, answer, every_model, follow, never_ending, noise

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


def json_need(schema: object, *, after_thinking: bool = False) -> Need:
    content = "" if schema is None else json.dumps(schema)
    return Need(kind="json", schema=content, after_thinking=after_thinking)


@every_model
def test_json_object(make: Make, seed: int) -> None:
    formed = grammars().constraint(json_need(None), max_tokens=32768)
    tokens = answer(formed, make(seed))
    assert isinstance(json.loads(spelled(tokens)), dict)
    assert len(tokens) < PATIENCE + 10


@every_model
@pytest.mark.parametrize("name", ["fields", "list", "recursive", "number", "anything", "pattern"])
def test_json_schema(make: Make, seed: int, name: str) -> None:
    schema, check = SCHEMAS[name]
    formed = grammars().constraint(json_need(schema), max_tokens=32768)
    tokens = answer(formed, make(seed))
    assert check(json.loads(spelled(tokens)))
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


def test_thinking_comes_first() -> None:
    need = json_need(None, after_thinking=True)
    formed = grammars().constraint(need, max_tokens=1000)
    first = allowed(formed)
    assert EOS not in first
    assert len(first) == VOCAB - 1
    for token in (67, 68, THINK_END):
        assert not formed.accept(token)
    assert {spelled([token])[0] for token in allowed(formed).tolist()} == {"{"}


def test_endless_thinking_is_ended() -> None:
    need = json_need(None, after_thinking=True)
    formed = grammars().constraint(need, max_tokens=1000)
    tokens = answer(formed, never_ending(0))
    assert tokens.index(THINK_END) == PATIENCE
    assert isinstance(json.loads(spelled(tokens[PATIENCE + 1 :])), dict)


@pytest.mark.parametrize("limit", [24, 40, 100])
def test_small_limit_still_gives_a_whole_answer(limit: int) -> None:
    formed = grammars().constraint(json_need(None), max_tokens=limit)
    tokens = answer(formed, never_ending(0), limit)
    assert isinstance(json.loads(spelled(tokens)), dict)


def test_regex() -> None:
    need = Need(kind="regex", schema="[ab]{3}c", after_thinking=False)
    formed = grammars().constraint(need, max_tokens=50)
    text = spelled(answer(formed, noise(1)))
    assert len(text) == 4
    assert text.endswith("c")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "patternProperties": {"^(?=a)": {}}},
        {"type": "string", "pattern": "(?<=a)b"},
        {"type": "object", "minProperties": 3, "dependentSchemas": {}},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
        {"type": "string", "enum": []},
        {"type": "number", "multipleOf": 0.3, "exclusiveMinimum": 9, "maximum": 1},
    ],
)
def test_schema_that_cannot_be_compiled(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        grammars().constraint(json_need(schema), max_tokens=50)


@pytest.mark.parametrize("text", ['{"ok": true}', '{"a": [1, 2.5, "x\\"y"], "b": {"c": null}}'])
def test_model_that_knows_the_form_is_left_alone(text: str) -> None:
    """What a model writes in the right form passes token by token, spelled as it spells it."""
    formed = grammars().constraint(json_need(None), max_tokens=300)
    follow(formed, text)


@pytest.mark.parametrize("target", ["#", "#/properties/b", "other.json"])
def test_a_parameter_refers_to_definitions_alone(target: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"items": [{"$ref": target}]}}}
    with pytest.raises(ValueError, match=r"only \$defs"):
        dsml.calls_grammar([{"name": "f", "parameters": parameters}], several=False)


def test_a_parameter_keeps_its_definitions() -> None:
    tree = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    parameters = {"properties": {"a": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": tree}}
    assert '"$defs"' in dsml.calls_grammar([{"name": "f", "parameters": parameters}], several=True)
