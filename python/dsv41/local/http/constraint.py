"""Answers that must have a form: a JSON object, a JSON schema, a call of one of the tools.

llguidance says which tokens may come next. Two things are added, both for a model that does not
end by itself (the fixture on a prompt it was not fitted to):

- the form begins after the thinking. The end of the text is forbidden before it, and thinking that
  goes on too long is ended;
- an answer that goes on too long is closed: from then on only the token that ends the string, the
  list, the object or the call soonest is allowed, wherever the form allows one.

So every formed answer ends and is whole, unless `max_tokens` leaves too little room for it.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import llguidance
import numpy as np

from dsv41.local.http.closing import Position
from dsv41.local.http.dsml import calls_grammar, spelled

if TYPE_CHECKING:
    import numpy.typing as npt

    from dsv41.local.http.prompt import Need

    Mask = npt.NDArray[np.int32]

VOCAB = 129280
WORDS = VOCAB // 32
EOS = 1
THINK_END = 128822
DSML = 128825
PATIENCE = 64  # tokens of thinking, then of the answer, after which an end is sought
FIRST_BYTES = 8  # where so few tokens are allowed and DSML is one, the others are its first bytes


class Grammars:
    """Makes constraints for one tokenizer; loading it takes about a second, once."""

    def __init__(self, tokenizer: str) -> None:
        """`tokenizer` is the text of a tokenizer.json."""
        self._text = tokenizer
        self._lock = threading.Lock()
        self._loaded: llguidance.LLTokenizer | None = None

    def load(self) -> llguidance.LLTokenizer:
        """Give the tokenizer; the first call makes it. From any thread."""
        with self._lock:
            if self._loaded is None:
                self._loaded = llguidance.LLTokenizer(
                    self._text, n_vocab=VOCAB, eos_token=EOS, slices=[]
                )
                self._text = ""  # 8 MB that nobody needs any more
            return self._loaded

    def constraint(self, need: Need, *, max_tokens: int) -> Formed:
        """Compile what a request needs.

        Raises ValueError with what cannot be compiled.
        """
        tokenizer = self.load()
        matcher = llguidance.LLMatcher(tokenizer, _grammar(need), log_level=0)
        if matcher.is_error():
            raise ValueError(_first_line(matcher.get_error()))
        matcher.compute_bitmask()  # finds out that nothing can begin, where nothing can
        if matcher.is_stopped() and not matcher.is_accepting():
            raise ValueError("no answer can have this form")
        return Formed(
            matcher,
            tokenizer,
            markup=need.kind == "tool_call_required",
            thinking=need.after_thinking,
            patience=min(PATIENCE, max_tokens // 2),
        )


class Formed:
    """The constraint of one answer."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        tokenizer: llguidance.LLTokenizer,
        *,
        markup: bool,
        thinking: bool,
        patience: int,
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._markup = markup
        self._thinking = thinking
        self._patience = patience
        self._position = Position(markup=markup)
        self._count = 0

    def mask(self) -> Mask:
        """Which ids may come next: int32 words, bit i of word w is id 32 * w + i."""
        late = self._count >= self._patience
        if self._thinking:
            return _only(THINK_END) if late else _all_but(EOS)
        allowed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)[:WORDS]
        if late:
            for token in self._closers():
                if _has(allowed, token):
                    return _only(token)
        if not self._markup:
            return allowed & _all_but(DSML)  # JSON may hold that text, but nobody means it
        if _has(allowed, DSML) and int(np.bitwise_count(allowed).sum()) <= FIRST_BYTES:
            return _only(DSML)
        return allowed

    def accept(self, token: int) -> bool:
        """Take the sampled token; True when the form is complete and nothing may follow."""
        self._count += 1
        if self._thinking:
            if token == THINK_END:
                self._thinking, self._count = False, 0
            return False
        if not self._matcher.consume_token(token):
            raise RuntimeError(_first_line(self._matcher.get_error()))
        self._position.feed(self._tokenizer.decode_bytes([token]))
        if self._matcher.is_stopped() and not self._matcher.is_accepting():
            raise RuntimeError("the form has come to a place from which it cannot be completed")
        return bool(self._matcher.is_stopped())

    def _closers(self) -> list[int]:
        texts = self._position.closers()
        return [EOS, *(self._tokenizer.tokenize_str(text)[0] for text in texts)]


def _grammar(need: Need) -> str:
    if need.kind == "tool_call_required":
        tools = [tool["function"] for tool in json.loads(need.schema)]
        return llguidance.LLMatcher.grammar_from_lark(calls_grammar(tools, several=need.several))
    if need.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(need.schema)
    schema = json.loads(need.schema) if need.schema else {"type": "object"}
    return llguidance.LLMatcher.grammar_from_json_schema(spelled(schema))


def _only(token: int) -> Mask:
    words = np.zeros(WORDS, dtype=np.uint32)
    words[token // 32] = 1 << (token % 32)
    return words.view(np.int32)


def _all_but(token: int) -> Mask:
    return ~_only(token)


def _has(words: Mask, token: int) -> bool:
    return bool(words.view(np.uint32)[token // 32] >> (token % 32) & 1)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["unknown reason"])[0]
