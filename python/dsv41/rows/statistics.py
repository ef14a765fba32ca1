"""What a row store did, in words: pure functions over the dictionaries of `RowStore.stats()`.

Counters count since the store was opened; docs/reference/row-store.md lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Counter of the store -> what it counts, as the help text of a metric.
COUNTS = {
    "lookups": "row ids that were looked up",
    "unique": "distinct own rows of a lookup, summed",
    "foreign": "row ids that other ranks own",
    "cache_hits": "rows answered from memory",
    "device_reads": "reads of the drive",
    "crc_failures": "rows that failed their CRC on the first read",
    "io_errors": "reads that the system refused",
}
QUANTILES = {"0.5": "p50", "0.99": "p99"}


def increments(stats: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, int]:
    """What every counter of COUNTS gained; `before` may be empty, for since the opening."""
    return {name: int(stats[name]) - int(before.get(name, 0)) for name in COUNTS}


def line(
    stats: Mapping[str, Any],
    before: Mapping[str, Any],
    *,
    layer: int,
    rank: int,
    tp: int,
    seconds: float,
) -> str:
    """One line on the `seconds` between two statistics; empty when nothing was looked up.

    The times are those of a lookup (a batch of ids) since the store was opened.
    """
    new = increments(stats, before)
    if not new["lookups"]:
        return ""
    wall = stats["wall_seconds"]
    return (
        f"engram layer={layer} rank={rank} of {tp}: rows={new['lookups']} "
        f"unique={new['unique']} foreign={new['foreign']} cache_hits={new['cache_hits']} "
        f"reads={new['device_reads']} crc_failures={new['crc_failures']} "
        f"io_errors={new['io_errors']} in {seconds:.0f} s; lookup "
        f"p50={wall['p50'] * 1e3:.2f} ms p99={wall['p99'] * 1e3:.2f} ms since start; "
        f"engine={stats['engine']}"
    )


def quantiles(stats: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Quantile as Prometheus writes it, and the wall seconds of a lookup since the opening."""
    for quantile, key in QUANTILES.items():
        yield quantile, float(stats["wall_seconds"][key])
