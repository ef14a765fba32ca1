"""Which rank owns which rows of an Engram table.

Any rule is right as long as exactly one rank owns each row: ranks answer foreign ids with zero rows
and the sum over the ranks is whole. The rules differ in how evenly the reads fall.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsv41.errors import UsageError
from dsv41.geometry.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dsv41.geometry.engram import Engram

DEFAULT_PARTITION = "weighted"

# Expected share of distinct n-grams per order inside a prefill chunk, in thousandths: measured
# .161 / .45-.65 / .85 for orders 2, 3, 4. Longer n-grams hardly ever repeat.
UNIQUE_PER_MILLE = {2: 161, 3: 550, 4: 850}
UNIQUE_PER_MILLE_BEYOND = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Global rows ``lo .. hi-1``, kept at local rows ``base ..`` of their rank."""

    lo: int
    hi: int
    base: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Ownership of the rows of one table; a bijection between global rows and (rank, local row).

    ``table[rank]`` lists the rank's ranges, ascending in both global and local rows and merged
    where they touch, so that there are never more than there are hash columns. A rank may own none.
    """

    name: str
    tp: int
    layer_id: int
    total_rows: int
    table: tuple[tuple[Range, ...], ...]
    _order: tuple[tuple[int, Range], ...] = field(init=False, repr=False, compare=False)
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        order = sorted(
            ((rank, part) for rank, parts in enumerate(self.table) for part in parts),
            key=lambda entry: entry[1].lo,
        )
        object.__setattr__(self, "_order", tuple(order))
        object.__setattr__(self, "_starts", tuple(part.lo for _, part in order))

    def ranges(self, rank: int) -> tuple[Range, ...]:
        """What one rank owns."""
        return self.table[Shard(rank=rank, tp=self.tp).rank]

    def local_rows(self, rank: int) -> int:
        """How many rows one rank owns."""
        return sum(part.hi - part.lo for part in self.ranges(rank))

    def owner(self, row: int) -> int:
        """Rank that owns a global row."""
        return self._find(row)[0]

    def to_local(self, row: int) -> tuple[int, int]:
        """Owner of a global row, and the row's number there."""
        rank, part = self._find(row)
        return rank, part.base + row - part.lo

    def to_global(self, rank: int, local: int) -> int:
        """Global row that a rank keeps at a local row."""
        parts = self.ranges(rank)
        if not 0 <= local < self.local_rows(rank):
            raise _refusal(
                f"rank {rank} owns {self.local_rows(rank)} rows, local row {local} is none of them"
            )
        part = parts[bisect_right(parts, local, key=lambda entry: entry.base) - 1]
        return part.lo + local - part.base

    def locals_of(self, rank: int, rows: Any) -> Any:
        """Local rows of global ones, -1 for a foreign or impossible id, on arrays.

        Args:
            rank: the rank asked.
            rows: an integer array or tensor of any shape (numpy, torch; a Python int as well).
        """
        found = rows * 0 - 1
        for part in self.ranges(rank):
            inside = (rows >= part.lo) & (rows < part.hi)
            found = found + inside * (rows - part.lo + part.base + 1)
        return found

    def globals_of(self, rank: int, rows: Any) -> Any:
        """Global rows of one rank's local ones, -1 where it has no such row, on arrays.

        Args:
            rank: the rank asked.
            rows: as for :meth:`locals_of`.
        """
        found = rows * 0 - 1
        for part in self.ranges(rank):
            inside = (rows >= part.base) & (rows < part.base + part.hi - part.lo)
            found = found + inside * (rows - part.base + part.lo + 1)
        return found

    def _find(self, row: int) -> tuple[int, Range]:
        if not 0 <= row < self.total_rows:
            raise _refusal(f"row {row} is outside the table of {self.total_rows} rows")
        return self._order[bisect_right(self._starts, row) - 1]


def partition(name: str, *, engram: Engram, layer_id: int, tp: int) -> Partition:
    """Cut the table of one layer for ``tp`` ranks.

    Args:
        name: one of :data:`PARTITIONS`.
        engram: gives the hash columns and their rows.
        layer_id: an Engram layer.
        tp: number of ranks.

    Raises:
        UsageError: D091 for an unknown name or no rank, D090 for a layer without a table.
    """
    if name not in _RULES:
        raise _refusal(f"partition {name!r} is unknown, known are {', '.join(PARTITIONS)}")
    Shard(rank=0, tp=tp)
    return Partition(
        name=name,
        tp=tp,
        layer_id=layer_id,
        total_rows=engram.rows(layer_id),
        table=tuple(_ranges(spans) for spans in _RULES[name](engram, layer_id, tp)),
    )


