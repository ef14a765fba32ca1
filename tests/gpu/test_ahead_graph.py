"""Two tables' rows begun together, in captured graphs and without: bits and time; no vLLM."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dsv41.adapters.chunks import Chunks, Layer, cache_bytes  # noqa: E402 - after the skip
from dsv41.adapters.staging import Lookup  # noqa: E402 - after the skip
from dsv41.adapters.together import Together  # noqa: E402 - after the skip
from gpu import table as tables  # noqa: E402 - after the skip
from gpu.table import COLUMNS, ENGRAM, Table  # noqa: E402 - after the skip
from gpu.test_graph_rows import captured, seconds  # noqa: E402 - after the skip

REPLAYS = 300


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return tables.make(tmp_path_factory.mktemp("table"))


class One:
    """A table of a layer: the same rows twice, from a store of its own each."""

    def __init__(self, table: Table, tokens: int, **more: Any) -> None:
        self.reader = Lookup(
            library=table.library,
            store=table.open(production=1, **more),
            ids=tokens * COLUMNS,
            device="cuda",
        )

    def own(self, indices: Any) -> Any:
        return indices


class Two:
    """Both tables, their ids as an engine hashes them, and a graph of both lookups."""

    def __init__(self, table: Table, tokens: int, *, together: bool, **more: Any) -> None:
        self.ids = torch.zeros(tokens, 2, COLUMNS, dtype=torch.int32, device="cuda")
        self.out = torch.empty(2, tokens, COLUMNS, 256, dtype=torch.bfloat16, device="cuda")
        self.tables = [One(table, tokens, **more) for _ in range(2)]
        self.together = Together(self.tables) if together else None
        self.graph = captured(self.run)

    def run(self) -> None:
        for place, one in enumerate(self.tables):
            if self.together is not None:
                self.together.lookup(place, self.ids[:, place], self.out[place])
            else:
                one.reader.enqueue(self.ids[:, place], self.out[place])

    def draw(self, table: Table, tokens: int, seed: int) -> Any:
        ids = torch.stack([table.draw(tokens, seed=2 * seed + place) for place in range(2)], 1)
        self.ids.copy_(ids)
        return ids.cuda()


@pytest.mark.parametrize("engine", ["aio", "pread"])
def test_replays_of_both(table: Table, engine: str, receipts: dict[str, Any]) -> None:
    """Ids change between replays and eager calls; every bit is that of the table in memory."""
    run = Two(table, 8, together=True, engine=engine)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for replay in range(REPLAYS):
        ids = run.draw(table, 8, replay)
        if replay % 3:
            run.graph.replay()
        else:
            run.run()
        wanted = table.reference[ids.transpose(0, 1).long()]
        wrong += (run.out.view(torch.int16) != wanted.view(torch.int16)).sum()
        run.out.fill_(float("nan"))
    assert int(wrong) == 0
    assert run.together is not None
    assert run.together.begun == {}
    receipts[f"ahead replays {engine}"] = {
        "values": REPLAYS * 2 * 8 * COLUMNS * 256,
        "wrong": int(wrong),
    }


@pytest.mark.parametrize("tokens", [1, 6, 48, 128])
def test_latency_of_both(table: Table, tokens: int, receipts: dict[str, Any]) -> None:
    """Medians of graph replays of two layers: one after the other, and begun together."""
    cached = {"cache_bytes": 64 << 20}
    runs = {
        "one after the other": Two(table, tokens, together=False),
        "together": Two(table, tokens, together=True),
        "one after the other, cached": Two(table, tokens, together=False, **cached),
        "together, cached": Two(table, tokens, together=True, **cached),
    }
    found: dict[str, list[float]] = {name: [] for name in runs}
    for lap in range(1, 6):  # alternated
        for name, run in runs.items():

            def fresh(round_: int, name: str = name, run: Two = run, lap: int = lap) -> None:
                run.draw(table, tokens, 0 if "cached" in name else 1000 * lap + round_)

            found[name] += seconds(run.graph.replay, before=fresh, rounds=11)
    receipts[f"ahead latency {tokens} tokens"] = {
        name: round(statistics.median(times) * 1e6, 1) for name, times in found.items()
    } | {"unit": "microseconds, medians of 55", "rows": 2 * tokens * COLUMNS}


def test_the_next_chunk_is_read_behind_this_one(table: Table, receipts: dict[str, Any]) -> None:
    """Chunks of a prompt, each while the device computes: bits, reads, and the time of a step."""
    tokens, steps = 128, 12
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    prompt = torch.randint(0, 6, (tokens * steps,), generator=torch.Generator().manual_seed(4))
    token_map = torch.arange(6).numpy()
    found: dict[str, Any] = {}
    for name in ("named", "not named"):
        more = {"cache_bytes": cache_bytes(tokens * COLUMNS)}
        one = One(table, tokens, **more)
        chunks = Chunks(
            layers=[Layer(reader=one.reader, layer_id=1, columns=range(COLUMNS))],
            engram=ENGRAM,
            token_map=token_map,
            dead=[],
            tokens=tokens,
        )
        together = Together([one], chunks=chunks)
        out = torch.empty(tokens, COLUMNS, 256, dtype=torch.bfloat16, device="cuda")
        wrong, reads = 0, []
        for step in range(steps):
            # ids that no cache holds: drawn at random, in place of what six tokens would hash
            ids = table.draw(tokens, seed=700 + step).cuda()
            if name == "named" and step + 1 < steps:
                chunks.name([(prompt.tolist(), tokens * (step + 1), tokens)])
                coming = table.draw(tokens, seed=700 + step + 1).reshape(-1).long().numpy()
                chunks.named[0].name(coming)
            before = one.reader.store.stats()["device_reads"] if step else 0
            together.lookup(0, ids, out)
            for _ in range(60):
                torch.mm(left, left)
            torch.cuda.synchronize()
            wanted = table.reference[ids.long()]
            wrong += int((out.view(torch.int16) != wanted.view(torch.int16)).sum())
            reads.append(one.reader.store.stats()["device_reads"] - before)
        chunks.join()
        torch.cuda.synchronize()
        found[name] = {"wrong": wrong, "reads a step": reads, **vars(chunks.counts)}
    receipts["ahead chunks"] = found
    assert [one["wrong"] for one in found.values()] == [0, 0]
    assert found["named"]["begun"] == steps - 1
