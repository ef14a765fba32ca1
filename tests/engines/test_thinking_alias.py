"""Both names of the thinking switch in SGLang's chat handler; over HTTP: test_served.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hooked import hooked
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.parser.reasoning_parser import ReasoningParser

from dsv41.adapters.sglang import thinking_alias


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    with hooked(thinking_alias.ADAPTER, DSV41_THINKING_ALIAS="1"):
        yield


class Stop(Exception):
    """Ends `_process_messages` after it has read what is looked at here."""


class Handler(OpenAIServingChat):  # type: ignore[misc]
    """The engine's handler with the parser of this model, up to its first use of the tokenizer."""

    def __init__(self, **defaults: Any) -> None:
        self.reasoning_parser = "deepseek-v41"
        self.tool_call_parser = None
        self.template_manager = SimpleNamespace(reasoning_config=None)
        self._reasoning_detector = ReasoningParser("deepseek-v41").detector
        self.default_chat_template_kwargs = defaults
        self.is_minimax_m3 = self.is_gpt_oss = self.is_gemma4 = False

    def _patch_reasoning_skip_special_tokens(self, _: Any) -> None:
        return None

    def _effective_tools(self, _: Any) -> list[Any]:
        raise Stop


def request_of(kwargs: dict[str, Any] | None, **fields: Any) -> ChatCompletionRequest:
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}], **fields}
    if kwargs is not None:
        body["chat_template_kwargs"] = kwargs
    return ChatCompletionRequest.model_validate(body)


def processed(request: ChatCompletionRequest, **defaults: Any) -> dict[str, Any] | None:
    """The template's arguments after the engine's own `_process_messages` has read them."""
    handler = Handler(**defaults)
    with pytest.raises(Stop):
        handler._process_messages(request, is_multimodal=False)
    kwargs: dict[str, Any] | None = request.chat_template_kwargs
    if kwargs and "thinking" in kwargs:  # what opens the prompt is what parses the answer
        assert handler._get_reasoning_from_request(request) is kwargs["thinking"]
    return kwargs


BOTH_ON = {"thinking": True, "enable_thinking": True}
BOTH_OFF = {"thinking": False, "enable_thinking": False}


@pytest.mark.parametrize(
    ("kwargs", "after"),
    [
        ({"enable_thinking": False}, BOTH_OFF),
        ({"enable_thinking": 0}, BOTH_OFF),
        ({"enable_thinking": "false"}, BOTH_OFF),
        ({"thinking": True, "foo": 1}, {**BOTH_ON, "foo": 1}),
        ({"thinking": False, "enable_thinking": True}, BOTH_OFF),
        ({"thinking": True, "enable_thinking": False}, BOTH_ON),
        ({"thinking": None, "enable_thinking": True}, BOTH_ON),
        ({"thinking": None}, {}),
        ({"foo": 1}, {"foo": 1}),
        ({}, {}),
        (None, None),
    ],
    ids=str,
)
def test_what_a_request_says(kwargs: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
    """The recipe's own cases, and nulls."""
    assert processed(request_of(kwargs)) == after


@pytest.mark.parametrize("first", [True, False])
def test_the_parser_alone_sees_the_same(first: bool) -> None:
    """Some paths ask how to parse before, or without, making a prompt."""
    request = request_of({"enable_thinking": first})
    assert Handler()._get_reasoning_from_request(request) is first
    assert request.chat_template_kwargs == (BOTH_ON if first else BOTH_OFF)


@pytest.mark.parametrize(
    ("kwargs", "effort", "after"),
    [
        ({"enable_thinking": False}, "high", BOTH_OFF),
        ({"enable_thinking": True}, "none", BOTH_ON),
        ({"thinking": False}, "high", BOTH_OFF),
        ({"thinking": True}, "none", BOTH_ON),
        ({"thinking": False, "enable_thinking": True}, "high", BOTH_OFF),
        (None, "high", BOTH_ON),
        (None, "none", BOTH_OFF),
    ],
    ids=str,
)
def test_the_effort_counts_only_where_no_switch_is_sent(
    kwargs: dict[str, Any] | None, effort: str, after: dict[str, Any]
) -> None:
    """SGLang fills both names from the effort before any handler sees the request."""
    assert processed(request_of(kwargs, reasoning_effort=effort)) == after


def test_a_request_wins_over_the_servers_defaults() -> None:
    assert processed(request_of(None), enable_thinking=True) == BOTH_ON
    assert processed(request_of(None), thinking=False) == BOTH_OFF
    assert processed(request_of({"thinking": False}), enable_thinking=True) == BOTH_OFF
    assert processed(request_of({"enable_thinking": False}), thinking=True) == BOTH_OFF


def test_only_a_disagreement_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        processed(request_of({"thinking": False, "enable_thinking": False}))
        processed(request_of({"enable_thinking": False}, reasoning_effort="high"))
        assert not caplog.records
        processed(request_of({"thinking": False, "enable_thinking": True}))
    assert len(caplog.records) == 1


def test_without_the_adapter_the_alias_is_no_alias() -> None:
    """Why it is needed: what stands behind the hook reads one name."""
    original = Handler._get_reasoning_from_request.__wrapped__
    assert original(Handler(), request_of({"enable_thinking": True})) is False
    assert original(Handler(), request_of({"thinking": True})) is True
