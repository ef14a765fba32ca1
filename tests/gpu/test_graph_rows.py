"""Row store, pinned staging and host function in captured CUDA graphs: bits, time, no deadlock."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dsv41.adapters.staging import Lookup  # noqa: E402 - after the skip
from gpu import table as tables  # noqa: E402 - after the skip
from gpu.table import COLUMNS, Table  # noqa: E402 - after the skip

ENGINES = ("aio", "pread")
REPLAYS = 1000
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return tables.make(tmp_path_factory.mktemp("table"))


class Captured:
    """A graph of one lookup with a fixed number of tokens."""

    def __init__(self, table: Table, tokens: int, **more: Any) -> None:
        self.ids = torch.zeros(tokens, COLUMNS, dtype=torch.int32, device="cuda")
        self.out = torch.empty(tokens, COLUMNS, 256, dtype=torch.bfloat16, device="cuda")
        self.store = table.open(production=1, **more)
        self.lookup = Lookup(
            library=table.library, store=self.store, ids=tokens * COLUMNS, device="cuda"
        )
        self.graph = captured(lambda: self.lookup.enqueue(self.ids, self.out))


def captured(run: Callable[[], None]) -> Any:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cache", [0, 64 << 20], ids=["cold", "cached"])
def test_a_thousand_replays(
    table: Table, engine: str, cache: int, receipts: dict[str, Any]
) -> None:
    """Ids change between replays; every bit of every row is that of the table in device memory."""
    run = Captured(table, 8, engine=engine, cache_bytes=cache)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for replay in range(REPLAYS):
        ids = table.draw(8, seed=replay % 100 if cache else replay).cuda()
        ids[replay % 8, replay % COLUMNS] = -1 - replay
        run.ids.copy_(ids)
        run.graph.replay()
        wanted = table.reference[ids.clamp_min(0).long()]
        wanted.masked_fill_((ids < 0).unsqueeze(-1), 0)
        wrong += (run.out.view(torch.int16) != wanted.view(torch.int16)).sum()
        run.out.fill_(float("nan"))
    assert int(wrong) == 0
    stats = run.store.stats()
    assert stats["batches"] == REPLAYS + 1  # the replays and the pass before the capture
    assert stats["engine"] == engine
    assert stats["cache_hits"] > 0 if cache else stats["device_reads"] > REPLAYS * 8 * 20
    receipts[f"replays {engine} {'cached' if cache else 'cold'}"] = {
        "replays": REPLAYS,
        "values": REPLAYS * 8 * COLUMNS * 256,
        "wrong": int(wrong),
        "direct": stats["direct"],
        "device_reads": stats["device_reads"],
        "cache_hits": stats["cache_hits"],
    }


def seconds(run: Callable[[], None], *, before: Callable[[int], None], rounds: int) -> list[float]:
    times = []
    for number in range(rounds):
        before(number)
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return times


@pytest.mark.parametrize("tokens", [1, 6, 48, 128])
def test_latency(table: Table, tokens: int, receipts: dict[str, Any]) -> None:
    """Medians of graph replays: rows from the file by each engine, and from device memory."""
    found: dict[str, float] = {}
    runs = {engine: Captured(table, tokens, engine=engine) for engine in ENGINES}
    runs |= {"cached": Captured(table, tokens, cache_bytes=64 << 20)}
    gather = runs["aio"]

    def from_memory() -> None:
        gather.out.copy_(table.reference[gather.ids.flatten().long()].view_as(gather.out))

    memory = captured(from_memory)
    for number in range(1, 4):  # alternated
        for name, run in runs.items():
            seed = 0 if name == "cached" else 1000 * number

            def fresh(round_: int, run: Captured = run, seed: int = seed) -> None:
                run.ids.copy_(table.draw(tokens, seed=seed + round_ if seed else 0))

            times = statistics.median(seconds(run.graph.replay, before=fresh, rounds=21))
            found[name] = min(found.get(name, times), times)
        times = statistics.median(seconds(memory.replay, before=lambda _: None, rounds=21))
        found["memory"] = min(found.get("memory", times), times)
    receipts[f"latency {tokens} tokens"] = {
        name: round(value * 1e6, 1) for name, value in found.items()
    } | {"unit": "microseconds, the least of three medians of 21", "rows": tokens * COLUMNS}
    assert found["memory"] < found["aio"]  # else nothing was measured
    assert found["cached"] < 1.0


def test_a_side_stream_hides_the_reads(table: Table, receipts: dict[str, Any]) -> None:
    """While the main stream computes as long as a lookup takes, the lookup costs almost nothing."""
    tokens = 128
    run = Captured(table, tokens)
    side = torch.cuda.Stream()
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def lookup() -> None:
        run.lookup.enqueue(run.ids, run.out)

    def fresh(number: int) -> None:
        run.ids.copy_(table.draw(tokens, seed=5000 + number))

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(left, left)

    alone = statistics.median(seconds(lookup, before=fresh, rounds=15))
    compute(3)
    one = statistics.median(seconds(lambda: compute(10), before=lambda _: None, rounds=9)) / 10
    times = max(1, round(alone / one))

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            lookup()
        compute(times)
        torch.cuda.current_stream().wait_stream(side)

    overlapped = statistics.median(seconds(both, before=fresh, rounds=15))
    receipts["side stream"] = {
        "rows": tokens * COLUMNS,
        "lookup_ms": round(alone * 1e3, 3),
        "compute_ms": round(one * times * 1e3, 3),
        "both_ms": round(overlapped * 1e3, 3),
    }
    assert overlapped < 0.8 * (alone + one * times)


@pytest.mark.parametrize(
    "case", ["busy", "two_graphs", "allocations", "interpreter", "error", "production"]
)
def test_no_deadlock(table: Table, case: str, tmp_path: Path) -> None:
    """Each in a process of its own with a hard limit: a hang is a failure, not a stuck suite."""
    path = table.path
    if case in {"error", "production"}:
        path = table.damaged(tmp_path, 77)
    done = subprocess.run(
        [sys.executable, str(HERE / "deadlock_cases.py"), case, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if case == "production":
        (line,) = [text for text in done.stderr.splitlines() if "dsv41_rows_fatal" in text]
        assert json.loads(line)["kind"] == "corrupt"
        assert done.returncode == -6  # SIGABRT
    else:
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.splitlines()[-1] == "done"
