"""The real tokenizer and what is made of it, loaded once in a test process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from dsv41.geometry import released_tokenizer
from dsv41.local.fixture.tokenizer_files import packed_tokenizer
from dsv41.local.http.constraint import Grammars
from dsv41.local.http.prompt import Prompts

if TYPE_CHECKING:
    from collections.abc import Iterable

HELLO = [{"role": "user", "content": "Hello"}]
OFF = {"thinking": {"type": "disabled"}}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}


@cache
def text() -> str:
    """Give the text of the released tokenizer.json."""
    return released_tokenizer(packed_tokenizer().read_text(encoding="utf-8"))


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(text())


@cache
def prompts() -> Prompts:
    return Prompts(text(), models=["m", "other"])


@cache
def grammars() -> Grammars:
    return Grammars(text())


def ids_of(words: str) -> list[int]:
    return list(tokenizer().encode(words, add_special_tokens=False).ids)


def spelled(tokens: Iterable[int]) -> str:
    return tokenizer().decode(list(tokens), skip_special_tokens=False)
