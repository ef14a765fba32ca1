"""The works of one `Lookup`, one per number of ids, and which of them may yet have failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dsv41.rows.structs import Work


class Works:
    """Works by number of ids, and the ones that are worth a look.

    A host function may yet run on one number's work while another number is asked for, so each has
    its own, at an address that stays, for good. One takes 1.3 kB of Python. SGLang's adapter asks
    for at most 32,768 ids, in whole tokens of some columns: 1,365 works, 2 MB, with 24 of them.
    vLLM's asks for as many tokens as a step may have: up to 8,192 works, 11 MB a layer, where
    max_num_batched_tokens is 8,192 (profile tp4-cycle).

    A lookup that was begun is looked at until the library has counted it as done (`generation`);
    one that a graph captured always, since a replay does not say that it begins. A work's status is
    that of its last lookup alone: of two in a row that fail, or one that fails and one that does
    not, before anybody looks, the first is not seen. A store opened for production does not get
    that far: it ends the process.
    """

    def __init__(self) -> None:
        self._all: dict[int, Work] = {}
        self._begun: dict[int, int] = {}  # lookups that were begun, captured ones not counted
        self._watched: dict[int, None] = {}
        self._captured: set[int] = set()

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, count: int) -> Work:
        return self._all[count]

    def watched(self) -> int:
        """How many works the next `failures` looks at."""
        return len(self._watched)

    def begin(self, count: int, *, make: Callable[[int], Work], captured: bool) -> Work:
        """The work of so many ids, made at first, about to be looked up (or to be captured)."""
        if count not in self._all:
            self._all[count], self._begun[count] = make(count), 0
        if captured:
            self._captured.add(count)
        else:
            self._begun[count] += 1
        self._watched[count] = None
        return self._all[count]

    def failures(self) -> Iterator[int]:
        """Statuses (`dsv41_rows_status` above 0) of lookups that ended badly, each given once."""
        for count in list(self._watched):
            work = self._all[count]
            if work.status > 0:
                status, work.status = work.status, 0
                self._begun[count] -= 1  # which `generation` does not count
                yield status
            elif count not in self._captured and work.generation >= self._begun[count]:
                del self._watched[count]
