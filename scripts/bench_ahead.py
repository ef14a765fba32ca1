"""Measure rows of the next prompt chunk, asked for early or not: `python scripts/bench_ahead.py`.

One rank of the local engine with the fitted long prompt (416 tokens, 7 chunks), twice: with
`engram_prefetch` and without. They take turns within a round; figures are medians, ratios are
medians of the ratios within the rounds. `wait` is what steps waited for rows of both layers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch

from dsv41.geometry import DEFAULT_PARTITION, Shard
from dsv41.local.engine.assembly import Parts, assemble
from dsv41.local.engine.generation import Job, Sampling
from dsv41.local.engine.loop import Engine
from dsv41.local.fixture.readout.conversations import conversations
from dsv41.rows.bench import _machine

if TYPE_CHECKING:
    from collections.abc import Sequence

ENGINES = ("uring", "aio", "pread")


def run(engine: Engine, job: Job) -> dict[str, float]:
    """The seconds of one prompt up to its first token: waited for rows, and in all."""

    async def first_token() -> None:
        async for _ in engine.submit(job):
            pass

    before, began = waited(engine), time.perf_counter()
    asyncio.run(first_token())
    return {"took": time.perf_counter() - began, "wait": waited(engine) - before}


def waited(engine: Engine) -> float:
    """Seconds that steps have waited for rows so far."""
    layers = engine.stats()["rows"].values()
    return float(sum(stats["wait_seconds"]["sum"] for stats in layers))


def measure(row_engine: str, job: Job, options: argparse.Namespace) -> dict[str, float]:
    """Rounds of one row engine."""
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    parts = {
        ahead: Parts(
            shard=Shard(rank=0, tp=1),
            checkpoint=options.checkpoint,
            rows=options.rows,
            partition=DEFAULT_PARTITION,
            row_engine=row_engine,
            ahead=ahead,
        )
        for ahead in runs
    }
    ranks = {ahead: assemble(part) for ahead, part in parts.items()}
    engines = {ahead: Engine(rank.runner, rows=rank.row_stats) for ahead, rank in ranks.items()}
    for engine in engines.values():
        engine.start()
        run(engine, job)
    for number in range(options.rounds):
        for ahead in (number % 2 == 0, number % 2 == 1):
            runs[ahead].append(run(engines[ahead], job))
    for ahead, engine in engines.items():
        engine.close()
        ranks[ahead].close()
    found = {}
    for key in ("wait", "took"):
        for ahead, name in ((False, "without"), (True, "ahead")):
            found[f"{key}_ms_{name}"] = round(median(r[key] for r in runs[ahead]) * 1e3, 1)
        pairs = zip(runs[True], runs[False], strict=True)
        found[f"{key}_ratio"] = round(median(on[key] / off[key] for on, off in pairs), 3)
    return found


def main(argv: Sequence[str]) -> int:
    """Measure and write the receipt."""
    parser = argparse.ArgumentParser(prog="scripts/bench_ahead.py", allow_abbrev=False)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the tiny model")
    parser.add_argument("--rows", type=Path, required=True, help="its rows, packed for one rank")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/ahead.json"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    canned = conversations((options.checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    prompt = max((one.prompt for one in canned), key=len)
    job = Job(prompt=prompt, max_tokens=1, sampling=Sampling(temperature=0.0), eos=frozenset())
    receipt = {
        "schema": "dsv41.bench-ahead/1",
        "command": "python scripts/bench_ahead.py",
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "machine": _machine(),
        "prompt_tokens": len(prompt),
        "rounds": options.rounds,
        "figures": {name: measure(name, job, options) for name in ENGINES},
    }
    options.out.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(receipt["figures"], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
