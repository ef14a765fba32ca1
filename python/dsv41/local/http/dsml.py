"""Grammars of forced tool calls, in the markup that the model writes them in.

A call is `<｜DSML｜ invoke name="...">`, one `<｜DSML｜ parameter name="..." string="true|false">`
a line and the closing tags; the spaces after the bars belong to it. A plain string stands as it
is (string="true"), everything else as JSON (string="false"). The grammar is written for llguidance
(Lark with `%json`); parameters come in the order of the schema.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Schema = Mapping[str, Any]

BAR = "\uff5cDSML\uff5c"  # with FULLWIDTH VERTICAL LINE; one token, 128825
CLOSE = f"</{BAR}"
# How JSON is spelled: what the model's own format uses, and no free white space, so that an
# answer cannot go on forever between two values.
SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_SAYS_NOTHING = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
_OF_PARAMETERS = _SAYS_NOTHING | {
    "$defs",
    "$schema",
    "additionalProperties",
    "definitions",
    "properties",
    "required",
    "strict",
    "type",
}
_UNWRITABLE = frozenset('"<>\n')  # a parameter's name stands in quotes inside a tag


def calls_grammar(tools: Sequence[Schema], *, several: bool) -> str:
    """Write the Lark grammar of one call, or one or more, up to the tag that closes the block.

    `tools` are the functions, as in a request. Raises ValueError naming what a grammar cannot say.
    """
    names = [f"call_{number}" for number in range(len(tools))]
    lines = [
        f"start: call{'+' if several else ''} {_text(CLOSE + ' calls>')}",
        "call: " + " | ".join(names),
        f"raw[suffix={_text(CLOSE)}]: /(?s:.*)/",
    ]
    for name, tool in zip(names, tools, strict=True):
        lines += _call(name, tool)
    return "%llguidance {}\n" + "\n".join(lines) + "\n"


def spelled(schema: object) -> dict[str, Any]:
    """Give a JSON schema with the spelling of its values; true and false are schemas, too."""
    own = schema if isinstance(schema, dict) else ({} if schema else {"not": {}})
    return {**own, "x-guidance": SPELLING}


def _call(rule: str, tool: Schema) -> Iterator[str]:
    parameters = tool.get("parameters") or {}
    _check(tool["name"], parameters)
    required = parameters.get("required", [])
    properties = {**parameters.get("properties", {})}
    properties |= {name: True for name in required if name not in properties}
    parts = []
    for number, (name, schema) in enumerate(properties.items()):
        part = f"{rule}_{number}"
        parts.append(part if name in required else f"{part}?")
        yield f"{part}: {_parameter(name, schema, parameters)}"
    opened = f'<{BAR} invoke name="{tool["name"]}">\n'
    body = " ".join(parts) or _text("\n")
    yield f"{rule}: {_text(opened)} {body} {_text(CLOSE + ' invoke>' + chr(10))}"


def _parameter(name: str, schema: object, root: Schema) -> str:
    plain = isinstance(schema, dict) and schema.get("type") == "string"
    says = set(schema) - _SAYS_NOTHING - {"type"} if isinstance(schema, dict) else set()
    end = f"{CLOSE} parameter>\n"
    opened = f'<{BAR} parameter name="{name}" string="{{}}">'
    if plain and not says:
        return f"{_text(opened.format('true'))} raw {_text(end.removeprefix(CLOSE))}"
    if isinstance(schema, dict) and plain and says == {"enum"} and _writable(schema["enum"]):
        choices = " | ".join(_text(choice + end) for choice in schema["enum"])
        return f"{_text(opened.format('true'))} ({choices})"
    return f"{_text(opened.format('false'))} %json {_json(schema, root)} {_text(end)}"


def _json(schema: object, root: Schema) -> str:
    """Write one parameter's schema by itself, with the definitions that it may refer to.

    Raises ValueError for a reference to anything else: `#` would mean the parameter, not the tool.
    """
    for target in _references(schema):
        if not target.startswith(("#/$defs/", "#/definitions/")):
            raise ValueError(f"a parameter refers to {target[:80]!r}, and only $defs can be kept")
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return json.dumps({**shared, **spelled(schema)})


def _references(schema: object) -> Iterator[str]:
    """Every $ref of a schema, at any depth."""
    if isinstance(schema, dict):
        target = schema.get("$ref")
        if isinstance(target, str):
            yield target
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _check(tool: str, parameters: object) -> None:
    if not isinstance(parameters, dict):
        raise ValueError(f"the parameters of {tool!r} must be an object schema")  # noqa: TRY004
    if parameters.get("type", "object") != "object":
        raise ValueError(f"the parameters of {tool!r} must have the type object")
    for keyword in parameters:
        if keyword not in _OF_PARAMETERS and not keyword.startswith("x-"):
            raise ValueError(f"the parameters of {tool!r} use {keyword!r} at their top level")
    for name in [*parameters.get("properties", {}), *parameters.get("required", [])]:
        if not name or _UNWRITABLE & set(name):
            raise ValueError(f"{tool!r} has a parameter named {name!r}, which no tag can hold")


def _writable(choices: object) -> bool:
    return isinstance(choices, list) and all(
        isinstance(choice, str) and CLOSE not in choice for choice in choices
    )


def _text(literal: str) -> str:
    return json.dumps(literal, ensure_ascii=False)
