"""The smoke ladder: questions with known answers, from the simplest up.

Works on any OpenAI-compatible DeepSeek-V4.1 endpoint. The prompts of 60 to 80 tokens cross the
border where an allocator setting once broke every longer prefill; the full batch catches garbage
that only concurrent streams show; the loop must be stopped by the server.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dsv41 import questions
from dsv41.api import Endpoint
from dsv41.errors import Error
from dsv41.questions import Question

STREAMS = 8
SMALL_ANSWER = 512  # tokens; more than any of the answers needs, thinking included
LOOP_ANSWER = 2048  # tokens; an endless answer that reaches this was not stopped

Check = Callable[[Endpoint], str]


class Wrong(Exception):
    """An answer is not what it must be."""


def climb(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    """Each step's {name, ok, says, seconds}; stops early only when nobody answers."""
    for name, check in LADDER:
        step = _step(endpoint, name, check)
        yield step
        if name == "ready" and not step["ok"]:
            return


def _step(endpoint: Endpoint, name: str, check: Check) -> dict[str, Any]:
    started = time.monotonic()
    try:
        ok, says = True, check(endpoint)
    except (Wrong, Error) as error:
        ok, says = False, str(error)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        ok, says = False, f"the answer has not the expected shape: {error!r}"
    return {"name": name, "ok": ok, "says": says, "seconds": round(time.monotonic() - started, 3)}


def _ask(
    endpoint: Endpoint, question: Question, **body: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first choice of the answer, greedy, and the usage."""
    greedy = {"model": _model(endpoint), "temperature": 0, "max_tokens": SMALL_ANSWER}
    answer = endpoint.chat(**{**greedy, **question.request, **body})
    return answer["choices"][0], answer["usage"]


def _model(endpoint: Endpoint) -> str:
    return str(endpoint.models()[0]["id"])


def _need(right: object, says: str) -> None:
    if not right:
        raise Wrong(says)


def _ready(endpoint: Endpoint) -> str:
    status = endpoint.status("/ready")
    if status == 404:  # vLLM has /health alone
        status = endpoint.status("/health")
    _need(status, f"nobody answers at {endpoint.root}: is the service up? dsv41 status")
    _need(status == 200, f"/ready answers {status}: still starting, or no dsv41 at this address")
    return f"serves {_model(endpoint)}"


def _arithmetic(endpoint: Endpoint) -> str:
    content = _content(endpoint, questions.ARITHMETIC)
    _need(last_number(content) == 42, f"19 + 23 gave {content!r}, not 42")
    return "19 + 23 = 42"


def last_number(text: str) -> int | None:
    """The last integer in a text: "19 + 23 = 42." says 42."""
    numbers = re.findall(r"-?\d+", text)
    return int(numbers[-1]) if numbers else None


def _content(endpoint: Endpoint, question: Question) -> str:
    choice, _ = _ask(endpoint, question)
    content = choice["message"]["content"]
    _need(content, f"{question.name}: the content is {content!r} ({choice['finish_reason']})")
    return str(content).strip()


def _thinking(endpoint: Endpoint) -> str:
    choice, _ = _ask(endpoint, questions.THINKING)
    message = choice["message"]
    _need(message.get("reasoning_content"), "no reasoning came back though thinking is on")
    _need("42" in (message["content"] or ""), f"19 + 23 gave {message['content']!r}")
    return "reasoning and answer are apart"


def _json(endpoint: Endpoint) -> str:
    value = json.loads(_content(endpoint, questions.JSON))
    _need(value == {"ok": True}, f"asked for {{'ok': true}}, got {value!r}")
    return "a JSON object"


def _tool(endpoint: Endpoint) -> str:
    """A call, its result, and the answer that uses it."""
    choice, _ = _ask(endpoint, questions.TOOL_CALL)
    _need(choice["finish_reason"] == "tool_calls", f"finish_reason is {choice['finish_reason']}")
    function = choice["message"]["tool_calls"][0]["function"]
    called = (function["name"], json.loads(function["arguments"]))
    _need(called == questions.TOOL_CALL.call, f"called {called!r}")
    content = _content(endpoint, questions.TOOL_RESULT)
    _need("18" in content, f"the tool said 18C, the answer {content!r}")
    return f"{called[0]} was called and its result used"


def _lengths(endpoint: Endpoint) -> str:
    for length in questions.PROMPT_TOKENS:
        choice, usage = _ask(endpoint, questions.padded(length))
        found = usage["prompt_tokens"]
        _need(found == length, f"the prompt of {length} tokens was counted as {found}")
        content = choice["message"]["content"]
        _need(last_number(content or "") == 42, f"{length} prompt tokens gave {content!r}")
    return "prompts of " + ", ".join(map(str, questions.PROMPT_TOKENS)) + " tokens"


def _batch(endpoint: Endpoint) -> str:
    """A full batch of different questions at once: each answer is the one it has alone."""
    kinds = [q for q in questions.FITTED if q.content and not q.reasoning]
    asked = [kinds[n % len(kinds)] for n in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(lambda question: _content(endpoint, question), asked))
    for question, answer in zip(asked, answers, strict=True):
        _need(is_prose(answer), f"{question.name} in a full batch is no text: {answer[:60]!r}")
    alone = [_content(endpoint, question) for question in asked[:2]]
    _need(answers[:2] == alone, f"a full batch changed an answer: {answers[:2]!r}, alone {alone!r}")
    return f"{STREAMS} streams at once"


def is_prose(text: str) -> bool:
    """Whether a text could be an answer: printable, mostly ASCII, not one character repeated."""
    plain = sum(c.isascii() and (c.isprintable() or c.isspace()) for c in text)
    return bool(text) and plain >= 0.9 * len(text) and (len(text) < 8 or len(set(text)) > 2)


def _loop(endpoint: Endpoint) -> str:
    choice, usage = _ask(endpoint, questions.LOOP, max_tokens=LOOP_ANSWER)
    _need(choice["finish_reason"] == "stop", f"finish_reason is {choice['finish_reason']}")
    spent = usage["completion_tokens"]
    _need(spent < LOOP_ANSWER, f"the endless answer ran to {spent} tokens")
    return f"the endless answer was stopped; {spent} tokens of it were kept"


LADDER: tuple[tuple[str, Check], ...] = (
    ("ready", _ready),
    ("arithmetic", _arithmetic),
    ("thinking", _thinking),
    ("json", _json),
    ("tool", _tool),
    ("lengths", _lengths),
    ("batch", _batch),
    ("loop", _loop),
)
