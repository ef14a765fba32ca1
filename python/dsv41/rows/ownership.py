"""Which partitions an engine can put together again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dsv41.errors import UsageError
from dsv41.geometry import column_owners

if TYPE_CHECKING:
    from dsv41.geometry import Engram

# SGLang and the local engine add the ranks' answers, zeros where a row is foreign: any ownership
# is whole. vLLM gathers equally wide answers column by column.
SUMS_ROWS = frozenset({"sglang", "local"})


def check_partition(*, engine: str, partition: str, engram: Engram, tp: int) -> None:
    """Refuse a partition that the engine would combine wrongly.

    Raises:
        UsageError: D032, when the engine gathers columns and these are not whole, or not equally
            many for every rank; D091 for an unknown partition.
    """
    if engine in SUMS_ROWS:
        return
    try:
        owners = column_owners(partition, engram=engram, tp=tp)
    except UsageError as error:
        raise _refusal(engine, f"{partition} does not keep hash columns whole") from error
    counts = Counter(owners)
    if len({counts[rank] for rank in range(tp)}) != 1:
        found = ", ".join(str(counts[rank]) for rank in range(tp))
        raise _refusal(engine, f"{partition} gives the {tp} ranks {found} columns")


def _refusal(engine: str, says: str) -> UsageError:
    return UsageError(
        "D032",
        f"{engine} gathers whole hash columns, equally many per rank; {says}.",
        fix="take strided or contiguous-columns, and a number of ranks that divides the columns",
    )
