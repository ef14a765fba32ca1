"""Which rank of how many, and which part of a padded axis a rank really holds."""

from __future__ import annotations

from dataclasses import dataclass

from dsv41.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One rank of a tensor-parallel group.

    Raises:
        UsageError: D091, unless ``0 <= rank < tp``.
    """

    rank: int
    tp: int

    def __post_init__(self) -> None:
        if self.tp < 1 or not 0 <= self.rank < self.tp:
            raise UsageError(
                "D091",
                f"Rank {self.rank} of {self.tp} does not exist: expected 0 <= rank < tp.",
                fix="give a rank below the number of ranks, counted from 0",
            )


def real_span(real: int, *, per_rank: int, shard: Shard) -> range:
    """Global positions of an axis that this rank holds and that are not padding.

    A padded axis is cut into ``tp`` equal pieces of ``per_rank``; the padding stands at its end, so
    the last ranks may hold less than ``per_rank`` real positions, or none.
    """
    start = min(shard.rank * per_rank, real)
    return range(start, min((shard.rank + 1) * per_rank, real))
