"""Warm an endpoint up: prompts of growing length, then one full batch whose answers must be prose.

Long prompts compile and allocate what the first user would wait for; a full batch shows garbage
that single streams hide (NaN logits came out as mixed scripts, MIA-README).
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dsv41 import questions
from dsv41.api import Endpoint
from dsv41.errors import EngineFailed

SHORT = 24  # tokens of an answer to a long prompt
BATCH = 48  # tokens of an answer in the full batch
PLAIN = 0.7  # of the visible characters of prose in a Latin script are ASCII
_ASKED = tuple(q for q in questions.FITTED if q.content and not q.reasoning)
_WRONG = ("CJK", "HANGUL", "HIRAGANA", "KATAKANA", "BOPOMOFO", "YI ")


def lengths(endpoint: Endpoint, words: tuple[int, ...]) -> Iterator[tuple[int, float]]:
    """Send a prompt of each length in words; the length and the seconds that it took."""
    model = _model(endpoint)
    for count in words:
        began = time.monotonic()
        text = "Go on with this list: " + " ".join(f"item{n}" for n in range(count))
        _ask(endpoint, model, questions.ask(text, **questions.THINKING_OFF), tokens=SHORT)
        yield count, time.monotonic() - began


def batch(endpoint: Endpoint, slots: int) -> list[str]:
    """`slots` different questions at once; EngineFailed D433 when an answer is no prose."""
    model = _model(endpoint)
    asked = [_ASKED[n % len(_ASKED)] for n in range(slots)]
    with ThreadPoolExecutor(slots) as pool:
        found = list(
            pool.map(lambda q: _ask(endpoint, model, dict(q.request), tokens=BATCH), asked)
        )
    for question, text in zip(asked, found, strict=True):
        wrong = fault(text)
        if wrong:
            raise EngineFailed(
                "D433",
                f"A full batch of {slots} gave no prose: {question.name} has {wrong}, "
                f"{text[:60]!r}.",
                fix="do not serve with it: dsv41 stop --fleet FLEET, then dsv41 diagnose on the "
                "head's log",
            )
    return found


def fault(text: str) -> str:
    """What keeps a text from being prose in a Latin script; empty when nothing does."""
    seen = [c for c in text if not c.isspace()]
    if not seen:
        return "no text"
    other = next((c for c in seen if unicodedata.name(c, "").startswith(_WRONG)), "")
    if other:
        return f"{other!r} of another script"
    if sum(c.isascii() and c.isprintable() for c in seen) < PLAIN * len(seen):
        return "mostly no letters, digits or punctuation"
    if len(seen) >= 8 and len(set(seen)) <= 2:
        return "one character over and over"
    return ""


def _model(endpoint: Endpoint) -> str:
    return str(endpoint.models()[0]["id"])


def _ask(endpoint: Endpoint, model: str, request: dict[str, Any], *, tokens: int) -> str:
    answer = endpoint.chat(**{"model": model, "temperature": 0, "max_tokens": tokens, **request})
    return str(answer["choices"][0]["message"]["content"] or "")
