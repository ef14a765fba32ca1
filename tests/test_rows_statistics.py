"""The line that a row store's statistics become, and who says it when."""

from __future__ import annotations

from typing import Any

from dsv41 import host
from dsv41.geometry import Shard
from dsv41.local.engine.row_lines import RowLines
from dsv41.rows import statistics


def stats(lookups: int, **more: int) -> dict[str, Any]:
    wall = {"p50": 0.00045, "p99": 0.004}
    counts = dict.fromkeys(statistics.COUNTS, 0)
    return {"engine": "aio", "wall_seconds": wall, **counts, "lookups": lookups, **more}


def test_a_line_counts_from_the_statistics_before() -> None:
    before = stats(100, unique=40, foreign=60, device_reads=40)
    after = stats(148, unique=52, foreign=90, device_reads=53, cache_hits=6, crc_failures=1)
    said = statistics.line(after, before, layer=14, rank=2, tp=3, seconds=60.2)
    assert said == (
        "engram layer=14 rank=2 of 3: rows=48 unique=12 foreign=30 cache_hits=6 reads=13 "
        "crc_failures=1 io_errors=0 in 60 s; lookup p50=0.45 ms p99=4.00 ms since start; "
        "engine=aio"
    )
    assert dict(statistics.quantiles(after)) == {"0.5": 0.00045, "0.99": 0.004}


def test_a_store_that_rested_has_no_line() -> None:
    assert not statistics.line(stats(7), stats(7), layer=1, rank=0, tp=1, seconds=60)


def test_lines_come_after_an_interval_and_at_the_end() -> None:
    said: list[str] = []
    rows = {1: stats(5), 2: stats(0)}
    with RowLines(lambda: dict(rows), shard=Shard(rank=1, tp=2), seconds=0.01, say=said.append):
        assert host.wait_until(lambda: bool(said), seconds=10, every=0.01)
        rows[2] = stats(9)
    assert [line.split(" unique")[0] for line in said] == [
        "engram layer=1 rank=1 of 2: rows=5",
        "engram layer=2 rank=1 of 2: rows=9",
    ]


def test_zero_seconds_say_nothing() -> None:
    said: list[str] = []
    with RowLines(lambda: {1: stats(5)}, shard=Shard(rank=0, tp=1), seconds=0, say=said.append):
        pass
    assert not said