def column_owners(name: str, *, engram: Engram, tp: int) -> tuple[int, ...]:
    """Owner of each hash column under a rule that keeps columns whole.

    Raises:
        UsageError: D091, for ``contiguous-rows`` or an unknown name.
    """
    if name not in _COLUMN_RULES:
        raise _refusal(f"partition {name!r} does not keep columns whole")
    return tuple(_COLUMN_RULES[name](engram, tp))


def expected_load(engram: Engram, owners: Sequence[int], *, tp: int) -> tuple[int, ...]:
    """Expected distinct reads of each rank, in thousandths of a row per token."""
    loads = [0] * tp
    for column, rank in enumerate(owners):
        loads[rank] += _weight(engram, column)
    return tuple(loads)


def _contiguous_rows(engram: Engram, layer_id: int, tp: int) -> list[list[tuple[int, int]]]:
    # SGLang's cut of the table, blind to columns
    total = engram.rows(layer_id)
    return [[(total * rank // tp, total * (rank + 1) // tp)] for rank in range(tp)]


def _contiguous_columns(engram: Engram, tp: int) -> list[int]:
    # As even as whole columns allow, the larger pieces first: vLLM's ceil(24 / tp) columns a rank
    # at tp 1-6 and 8. At 7 that rule leaves the last rank none and vLLM refuses; this one does not.
    each, larger = divmod(engram.columns, tp)
    return [rank for rank in range(tp) for _ in range(each + (rank < larger))]


def _strided(engram: Engram, tp: int) -> list[int]:
    return [column % tp for column in range(engram.columns)]


def _weighted(engram: Engram, tp: int) -> list[int]:
    """Longest processing time first.

    The columns in order of falling weight (ties: the lower column), each to the rank with the
    least load so far among those with room (ties: the lower rank). A rank has room for
    ceil(columns / tp) columns, because where n-grams do not repeat (decode) every column costs the
    same, and because a column is 1/24 of the disk space. Over the released model that gives, per
    rank and as (2-, 3-, 4-gram) columns, (3,2,3) (3,2,3) (2,4,2) at TP3 and (2,2,2) at TP4.
    """
    room, owners = -(-engram.columns // tp), [0] * engram.columns
    loads, counts = [0] * tp, [0] * tp
    for column in sorted(range(engram.columns), key=lambda c: (-_weight(engram, c), c)):
        free = (rank for rank in range(tp) if counts[rank] < room)
        owners[column] = rank = min(free, key=lambda r: (loads[r], r))
        loads[rank] += _weight(engram, column)
        counts[rank] += 1
    return owners


def _weight(engram: Engram, column: int) -> int:
    return UNIQUE_PER_MILLE.get(engram.order(column), UNIQUE_PER_MILLE_BEYOND)


_COLUMN_RULES: dict[str, Callable[[Engram, int], list[int]]] = {
    "contiguous-columns": _contiguous_columns,
    "strided": _strided,
    "weighted": _weighted,
}


def _by_columns(
    rule: Callable[[Engram, int], list[int]],
) -> Callable[[Engram, int, int], list[list[tuple[int, int]]]]:
    def spans(engram: Engram, layer_id: int, tp: int) -> list[list[tuple[int, int]]]:
        found: list[list[tuple[int, int]]] = [[] for _ in range(tp)]
        sizes = zip(engram.offsets(layer_id), engram.primes(layer_id), strict=True)
        for owner, (offset, prime) in zip(rule(engram, tp), sizes, strict=True):
            found[owner].append((offset, offset + prime))
        return found

    return spans


_RULES: dict[str, Callable[[Engram, int, int], list[list[tuple[int, int]]]]] = {
    "contiguous-rows": _contiguous_rows,
    **{name: _by_columns(rule) for name, rule in _COLUMN_RULES.items()},
}

PARTITIONS = tuple(_RULES)


def _ranges(spans: Iterable[tuple[int, int]]) -> tuple[Range, ...]:
    merged: list[Range] = []
    base = 0
    for lo, hi in spans:
        if lo == hi:
            continue
        if merged and merged[-1].hi == lo:
            merged[-1] = Range(lo=merged[-1].lo, hi=hi, base=merged[-1].base)
        else:
            merged.append(Range(lo=lo, hi=hi, base=base))
        base += hi - lo
    return tuple(merged)


def _refusal(says: str) -> UsageError:
    return UsageError(
        "D091",
        f"Engram partition: {says}.",
        fix="take one of the partition names and a rank and row that exist",
    )
