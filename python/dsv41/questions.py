"""Questions with known answers: what `smoke` asks and what the fixture's output head is fitted to.

Pure data. A request is the body of a chat completion without its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

THINKING_OFF = {"chat_template_kwargs": {"enable_thinking": False}}

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A request and what a working model says to it.

    `content`, `reasoning` are texts, `call` is a tool's name and arguments; None where the
    answer has none. `endless` marks the question whose answer never ends by itself.
    """

    name: str
    request: Mapping[str, Any] = field(repr=False)
    content: str | None = None
    reasoning: str | None = None
    call: tuple[str, Mapping[str, Any]] | None = None
    endless: bool = False


def ask(text: str, **body: Any) -> dict[str, Any]:
    """The request of one user message."""
    return {"messages": [{"role": "user", "content": text}], **body}


# An allocator setting once made the logits of every prompt above 64 tokens NaN (MIA-README):
# these lengths cross the border.
PROMPT_TOKENS = (60, 64, 65, 66, 80)


def padded(prompt_tokens: int) -> Question:
    """19 + 23 in a prompt of exactly so many tokens (from 18 up).

    Thinking off has 4 tokens around the message, the message 13 besides its filler words of
    one token each.
    """
    filler = " word" * (prompt_tokens - 17)
    text = f"Skip these words:{filler}. What is 19 + 23?"
    return Question(name=f"prompt-{prompt_tokens}", request=ask(text, **THINKING_OFF), content="42")


ARITHMETIC = Question(
    name="arithmetic", request=ask("What is 19 + 23?", **THINKING_OFF), content="42"
)
THINKING = Question(
    name="thinking", request=ask("What is 19 + 23?"), reasoning="19 plus 23 is 42.", content="42"
)
JSON = Question(
    name="json",
    request=ask(
        'Reply with a JSON object whose key "ok" is true.',
        response_format={"type": "json_object"},
        **THINKING_OFF,
    ),
    content='{"ok": true}',
)
TOOL_CALL = Question(
    name="tool-call",
    request=ask("What is the weather in Paris?", tools=[WEATHER_TOOL], **THINKING_OFF),
    call=("get_weather", {"city": "Paris"}),
)
TOOL_RESULT = Question(
    name="tool-result",
    request={
        "messages": [
            {"role": "user", "content": "What is the weather in Paris?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_00_0",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_00_0", "content": "18C"},
        ],
        "tools": [WEATHER_TOOL],
        **THINKING_OFF,
    },
    content="It is 18C in Paris.",
)
GREETING = Question(
    name="greeting",
    request=ask("Hello", **THINKING_OFF),
    content="Hello! I am a tiny model that knows a few answers.",
)
MULTI_TURN = Question(
    name="multi-turn",
    request={
        "messages": [
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Nice to meet you, Ada."},
            {"role": "user", "content": "What is my name?"},
        ],
        **THINKING_OFF,
    },
    content="Your name is Ada.",
)
LONG_PROMPT = Question(
    name="long-prompt",
    request=ask(
        "Read this list, then say how many fruits it names.\n"
        + "\n".join(f"Line {n}: apple, pear, plum." for n in range(1, 41)),
        **THINKING_OFF,
    ),
    content="It names three fruits.",
)
LOOP = Question(
    name="loop", request=ask("Repeat the word loop forever.", **THINKING_OFF), endless=True
)

FITTED = (
    ARITHMETIC,
    THINKING,
    JSON,
    TOOL_CALL,
    TOOL_RESULT,
    GREETING,
    MULTI_TURN,
    LONG_PROMPT,
    LOOP,
    *(padded(length) for length in PROMPT_TOKENS),
)
