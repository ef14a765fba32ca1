"""Rows of the next prefill chunk, read into the row cache while this one is computed.

A long prompt is computed chunk after chunk, and its tokens are all known, so the rows of the next
chunk can be named before the engine asks for them. They are begun behind this chunk's own lookups
and waited for before the next one's, by host functions on the engine's stream; the lookups then
find them in the store's cache. What is named wrongly is read for nothing and changes no answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsv41.adapters.staging import SCALE_BYTES, WEIGHT_BYTES
from dsv41.geometry.ngram import hash_columns
from dsv41.rows.structs import Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsv41.adapters.staging import Lookup
    from dsv41.geometry import Engram

# An engine prepares at most two steps ahead of the device: one chunk is waited for, one is being
# read, one is named.
SLOTS = 4
# A set of the cache has four ways: with room for four chunks few rows of one drive each other out.
CHUNKS_CACHED = 4
CACHED_ROW_BYTES = 280  # key, CRC, 256 + 8 bytes: struct Slot of csrc/src/cache.hpp


def cache_bytes(ids: int) -> int:
    """Bytes of a store's cache that hold what is read ahead: `ids` of a chunk and layer."""
    return CHUNKS_CACHED * CACHED_ROW_BYTES * ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One table: who reads it, its geometry's name, and this rank's hash columns."""

    reader: Lookup
    layer_id: int
    columns: Sequence[int]


@dataclass(kw_only=True, slots=True)
class Part:
    """Ids of one chunk and layer and where its rows go, which nobody reads: the cache has them."""

    layer: Layer
    ids: NDArray[Any]
    rows: NDArray[Any]
    work: Work
    begun: int = 0

    def busy(self) -> bool:
        """Whether it was begun and neither waited for nor failed yet."""
        return int(self.work.generation) < self.begun and int(self.work.status) <= 0

    def name(self, ids: NDArray[Any]) -> bool:
        """Take the ids of the next chunk, int64 [n]; whether the read before failed.

        A store opened for production ends the process there.
        """
        failed = int(self.work.status) > 0
        # `generation` counts only lookups that ended well
        self.work.status, self.begun = 0, int(self.work.generation)
        self.ids[: len(ids)] = ids
        self.work.count = len(ids)
        return failed


def _part(layer: Layer, tokens: int) -> Part:
    import numpy as np  # noqa: PLC0415 - only where it is used

    count = tokens * len(layer.columns)
    ids, rows = np.full(count, -1, "i8"), np.zeros(count * (WEIGHT_BYTES + SCALE_BYTES), "u1")
    at = rows.ctypes.data
    work = Work(
        size=ctypes.sizeof(Work),
        id_bytes=8,
        store=layer.reader.store.open_handle(),
        ids=ids.ctypes.data,
        weights=ctypes.cast(at, ctypes.POINTER(ctypes.c_uint8)),
        scales=ctypes.cast(at + count * WEIGHT_BYTES, ctypes.POINTER(ctypes.c_uint8)),
    )
    return Part(layer=layer, ids=ids, rows=rows, work=work)


@dataclass(kw_only=True)
class Counts:
    """What was done: ids asked for ahead, chunks named and begun, and chunks left for want of room.

    `asked` counts ids of this rank over all layers, `failed` reads of one layer's rows of a chunk.
    """

    asked: int = 0
    named: int = 0
    begun: int = 0
    busy: int = 0
    failed: int = 0


@dataclass(kw_only=True)
class Chunks:
    """What is read ahead of one model, by one thread, on streams ordered one after the other.

    Args:
        layers: the tables.
        engram: their geometry.
        token_map: int64 [vocabulary], token id -> compressed id.
        dead: token ids that take part in no n-gram (images).
        tokens: most tokens of a step.
    """

    layers: Sequence[Layer]
    engram: Engram
    token_map: NDArray[Any]
    dead: Sequence[int]
    tokens: int
    counts: Counts = field(default_factory=Counts)
    slots: list[list[Part]] = field(default_factory=list)
    named: list[Part] = field(default_factory=list)
    running: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = [[_part(layer, self.tokens) for layer in self.layers] for _ in range(SLOTS)]

    def name(self, requests: Sequence[tuple[Sequence[int], int, int]]) -> None:
        """Say what the next step computes; it replaces what was named and not begun.

        Args:
            requests: a prompt's token ids, how many of them will be computed by then, and how many
                the next step takes.
        """
        self.named = []
        requests = [one for one in requests if one[2] > 0]
        slot = next((s for s in self.slots if not any(part.busy() for part in s)), None)
        if not requests or slot is None:
            self.counts.busy += bool(requests)
            return
        terms = self._terms(requests)
        for part in slot:
            self.counts.failed += part.name(self._ids(part.layer, terms).reshape(-1))
            self.counts.asked += part.work.count
        self.named = slot
        self.counts.named += 1

    def begin(self) -> None:
        """Begin to read what was named, behind what the current stream has to do."""
        for part in self.named:
            part.begun += 1
            part.layer.reader.call("submit", part.work)
        self.counts.begun += bool(self.named)
        self.running += self.named
        self.named = []

    def join(self) -> None:
        """Let the current stream wait for what was begun."""
        running, self.running = self.running, []
        for part in running:
            part.layer.reader.call("wait", part.work)

    def _terms(self, requests: Sequence[tuple[Sequence[int], int, int]]) -> list[NDArray[Any]]:
        """Compressed ids 0 .. max_ngram - 1 positions back, each int64 [tokens of all requests]."""
        import numpy as np  # noqa: PLC0415 - as above

        found = [self._windows(*request) for request in requests]
        return [np.concatenate(term)[: self.tokens] for term in zip(*found, strict=True)]

    def _windows(self, prompt: Sequence[int], start: int, count: int) -> list[NDArray[Any]]:
        """One request's; a look-back past its start or a dead token blocks all longer ones."""
        import numpy as np  # noqa: PLC0415 - as above

        reach, pad = self.engram.max_ngram - 1, self.engram.pad_id
        first = max(0, start - reach)
        tokens = np.asarray(prompt[first : start + count], dtype=np.int64)
        missing = np.full(reach - (start - first), -1, dtype=np.int64)
        tokens = np.concatenate([missing, tokens])
        known = (tokens >= 0) & (tokens < len(self.token_map)) & ~np.isin(tokens, self.dead)
        values = np.where(known, self.token_map[np.where(known, tokens, 0)], pad)
        here = len(tokens) - reach
        terms, open_ = [], np.ones(here, dtype=bool)
        for back in range(reach + 1):
            of = slice(reach - back, reach - back + here)
            open_ = open_ & known[of]
            terms.append(np.where(open_, values[of], pad))
        return terms

    def _ids(self, layer: Layer, terms: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Row ids int64 [tokens, own columns]."""
        import numpy as np  # noqa: PLC0415 - as above

        found = hash_columns(
            terms,
            multipliers=self.engram.layer_multipliers(layer.layer_id),
            primes=self.engram.primes(layer.layer_id),
            offsets=self.engram.offsets(layer.layer_id),
            columns=layer.columns,
        )
        return np.stack(found, axis=1)
