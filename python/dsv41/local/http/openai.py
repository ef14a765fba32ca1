"""The OpenAI side of a chat request: its fields, what they may hold, and the shape of errors.

Pure: no engine, no tokenizer, no HTTP. A field that is not built is refused by name unless it asks
for what happens anyway; nothing is ignored in silence but fields that only describe the sender.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Body = dict[str, Any]

BUILT = frozenset(
    {
        "chat_template_kwargs",
        "enable_thinking",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "parallel_tool_calls",
        "reasoning_effort",
        "response_format",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_p",
    }
)
ABOUT_THE_SENDER = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Not built, but these values ask for nothing: many clients send them always.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
}
LARGEST_SEED = 2**63 - 1
TEMPLATE_KWARGS = frozenset({"thinking", "enable_thinking", "reasoning_effort"})
STREAM_OPTIONS = frozenset({"include_usage", "include_obfuscation"})


class RequestError(Exception):
    """A request that gets an error answer; `status` is the HTTP status."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = envelope(message, kind=kind, param=param, code=code)


def envelope(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> Body:
    """Give the error object that OpenAI's clients read, nested as they expect it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """What a chat request asks of sampling and of the answer's form; None is not given."""

    temperature: float | None
    top_p: float | None
    seed: int | None
    max_tokens: int | None
    max_completion_tokens: int | None
    stream: bool
    include_usage: bool
    parallel_tool_calls: bool


def read_body(raw: bytes) -> Body:
    """Parse the body: one JSON object; fields that are null count as not given."""
    try:
        body = json.loads(raw)
        json.dumps(body, ensure_ascii=False).encode()  # half a surrogate pair is not text
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_json")
    return {field: value for field, value in body.items() if value is not None}


def read_ask(body: Mapping[str, Any]) -> Ask:
    """Check every field of a chat request but the conversation itself.

    Raises RequestError naming the first field that is not built, unknown or out of range.
    """
    for field, value in body.items():
        _check_built(field, value)
    _check_kwargs(body.get("chat_template_kwargs", {}))
    return Ask(
        temperature=_number(body, "temperature", low=0.0, high=2.0),
        top_p=_number(body, "top_p", low=0.0, high=1.0, above=True),
        seed=_integer(body, "seed", low=0, high=LARGEST_SEED),
        max_tokens=_integer(body, "max_tokens", low=1),
        max_completion_tokens=_integer(body, "max_completion_tokens", low=1),
        stream=_flag(body, "stream", default=False),
        include_usage=_include_usage(body),
        parallel_tool_calls=_flag(body, "parallel_tool_calls", default=True),
    )


def not_built(field: str, says: str = "") -> RequestError:
    """Refuse a field of the OpenAI interface that this server does not have."""
    return RequestError(
        f"{field} is not supported by this server{says}.",
        param=field,
        code="unsupported_parameter",
    )


def bad_value(field: str, says: str) -> RequestError:
    """Refuse the value of a field; `says` goes on the sentence after the field's name."""
    return RequestError(f"{field} {says}.", param=field, code="invalid_value")


def _check_built(field: str, value: object) -> None:
    if field in BUILT or field in ABOUT_THE_SENDER:
        return
    if field not in NEUTRAL:
        raise RequestError(
            f"{field} is not a field of a chat request that this server knows.",
            param=field,
            code="unknown_parameter",
        )
    if not any(type(value) in _like(neutral) and value == neutral for neutral in NEUTRAL[field]):
        allowed = " or ".join(json.dumps(neutral) for neutral in NEUTRAL[field])
        raise not_built(field, f"; only {allowed} is accepted")


def _like(neutral: object) -> tuple[type, ...]:
    numeric = isinstance(neutral, int) and not isinstance(neutral, bool)
    return (int, float) if numeric else (type(neutral),)


def _check_kwargs(kwargs: object) -> None:
    if not isinstance(kwargs, dict):
        raise bad_value("chat_template_kwargs", "must be an object")
    for name in kwargs:
        if name not in TEMPLATE_KWARGS:
            raise not_built(f"chat_template_kwargs.{name}")


def _include_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options", {})
    if not isinstance(options, dict):
        raise bad_value("stream_options", "must be an object")
    if options and not body.get("stream"):
        raise bad_value("stream_options", "may only be sent with stream true")
    for name, value in options.items():
        if name not in STREAM_OPTIONS and value not in (None, False):
            raise not_built(f"stream_options.{name}")
        if not isinstance(value, bool | None):
            raise bad_value(f"stream_options.{name}", "must be true or false")
    return bool(options.get("include_usage"))


def _flag(body: Mapping[str, Any], field: str, *, default: bool) -> bool:
    value = body.get(field, default)
    if not isinstance(value, bool):
        raise bad_value(field, f"must be true or false, not {value!r}")
    return value


def _integer(
    body: Mapping[str, Any], field: str, *, low: int, high: int | None = None
) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        bounds = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise bad_value(field, f"must be an integer {bounds}, not {value!r}")
    return int(value)


def _number(
    body: Mapping[str, Any], field: str, *, low: float, high: float, above: bool = False
) -> float | None:
    value = body.get(field)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high or (above and value == low):
        bounds = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        raise bad_value(field, f"must be a number {bounds}, not {value!r}")
    return float(value)
