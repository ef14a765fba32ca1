"""Stop an answer that repeats itself without end.

The rules are those of the three- and four-Spark SGLang recipe (MiaAI-Lab/DeepSeek-V4.1-Flash-
2xDGX-Spark and its relatives: `DSV41_LOOP_ABORT` and the variables beside it). In order:

1. the newest tokens are one token, `identical` times or more: one of them is kept;
2. the newest tokens are one block of `ngram`..`ngram_max` tokens, `repeats` times: one block is
   kept, of the shortest period that fits;
3. the newest `line_repeats` non-blank lines are equal and at least `line_min` characters long:
   everything is kept.

The state is rolling. A token costs at most one step per watched period, however long the answer
is; the text is decoded only when the newest two lines can be equal.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Decode = Callable[[list[int]], str]

LINE_WINDOW = 512  # tokens whose text the line rule looks at
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """When an answer counts as a loop; 0 turns a rule off, `abort` 0 all of them."""

    abort: int = 1
    ngram: int = 32
    ngram_max: int = 256
    repeats: int = 4
    identical: int = 64
    line_repeats: int = 8
    line_min: int = 16

    @property
    def watches_periods(self) -> bool:
        """Whether rule 2 is on."""
        return self.abort > 0 and self.ngram > 0 and self.repeats > 0

    @property
    def enabled(self) -> bool:
        """Whether any rule is on."""
        rules = self.watches_periods or self.identical > 0 or self.line_repeats > 0
        return self.abort > 0 and rules


class LoopDetector:
    """Watches the tokens of one answer.

    `decode` maps token ids to text, special tokens kept; without it the line rule is off. A
    `decode` that raises skips the line rule for that push and is reported once.
    """

    def __init__(self, config: LoopConfig | None = None, decode: Decode | None = None) -> None:
        self.config = config or LoopConfig()
        self.kind: str | None = None
        self._count = 0
        self._newest: int | None = None
        self._run = 0
        longest = max(self.config.ngram, self.config.ngram_max)
        self._periods = (
            _Periods(self.config.ngram, longest) if self.config.watches_periods else None
        )
        lines = self.config.abort > 0 and self.config.line_repeats > 0
        self._lines = _Lines(self.config, decode) if lines and decode is not None else None

    def push(self, tokens: Sequence[int]) -> int | None:
        """Take the next tokens; once they end in a loop, say how many tokens of the answer to keep.

        The rules are judged once, after the last of `tokens`. `kind` then names the rule that
        matched: "identical", "ngram" or "line".
        """
        if not self.config.enabled:
            return None
        for token in tokens:
            self._take(token)
        for kind, rule in (("identical", self._identical), ("ngram", self._ngram)):
            if (keep := rule()) is not None:
                self.kind = kind
                return keep
        if self._lines is not None and self._lines.equal():
            self.kind = "line"
            return self._count
        return None

    def _take(self, token: int) -> None:
        self._count += 1
        self._run = self._run + 1 if token == self._newest else 1
        self._newest = token
        if self._periods is not None:
            self._periods.take(token)
        if self._lines is not None:
            self._lines.take(token)

    def _identical(self) -> int | None:
        if 0 < self.config.identical <= self._run:
            return self._count - self._run + 1
        return None

    def _ngram(self) -> int | None:
        if self._periods is None:
            return None
        again = self.config.repeats - 1
        period = self._periods.shortest(again)
        return None if period is None else self._count - again * period


class _Periods:
    """For every watched period, how many of the newest tokens equal the one a period earlier."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._count = 0
        self._recent: deque[int] = deque()
        self._places: dict[int, deque[int]] = {}
        self._runs: dict[int, int] = {}

    def take(self, token: int) -> None:
        """Only periods at which this token was seen go on; all other runs end here."""
        places = self._places.setdefault(token, deque())
        runs, here, shortest = self._runs, self._count, self._shortest
        self._runs = {
            here - place: runs.get(here - place, 0) + 1
            for place in places
            if here - place >= shortest
        }
        places.append(here)
        self._recent.append(token)
        self._count += 1
        if len(self._recent) > self._longest:
            self._forget(self._recent.popleft())

    def _forget(self, token: int) -> None:
        places = self._places[token]
        places.popleft()
        if not places:
            del self._places[token]

    def shortest(self, again: int) -> int | None:
        """Find the shortest period whose block came `again` more times."""
        if again == 0:
            return self._shortest if self._count >= self._shortest else None
        fits = (period for period, run in self._runs.items() if run >= again * period)
        return min(fits, default=None)


class _Lines:
    """The newest lines of the answer.

    A multi-byte character may be split between tokens, an ASCII character never is. So the ASCII
    characters of a line can be collected token by token, and two lines can be equal only when those
    are: the text itself is decoded only then. A line without any ASCII character is not judged.
    """

    def __init__(self, config: LoopConfig, decode: Decode) -> None:
        self._config = config
        self._decode = decode
        self._recent: deque[int] = deque(maxlen=LINE_WINDOW)
        self._pieces: dict[int, str | None] = {}
        self._line = ""
        self._wide = False
        self._length = 0
        # No line holds a newline: these equal no line and not each other.
        self._last: str | None = "\n"
        self._before: str | None = "\n\n"
        self._warned = False

    def take(self, token: int) -> None:
        self._recent.append(token)
        if token not in self._pieces:
            self._pieces[token] = self._piece(token)
        piece = self._pieces[token]
        if piece is None:
            self._wide = True
            return
        head, *rest = piece.split("\n")
        self._extend(head)
        for part in rest:
            self._close()
            self._extend(part)

    def _piece(self, token: int) -> str | None:
        """Keep the ASCII characters of a token; None: it has others only, or cannot be decoded."""
        try:
            text = self._decode([token])
        except Exception:  # noqa: BLE001  whatever an engine's tokenizer raises; told of in `equal`
            return None
        piece = text.encode("ascii", "ignore").decode("ascii")
        return None if text and not piece else piece

    def _extend(self, part: str) -> None:
        if self._length < LINE_WINDOW:  # a longer line leaves no room for a second one
            self._line += part
            self._length += 1

    def _close(self) -> None:
        line = self._current()
        if line != "":
            self._last, self._before = line, self._last
        self._line, self._wide, self._length = "", False, 0

    def _current(self) -> str | None:
        line = self._line.rstrip()
        return None if self._wide and not line else line

    def _may_be_equal(self) -> bool:
        newest, other = self._current(), self._last
        if newest == "":
            newest, other = self._last, self._before
        # With fewer than three lines the first may be cut by the window: not judged here.
        unknown = self._config.line_repeats < 3 or newest is None or other is None
        return unknown or newest == other

    def equal(self) -> bool:
        """Whether the newest `line_repeats` non-blank lines are one line, long enough."""
        if not self._may_be_equal():
            return False
        try:
            text = self._decode(list(self._recent))
        except Exception:  # noqa: BLE001  an engine's tokenizer; the answer itself must go on
            self._warn()
            return False
        lines = [line.rstrip() for line in text.split("\n") if line.strip()]
        newest = lines[-self._config.line_repeats :]
        same = len(newest) == self._config.line_repeats and len(set(newest)) == 1
        return same and len(newest[0]) >= self._config.line_min

    def _warn(self) -> None:
        if not self._warned:
            log.warning("the line rule of the loop stop is skipped: the tokens cannot be decoded")
        self._warned = True
