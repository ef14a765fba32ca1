"""All Engram layers' reads begun with the first one's, so that a drive has them at the same time.

An engine that looks one layer up after the other on one stream waits for a drive twice: for a
token's 24 rows of the first table, and then for those of the second. The ids of both are there at
the same time, so both reads are begun (`Lookup.submit`) before the first is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dsv41.errors import CheckFailed

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.adapters.chunks import Chunks
    from dsv41.adapters.staging import Lookup


class Table(Protocol):
    """The table of one layer: who reads its rows, and which of a token's ids are this rank's."""

    reader: Lookup

    def own(self, indices: Tensor) -> Tensor:
        """Ids [tokens, columns] -> [tokens, own columns]."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A lookup that was begun: of which ids, how many, and whether a graph captured it.

    `ids` keeps their memory: while it is held, the same address means the same ids.
    """

    ids: Tensor
    count: int
    captured: bool

    def of(self, indices: Tensor) -> bool:
        """Whether these are the ids: the same memory, in the same form."""
        return _form(self.ids) == _form(indices)


class Together:
    """The tables of a model in the order in which their layers look up.

    Ids come from one tensor [tokens, layers, columns], of which each layer is given its slice; a
    layer that is given anything else is looked up alone. Calls come from one thread, on streams
    that are ordered one after the other.

    Args:
        tables: all tables, in the order of the slices.
        chunks: what is read for the next chunk, begun after the last table's lookup.
    """

    def __init__(self, tables: Sequence[Table], *, chunks: Chunks | None = None) -> None:
        self.tables, self.chunks = tuple(tables), chunks
        self.begun: dict[int, Begun] = {}
        self.early = self.alone = 0  # lookups made in Python whose reads were begun early, or not

    def lookup(self, place: int, indices: Tensor, out: Tensor) -> None:
        """Rows of one table: ids [tokens, columns] of a slice -> out [tokens, own columns, 256]."""
        captured = self._captured(place)
        if self.chunks is not None and not captured:
            self.chunks.join()
        found = self.begun.pop(place, None)
        if found is not None and (found.captured != captured or not found.of(indices)):
            self._forget(place, found, captured=captured)
            found = None
        self.early, self.alone = self.early + bool(found), self.alone + (not found)
        if found is None:
            found = self._begin(place, indices, captured=captured)
            for other in range(place + 1, len(self.tables)):
                self._begin_beside(indices, place, other, captured=captured)
        self.tables[place].reader.collect(found.count, out)
        if self.chunks is not None and not captured and place == len(self.tables) - 1:
            self.chunks.begin()

    def _begin(self, place: int, indices: Tensor, *, captured: bool) -> Begun:
        table = self.tables[place]
        count = table.reader.submit(table.own(indices))
        return Begun(ids=indices, count=count, captured=captured)

    def _begin_beside(self, indices: Tensor, place: int, other: int, *, captured: bool) -> None:
        left = self.begun.pop(other, None)
        if left is not None:  # a pass that ended between the layers
            self._forget(other, left, captured=captured)
        ids = slice_beside(indices, place, other, layers=len(self.tables))
        if ids is not None:
            self.begun[other] = self._begin(other, ids, captured=captured)

    def _forget(self, place: int, left: Begun, *, captured: bool) -> None:
        """Wait for what nobody will collect; what a graph captured and never ran is nothing."""
        if left.captured:
            return
        if captured:
            says = "engram_ahead: a pass of the model ended between two Engram layers."
            raise CheckFailed("D491", says, fix="set DSV41_ENGRAM_AHEAD=0 and report it")
        self.tables[place].reader.drop(left.count)

    def _captured(self, place: int) -> bool:
        import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

        return self.tables[place].reader.cuda and torch.cuda.is_current_stream_capturing()


def slice_beside(indices: Tensor, place: int, other: int, *, layers: int) -> Tensor | None:
    """The ids of another layer: they lie beside these in memory.

    Args:
        indices: ids [tokens, columns], the slice `ids[:, place]` of ids [tokens, layers, columns].
        place: which slice it is.
        other: which is wanted.
        layers: how many there are.

    Returns:
        `ids[:, other]`, or None when `indices` does not have the form of such a slice.
    """
    if indices.dim() != 2 or not indices.numel():
        return None
    columns = indices.shape[1]
    strides, begin = (layers * columns, 1), indices.storage_offset()
    if indices.stride() != strides or begin % strides[0] != place * columns:
        return None
    moved = begin + (other - place) * columns
    held = indices.untyped_storage().nbytes() // indices.element_size()
    if moved + (indices.shape[0] - 1) * strides[0] + columns > held:
        return None
    return indices.as_strided(indices.shape, strides, moved)


def _form(ids: Tensor) -> tuple[Any, ...]:
    return ids.data_ptr(), ids.shape, ids.stride(), ids.dtype
