"""Hash columns over ranks as vLLM gathers them: which are a rank's, and the way back in order."""

from __future__ import annotations

from dsv41.errors import UsageError


def own_columns(owners: tuple[int, ...], *, rank: int) -> list[int]:
    """Hash columns of a rank, ascending; `owners` as `dsv41.geometry.column_owners`."""
    return [column for column, owner in enumerate(owners) if owner == rank]


def gathered_order(owners: tuple[int, ...], *, tp: int) -> list[int] | None:
    """Where column c stands in the ranks' columns, gathered rank after rank; None: at c already.

    Raises:
        UsageError: D159, when the ranks have different numbers of columns and the order is not
            kept: the engine gathers ceil(24 / tp) columns of each and cuts the end off.
    """
    gathered = [column for rank in range(tp) for column in own_columns(owners, rank=rank)]
    if gathered == sorted(gathered):
        return None
    if len(owners) % tp:
        says = f"{len(owners)} hash columns cannot be put back in order over {tp} ranks."
        raise UsageError("D159", says, fix="pack and serve the partition contiguous-columns")
    return [gathered.index(column) for column in range(len(owners))]
