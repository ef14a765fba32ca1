"""Rows of the next prompt chunk, asked for while a step computes.

Which rows a chunk needs follows from its tokens and the three before them, so they can be read
before its step begins. One chunk at most is held. It is used for exactly the look-back windows it
was asked for: whatever the next step turns out to be, it never gets rows of other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsv41.local.model.engram import Rows

Windows = list[tuple[int, ...]]
FRESH = -1  # no slot yet: the chunk begins a sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Ahead:
    """A chunk to ask for: token ids that will follow what `slot` holds after the present step."""

    slot: int = FRESH
    tokens: tuple[int, ...] = ()


@dataclass(kw_only=True, slots=True)
class Counts:
    """Row ids of this rank that were asked for ahead; asked = used + dropped + those still held."""

    asked: int = 0
    used: int = 0
    dropped: int = 0


class Early:
    """The lookup under way for the next chunk, if any; used by the thread that steps."""

    def __init__(self, counts: Counts | None = None) -> None:
        self.counts = counts or Counts()
        self._windows: Windows = []
        self._rows: Sequence[Rows] = ()
        self._ids = 0

    def ask(self, windows: Windows, begin: Callable[[], Sequence[Rows]], *, ids: int) -> None:
        """Begin a lookup of `ids` row ids, one for each layer, in place of the one held."""
        self.drop()
        self._rows = begin()
        self._windows, self._ids = windows, ids
        self.counts.asked += ids

    def take(self, windows: Windows) -> Sequence[Rows] | None:
        """Give the lookup of exactly these windows; None when there is no such one."""
        if not self._rows or windows != self._windows:
            return None
        found = self._rows
        self.counts.used += self._ids
        self._forget()
        return found

    def drop(self) -> None:
        """Let the held lookup go; its tickets return when the last read into them has ended.

        An error of a row that nobody needs is left to the store's counters.
        """
        if self._rows:
            self.counts.dropped += self._ids
            self._forget()

    def _forget(self) -> None:
        self._windows, self._rows, self._ids = [], (), 0
