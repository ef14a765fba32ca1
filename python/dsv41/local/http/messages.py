"""Message shapes that clients really send, as the one shape that the publisher's encoder takes.

The publisher's request type knows the roles system, user, assistant, tool and latest_reminder,
string content or a list of typed blocks, and `reasoning_content`. Coding agents and bridges also
send `developer`, plain strings in lists, blocks without a type, null content and `reasoning`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsv41.guards.image_text import harmless
from dsv41.local.http.openai import bad_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    Message = dict[str, Any]


def normalized(messages: object) -> list[Message]:
    """Rewrite the messages of a request; the given ones are not changed.

    Text that spells the image placeholder becomes `[image]`. Raises RequestError when there is no
    list of objects.
    """
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise bad_value("messages", "must be a list of objects")
    cleaned, _ = harmless([_message(message) for message in messages])
    return cleaned


def _message(message: Mapping[str, Any]) -> Message:
    new = {field: value for field, value in message.items() if value is not None}
    if new.get("role") == "developer":
        new["role"] = "system"
    if isinstance(new.get("content"), list):
        new["content"] = [_block(block) for block in new["content"]]
    if new.get("role") in ("tool", "assistant"):
        new.setdefault("content", "")
    if "reasoning" in new:
        reasoning = new.pop("reasoning")
        new.setdefault("reasoning_content", reasoning)
    if isinstance(new.get("tool_calls"), list):
        new["tool_calls"] = [_tool_call(call) for call in new["tool_calls"]]
        if not new["tool_calls"]:
            del new["tool_calls"]
    return new


def _block(block: object) -> object:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if isinstance(block, dict) and "type" not in block and isinstance(block.get("text"), str):
        return {"type": "text", **block}
    return block


def _tool_call(call: object) -> object:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = dict(call["function"])
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        function["arguments"] = "{}"
    elif isinstance(arguments, dict):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", **call, "function": function}
