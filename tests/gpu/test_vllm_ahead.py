"""Real vLLM 0.33.0 with rows asked for early: the same bits, and what it costs or saves."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("GPU test, not run: no vllm", allow_module_level=True)

from gpu.fleet import Fleet, Process
from gpu.test_vllm_rows import GROUPS, TOKENS, equal, everyone, prompt

ONE, TWO = {"DSV41_ENGRAM_AHEAD": "1"}, {"DSV41_ENGRAM_AHEAD": "2"}
CACHED = {"DSV41_CACHE_GIB": "1"}  # holds every row that was read once
ENGINES: dict[str, dict[str, str]] = {
    "stock-full": {},
    "rows-full@off": {},
    "rows-full@layers": ONE,
    "rows-full@chunk": TWO,
    "rows-eager@chunk": TWO,
    "rows-full@off-cached": CACHED,
    "rows-full@layers-cached": ONE | CACHED,
    "rows-full@chunk-cached": TWO | CACHED,
}
DSPARK: dict[str, dict[str, str]] = {"rows-dspark@off": {}, "rows-dspark@chunk": TWO}
PAUSED = " (chunk not named)"  # the same engine, its cache kept: what the cache alone does
TIMED = (
    "stock-full",
    "rows-full@off",
    "rows-full@layers",
    "rows-full@chunk" + PAUSED,
    "rows-full@chunk",
    "rows-full@off-cached",
    "rows-full@layers-cached",
    "rows-full@chunk-cached",
)
SUMS = ("lookups", "device_reads", "cache_hits")


@pytest.fixture(scope="module")
def engines(fleet: Fleet) -> Iterator[dict[str, Process]]:
    for name, environ in ENGINES.items():
        fleet.begin(name, **environ)
    yield fleet.start(*ENGINES)
    fleet.stop(*ENGINES)


def test_answers_are_the_same_bits(engines: dict[str, Process], receipts: dict[str, Any]) -> None:
    """Tokens and logprobs, prompts alone and together, prompts of several chunks among them."""
    names = [name for name in engines if name != "rows-eager@chunk"]
    found: dict[str, list[Any]] = {name: [] for name in engines}
    for _ in range(2):
        for group in GROUPS:
            for name, given in everyone(engines, "answers", group, TOKENS).items():
                found[name] += given
    receipts["ahead answers"] = {
        name: {
            "compared": len(given),
            "equal to stock-full": equal(given, found["stock-full"]),
            "same tokens as stock-full": equal(
                [answer[0] for answer in given], [answer[0] for answer in found["stock-full"]]
            ),
            "ahead": engines[name].ask("ahead"),
            "start_seconds": round(engines[name].start_seconds, 1),
        }
        for name, given in found.items()
    }
    for name in names:
        assert found[name] == found["stock-full"], name
    eager, full = found["rows-eager@chunk"], found["stock-full"]
    assert [answer[0] for answer in eager] == [answer[0] for answer in full]
    counted = engines["rows-full@chunk"].ask("ahead")
    assert counted["begun"] > 20
    assert counted["early"] > counted["begun"]


def test_lookups_of_any_ids(engines: dict[str, Process]) -> None:
    """The tables' `lookup`, ids that lie beside no others: each is looked up alone."""
    names = ("stock-full", "rows-full@layers", "rows-full@chunk", "rows-eager@chunk")
    found = everyone({name: engines[name] for name in names}, "lookups", 20)
    assert len({tuple(digests) for digests in found.values()}) == 1


def counted(engine: Process) -> dict[str, float]:
    """Sums over both tables."""
    tables = [table["stats"] for table in engine.ask("tables")]
    if tables[0] is None:
        return {}
    sums = {name: float(sum(stats[name] for stats in tables)) for name in SUMS}
    sums["waited seconds"] = sum(stats["wait_seconds"]["sum"] for stats in tables)
    sums["p50 lookup ms"] = max(stats["wall_seconds"]["p50"] for stats in tables) * 1e3
    return sums | {name: float(value) for name, value in engine.ask("ahead").items()}


def timed(engine: Process, name: str, prompts: list[list[int]], tokens: int) -> dict[str, float]:
    """One run: its seconds, and what was counted meanwhile."""
    if "@chunk" in name:
        engine.ask("name_chunks", PAUSED not in name)
    before = counted(engine)
    seconds = engine.ask("seconds", prompts, tokens)
    after = counted(engine)
    gained = {key: after[key] - before.get(key, 0) for key in after if key != "p50 lookup ms"}
    return {"seconds": seconds, **gained}


def blocks(number: int) -> list[int]:
    """1,024 tokens, blocks of 32 that come four times each: a chunk reads a quarter of its rows."""
    words = prompt(3000 + number)
    return [word for at in range(0, 256, 32) for word in words[at : at + 32] * 4]


@pytest.mark.parametrize(
    ("what", "prompts", "tokens", "laps"),
    [
        ("prefill four prompts", [prompt(1000 + number) for number in range(4)], 1, 5),
        ("prefill one prompt", [prompt(1900)], 1, 5),
        ("prefill, a quarter of the rows", [blocks(number) for number in range(4)], 1, 7),
        ("decode one stream", [prompt(12)], 96, 15),
        ("decode eight streams", [prompt(12 + number) for number in range(8)], 96, 5),
    ],
)
def test_time(
    engines: dict[str, Process],
    receipts: dict[str, Any],
    what: str,
    prompts: list[list[int]],
    tokens: int,
    laps: int,
) -> None:
    """Medians of alternated runs, one engine at a time; recorded, with a wide bound."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in TIMED}
    for lap in range(laps + 1):
        for name in TIMED:
            run = timed(engines[name.removesuffix(PAUSED)], name, prompts, tokens)
            if lap:  # the first warms up
                runs[name].append(run)
    done = len(prompts) * (len(prompts[0]) if tokens == 1 else tokens)
    receipts[f"ahead {what}"] = {
        name: {
            **{key: round(statistics.median(run[key] for run in found), 5) for key in found[0]},
            "least": round(min(run["seconds"] for run in found), 5),
            "most": round(max(run["seconds"] for run in found), 5),
            "tokens_per_second": round(done / statistics.median(r["seconds"] for r in found), 1),
        }
        for name, found in runs.items()
    } | {"runs": laps, "streams": len(prompts), "prompt": len(prompts[0]), "tokens": tokens}
    medians = {n: statistics.median(r["seconds"] for r in found) for n, found in runs.items()}
    assert medians["rows-full@chunk"] < 5 * medians["rows-full@off"]


def test_drafts_change_no_bit(fleet: Fleet, receipts: dict[str, Any]) -> None:
    """DSpark with five drafts a step, one prompt at a time."""
    for name, environ in DSPARK.items():
        fleet.begin(name, **environ)
    drafted = fleet.start(*DSPARK)
    found: dict[str, list[Any]] = {name: [] for name in DSPARK}
    for group in GROUPS[:-1]:
        for name, given in everyone(drafted, "answers", group, TOKENS).items():
            found[name] += given
    receipts["ahead dspark"] = {
        "compared": len(found["rows-dspark@off"]),
        "equal": equal(*found.values()),
        "ahead": drafted["rows-dspark@chunk"].ask("ahead"),
    }
    fleet.stop(*DSPARK)
    assert found["rows-dspark@off"] == found["rows-dspark@chunk"]
