"""The guards on requests: output cap, thinking alias, effort, image placeholder text."""

import pytest

from dsv41.guards.cap import cap
from dsv41.guards.effort import budget, budget_or
from dsv41.guards.image_text import PLACEHOLDER, harmless
from dsv41.guards.thinking import alias, chosen, disagree


@pytest.mark.parametrize(
    ("max_tokens", "max_completion_tokens", "limit", "after", "filled", "clamped"),
    [
        (None, None, 32768, (32768, None), True, False),
        (256, None, 32768, (256, None), False, False),
        (32768, None, 32768, (32768, None), False, False),
        (1_000_000, None, 32768, (32768, None), False, True),
        (16, 999_999, 1024, (16, 1024), False, True),
        (999_999, 16, 1024, (999_999, 16), False, False),
        (None, 1_000_000, 32768, (None, 32768), False, True),
        (None, None, 0, (None, None), False, False),
        (10**9, None, 0, (10**9, None), False, False),
        (None, None, -1, (None, None), False, False),
        (65536, None, 65536, (65536, None), False, False),
        (None, None, 4096, (4096, None), True, False),
        (0, None, 4096, (0, None), False, False),
        (-5, None, 4096, (-5, None), False, False),
    ],
)
def test_cap(
    max_tokens: int | None,
    max_completion_tokens: int | None,
    limit: int,
    after: tuple[int | None, int | None],
    filled: bool,
    clamped: bool,
) -> None:
    capped = cap(max_tokens=max_tokens, max_completion_tokens=max_completion_tokens, limit=limit)
    assert (capped.max_tokens, capped.max_completion_tokens) == after
    assert (capped.filled, capped.clamped) == (filled, clamped)


def test_limit_in_force_is_the_completion_limit() -> None:
    assert cap(max_tokens=5, max_completion_tokens=7, limit=0).in_force == 7
    assert cap(max_tokens=5, max_completion_tokens=None, limit=0).in_force == 5


@pytest.mark.parametrize(
    ("kwargs", "after"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False, "thinking": False}),
        ({"enable_thinking": 0}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": True, "foo": 1}, {"thinking": True, "enable_thinking": True, "foo": 1}),
        (
            {"thinking": False, "enable_thinking": True},
            {"thinking": False, "enable_thinking": False},
        ),
        ({"thinking": True, "enable_thinking": False}, {"thinking": True, "enable_thinking": True}),
        ({"thinking": "false"}, {"thinking": False, "enable_thinking": False}),
        ({"enable_thinking": "0"}, {"thinking": False, "enable_thinking": False}),
        ({"enable_thinking": "true"}, {"thinking": True, "enable_thinking": True}),
        ({"thinking": None, "enable_thinking": 1}, {"thinking": True, "enable_thinking": True}),
        ({"thinking": None}, {"thinking": None}),
        ({"foo": 1}, {"foo": 1}),
        (None, None),
        ({}, {}),
    ],
)
def test_thinking_alias(kwargs: dict[str, object] | None, after: dict[str, object] | None) -> None:
    given = None if kwargs is None else dict(kwargs)
    assert alias(kwargs) == after
    assert kwargs == given
    values = (after or {}).values()
    assert all(value is None or type(value) is not str for value in values)


def test_thinking_says_bools_only() -> None:
    assert (alias({"enable_thinking": 0}) or {})["thinking"] is False
    assert chosen({"thinking": 2}) is True
    assert chosen({}) is None
    assert chosen(None) is None


def test_disagreement_is_seen() -> None:
    assert disagree({"thinking": False, "enable_thinking": True})
    assert not disagree({"thinking": "false", "enable_thinking": 0})
    assert not disagree({"thinking": False})
    assert not disagree(None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("minimal", 50),
        ("low", 50),
        ("medium", 75),
        ("high", 75),
        ("xhigh", 75),
        ("ultra", 100),
        ("max", 100),
        ("MAX", 100),
        (1, 1),
        (100, 100),
        (33, 33),
        (" 34 ", 34),
        (0.5, 50),
        (0.99, 99),
        (0.29, 29),
        (0.0, 1),
        (75.0, 75),
    ],
)
def test_effort(value: object, expected: int) -> None:
    assert budget(value) == expected
    assert budget_or(value, 60) == (expected, None)


@pytest.mark.parametrize(
    "value",
    [0, 101, -1, "00", "1000", "hard", "", 1.0, 1.5, float("nan"), float("inf"), True, [], {}],
)
def test_effort_refused(value: object) -> None:
    with pytest.raises(ValueError, match="reasoning effort must be"):
        budget(value)
    assert budget_or(value, 60)[0] == 60
    assert "60 is used" in str(budget_or(value, 60)[1])


def test_effort_not_asked_for() -> None:
    assert budget_or(None) == (75, None)
    assert budget_or("none", 40) == (40, None)


def test_image_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "plain"},
        {"role": "user", "content": f"see {PLACEHOLDER} and {PLACEHOLDER}"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": f"{PLACEHOLDER}!"},
                image,
            ],
        },
        {"role": "assistant", "content": None, "reasoning_content": PLACEHOLDER, "reasoning": ""},
        {"role": "tool", "tool_call_id": PLACEHOLDER, "content": [PLACEHOLDER]},
    ]
    before = repr(messages)
    cleaned, found = harmless(messages)
    assert repr(messages) == before
    assert found == 5
    assert cleaned[1]["content"] == "see [image] and [image]"
    assert cleaned[2]["content"] == [
        {"type": "text", "text": "[image]!"},
        image,
    ]
    assert cleaned[3] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "[image]",
        "reasoning": "",
    }
    assert cleaned[4] == {"role": "tool", "tool_call_id": PLACEHOLDER, "content": ["[image]"]}
    assert harmless(cleaned) == (cleaned, 0)


@pytest.mark.parametrize("as_text", [True, False])
def test_a_placeholder_in_a_tool_call_is_made_harmless(as_text: bool) -> None:
    """Some engines keep arguments as JSON text, others as the value; both come back as a prompt."""
    arguments: object = f'{{"a": "{PLACEHOLDER}"}}' if as_text else {"a": [PLACEHOLDER, 1, None]}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    cleaned, found = harmless([message])
    assert found == 1
    assert PLACEHOLDER not in repr(cleaned)
    assert PLACEHOLDER in repr(message)
    assert cleaned[0]["tool_calls"] == [
        {
            **call,
            "function": {
                "name": "f",
                "arguments": '{"a": "[image]"}' if as_text else {"a": ["[image]", 1, None]},
            },
        }
    ]
