"""Two ranks on two GPUs: rows by contiguous, strided and weighted columns answer as the stock.

With the next chunk's rows read ahead as well, which each rank does for its own columns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("GPU test, not run: no vllm", allow_module_level=True)

from gpu.fleet import Fleet, Process
from gpu.test_vllm_rows import GROUPS, PROMPTS, TOKENS

# two ranks of one size are compared with each other: their sums are formed in another order than
# one rank's
PARTITIONS = ("contiguous-columns", "strided", "weighted")
AHEAD = "rows-two@ahead"
HITS = re.compile(r"engram layer=\d rank=(\d) of 2: .* cache_hits=([1-9]\d*) ")


@pytest.fixture(scope="module")
def two_ranks(fleet: Fleet) -> Iterator[dict[str, Process]]:
    if fleet.devices < 2:
        pytest.skip("GPU test, not run: one GPU, two are needed")
    names = ["stock-two", *(f"rows-two@{name}" for name in PARTITIONS), AHEAD]
    for name in PARTITIONS:
        fleet.begin(f"rows-two@{name}", DSV41_ENGRAM_PARTITION=name)
    fleet.begin(AHEAD, DSV41_ENGRAM_AHEAD="2", DSV41_STATS_SECONDS="5")
    yield fleet.start(*names)
    fleet.stop(*names)


def test_two_ranks_answer_as_the_stock_table(
    two_ranks: dict[str, Process], receipts: dict[str, Any]
) -> None:
    # one engine after the other: the collectives of several engines would share both GPUs
    found = {
        name: [
            answer for group in GROUPS + GROUPS for answer in process.ask("answers", group, TOKENS)
        ]
        for name, process in two_ranks.items()
    }
    receipts["two ranks"] = {
        name: {
            "compared": len(given),
            "equal": sum(a == b for a, b in zip(given, found["stock-two"], strict=True)),
            "start_seconds": round(two_ranks[name].start_seconds, 1),
        }
        for name, given in found.items()
    }
    assert all(given == found["stock-two"] for given in found.values())
    receipts["two ranks"][AHEAD]["hits by rank"] = hits = ahead_of(two_ranks[AHEAD])
    assert all(hits.values()), hits
    for name, process in two_ranks.items():
        if name.startswith("rows"):
            assert process.said().count("2 tables lie on the disk, none in memory") == 2


def ahead_of(engine: Process) -> dict[str, int]:
    """Rows that each rank found in its stores' caches: without a cache of its own, read ahead."""
    found = dict.fromkeys("01", 0)
    until = time.monotonic() + 15  # a line comes every five seconds
    while not all(found.values()) and time.monotonic() < until:
        time.sleep(1)
        lines = HITS.findall(engine.said())
        found = {rank: sum(int(hits) for one, hits in lines if one == rank) for rank in found}
    return found


def test_two_ranks_with_drafts(fleet: Fleet, receipts: dict[str, Any]) -> None:
    if fleet.devices < 2:
        pytest.skip("GPU test, not run: one GPU, two are needed")
    engines = fleet.start("stock-two-dspark", "rows-two-dspark")
    found = {
        name: [process.ask("answers", [one], TOKENS) for one in PROMPTS]
        for name, process in engines.items()
    }
    receipts["two ranks dspark"] = {"compared": len(PROMPTS)}
    fleet.stop(*engines)
    assert found["rows-two-dspark"] == found["stock-two-dspark"]
