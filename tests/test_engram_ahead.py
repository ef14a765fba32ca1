"""Rows asked for early: all layers at once, the next chunk's ids, and the same bits as without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aheadfix import runner, step
from dsv41 import rows
from dsv41.adapters.chunks import SLOTS, Chunks, Layer, cache_bytes
from dsv41.adapters.staging import Lookup
from dsv41.adapters.together import Together, slice_beside
from dsv41.adapters.vllm import engram_ahead
from dsv41.adapters.vllm.engram_nvme import ENGRAM
from dsv41.errors import CheckFailed, UsageError
from dsv41.geometry import Shard
from dsv41.geometry.ngram import row_ids
from dsv41.rows.abi import Library
from rowsfix import LIBRARY, SMALL, write_checkpoint

TOKENS = 16  # of a step
MAP = np.arange(40) % SMALL.compressed_vocab  # token id -> compressed id
IMAGE = 39


@dataclass(kw_only=True)
class Table:
    """A layer's table with all six columns at one rank."""

    reader: Lookup
    layer_id: int
    columns: list[int]

    def own(self, indices: torch.Tensor) -> torch.Tensor:
        return indices


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    out = tmp_path_factory.mktemp("rows")
    given: dict[str, Any] = {
        "checkpoint": checkpoint.path,
        "out": out,
        "engram": SMALL,
        "partition": "strided",
    }
    rows.pack(**given, shard=Shard(rank=0, tp=1))
    return out


@pytest.fixture
def tables(folder: Path) -> Iterator[list[Table]]:
    """Both layers, each with a cache for what is read ahead."""
    library, made = Library(LIBRARY), []
    for layer in SMALL.layer_ids:
        where: dict[str, Any] = {"layer": layer, "rank": 0, "tp": 1, "partition": "strided"}
        store = library.RowStore.open(
            str(folder / rows.file_name(**where)), cache_bytes=4 * cache_bytes(6 * TOKENS), **where
        )
        reader = Lookup(library=library, store=store, ids=6 * TOKENS, device="cpu")
        made.append(Table(reader=reader, layer_id=layer, columns=list(range(6))))
    yield made
    for table in made:
        table.reader.store.close()


def drawn(tokens: int, *, seed: int = 0) -> torch.Tensor:
    """Ids int32 [tokens, 2, 6] as an engine hashes them, some of them impossible."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 800, (tokens, 2, 6), generator=random, dtype=torch.int32)


def alone(table: Table, ids: torch.Tensor) -> torch.Tensor:
    out = torch.full((*ids.shape, 256), 7.0, dtype=torch.bfloat16)
    table.reader.enqueue(ids, out)
    return out


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int16)


def of_chunks(tables: list[Table]) -> Chunks:
    return Chunks(
        layers=[Layer(reader=t.reader, layer_id=t.layer_id, columns=t.columns) for t in tables],
        engram=SMALL,
        token_map=MAP,
        dead=[IMAGE],
        tokens=TOKENS,
    )


def test_both_layers_are_begun_with_the_first(tables: list[Table]) -> None:
    together = Together(tables)
    for seed, tokens in enumerate((16, 1, 5, 5)):
        ids = drawn(tokens, seed=seed)
        wanted = [alone(table, ids[:, place]) for place, table in enumerate(tables)]
        before = [table.reader.store.stats()["batches"] for table in tables]
        found = [torch.full_like(rows_, 7.0) for rows_ in wanted]
        together.lookup(0, ids[:, 0], found[0])
        after = [table.reader.store.stats()["batches"] for table in tables]
        assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
        together.lookup(1, ids[:, 1], found[1])
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(bits(ours), bits(theirs))
    assert (together.early, together.alone, together.begun) == (4, 4, {})


def test_other_ids_than_those_beside_are_looked_up_anew(tables: list[Table]) -> None:
    together = Together(tables)
    ids, other = drawn(4), drawn(4, seed=9)
    out = torch.empty(4, 6, 256, dtype=torch.bfloat16)
    together.lookup(0, ids[:, 0], out)
    together.lookup(1, other[:, 1], out)
    assert torch.equal(bits(out), bits(alone(tables[1], other[:, 1])))
    assert (together.early, together.alone) == (0, 2)
    # ids of their own memory, as a data-parallel gather would give them: nothing is beside
    together.lookup(0, ids[:, 0].contiguous(), out)
    assert together.begun == {}
    assert torch.equal(bits(out), bits(alone(tables[0], ids[:, 0])))


def test_a_pass_that_ended_between_the_layers(tables: list[Table]) -> None:
    together = Together(tables)
    ids = drawn(4)
    out = torch.empty(4, 6, 256, dtype=torch.bfloat16)
    together.lookup(0, ids[:, 0], out)
    together.lookup(0, ids[:, 0], out)  # the second layer never came: its read is waited for
    together.lookup(1, ids[:, 1], out)
    assert torch.equal(bits(out), bits(alone(tables[1], ids[:, 1])))
    together.lookup(0, ids[:, 0], out)
    left = together.begun[1]
    together.begun[1] = replace(left, captured=True)  # captured, and its graph never ran
    together._forget(1, together.begun.pop(1), captured=False)
    with pytest.raises(CheckFailed, match=r"D491 .*between two Engram layers"):
        together._forget(1, left, captured=True)
    tables[1].reader.drop(left.count)


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_the_slice_beside(tokens: int) -> None:
    ids = torch.arange(tokens * 3 * 4).view(tokens, 3, 4)
    for place in range(3):
        for other in range(3):
            found = slice_beside(ids[:, place], place, other, layers=3)
            assert found is not None
            assert torch.equal(found, ids[:, other])
            assert found.data_ptr() == ids[:, other].data_ptr()
    assert slice_beside(ids[:, 0], 1, 0, layers=3) is None  # it is not the slice that it is said
    assert slice_beside(ids[:, 0], 0, 1, layers=2) is None
    assert slice_beside(ids[:, 0].t(), 0, 1, layers=3) is None
    assert slice_beside(ids[:0, 0], 0, 1, layers=3) is None
    cut = ids.flatten()[:4].clone().view(1, 4)  # the memory ends with the first layer's
    assert slice_beside(cut.as_strided((1, 4), (12, 1)), 0, 1, layers=3) is None


def by_rule(prompt: list[int], start: int, count: int, layer: int) -> list[tuple[int, ...]]:
    """Ids of the rows of a chunk, by the plain rule over the whole prompt."""
    found = row_ids(
        [int(MAP[token]) for token in prompt],
        engram=SMALL,
        layer_id=layer,
        alive=[token != IMAGE for token in prompt],
    )
    return found[start : start + count]


def test_the_ids_of_the_next_chunk_are_those_of_the_rule(tables: list[Table]) -> None:
    chunks = of_chunks(tables)
    random = np.random.default_rng(3)
    prompt = [int(token) for token in random.integers(0, 39, 30)]
    for where in (5, 17, 18):
        prompt[where] = IMAGE
    for start, count in ((0, 16), (1, 5), (2, 16), (16, 14), (20, 10)):
        chunks.name([(prompt, start, count)])
        for part, layer in zip(chunks.named, SMALL.layer_ids, strict=True):
            wanted = np.array(by_rule(prompt, start, count, layer)).reshape(-1)
            assert part.work.count == len(wanted)
            assert (part.ids[: len(wanted)] == wanted).all()
    chunks.name([(prompt, 4, 9), (prompt[::-1], 7, 30)])  # no more tokens than a step has
    assert chunks.named[0].work.count == 6 * TOKENS
    assert chunks.counts.named == 6


def test_a_rank_asks_for_its_own_columns(tables: list[Table]) -> None:
    chunks = of_chunks([replace(table, columns=[1, 2, 5]) for table in tables])
    prompt = list(range(38))
    chunks.name([(prompt, 7, 9)])
    for part, layer in zip(chunks.named, SMALL.layer_ids, strict=True):
        wanted = np.array(by_rule(prompt, 7, 9, layer))[:, [1, 2, 5]].reshape(-1)
        assert part.work.count == len(wanted) == 27
        assert (part.ids[:27] == wanted).all()


def test_what_was_read_ahead_is_found_in_memory(tables: list[Table]) -> None:
    """The next chunk's lookups read nothing, and give what a lookup without it gives."""
    prompt = [int(token) for token in np.random.default_rng(5).integers(0, 39, 32)]
    ids = torch.stack(
        [torch.tensor(by_rule(prompt, 0, 32, layer)) for layer in SMALL.layer_ids], dim=1
    ).int()
    chunks = of_chunks(tables)
    together = Together(tables, chunks=chunks)
    out = torch.empty(TOKENS, 6, 256, dtype=torch.bfloat16)
    chunks.name([(prompt, 16, 16)])
    for place in range(2):
        together.lookup(place, ids[:16, place], out)
    assert (chunks.counts.begun, len(chunks.running), chunks.named) == (1, 2, [])
    chunks.join()
    reads = [table.reader.store.stats()["device_reads"] for table in tables]
    for place, table in enumerate(tables):
        together.lookup(place, ids[16:, place], out)
        assert table.reader.store.stats()["device_reads"] == reads[place]
        assert table.reader.store.stats()["cache_hits"] >= 6 * 16
        found = out.clone()
        assert torch.equal(bits(found), bits(alone(table, ids[16:, place])))
    assert chunks.running == []


def test_no_slot_is_taken_while_it_is_read(tables: list[Table]) -> None:
    chunks = of_chunks(tables)
    prompt = list(range(38)) * 2
    for _ in range(SLOTS):
        chunks.name([(prompt, 0, 16)])
        chunks.begin()
    chunks.name([(prompt, 16, 16)])
    assert (chunks.named, chunks.counts.busy, chunks.counts.begun) == ([], 1, SLOTS)
    chunks.join()
    chunks.name([(prompt, 16, 16)])
    assert len(chunks.named) == 2
    chunks.name([])
    assert (chunks.named, chunks.counts.busy) == ([], 1)


def test_the_next_step_is_what_runs_in_order(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = of_chunks(tables)
    monkeypatch.setattr(engram_ahead, "_chunks", [chunks])
    monkeypatch.setattr(engram_ahead, "_prompts", {})
    long, short = list(range(38)), [1, 2, 3]
    first = step({"short": 3, "long": 13}, {"short": short, "long": long}, set())
    now = runner(("short", 0, 3), ("long", 0, 38))
    # the short one is through and takes one token of the sixteen
    assert list(engram_ahead.next_step(now, first, 16)) == []  # not heard of yet
    engram_ahead.name_next(None, now, first)
    assert chunks.named[0].work.count == 15 * 6
    wanted = np.array(by_rule(long, 13, 15, 1)).reshape(-1)
    assert (chunks.named[0].ids[: 15 * 6] == wanted).all()
    last = step({"long": 10}, {}, {"short"})
    engram_ahead.name_next(None, runner(("long", 28, 38)), last)
    assert chunks.named == []
    assert engram_ahead._prompts == {}
    assert chunks.counts.asked == 2 * 15 * 6


def test_what_is_refused() -> None:
    engram_ahead.check({"DSV41_ENGRAM_AHEAD": "2", "DSV41_PACKED_DIR": "/rows"})
    with pytest.raises(UsageError, match=r"D490 .*is 3, expected 0, 1 or 2"):
        engram_ahead.check({"DSV41_ENGRAM_AHEAD": "3", "DSV41_PACKED_DIR": "/rows"})
    with pytest.raises(UsageError, match=r"D490 .*DSV41_PACKED_DIR is not set"):
        engram_ahead.check({"DSV41_ENGRAM_AHEAD": "1"})


def test_tables_of_a_model_are_put_together(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    class EngramLayer(torch.nn.Module):
        def __init__(self, place: int) -> None:
            super().__init__()
            self.layer_hash_index, self.embed_tokens = place, tables[place]

    monkeypatch.setattr(engram_ahead, "_chunks", [])
    monkeypatch.setitem(sys.modules, ENGRAM, SimpleNamespace(Engram=EngramLayer))
    model = torch.nn.ModuleList([EngramLayer(1), EngramLayer(0)])
    worker = SimpleNamespace(
        model_runner=SimpleNamespace(get_model=lambda: model), use_v2_model_runner=False
    )
    monkeypatch.setenv("DSV41_ENGRAM_AHEAD", "1")
    engram_ahead.attach(worker)
    first, second = (vars(table) for table in tables)
    assert first["together"] is second["together"]
    assert first["together"].tables == tuple(tables)
    assert (first["place"], second["place"], engram_ahead._chunks) == (0, 1, [])
    monkeypatch.setenv("DSV41_ENGRAM_AHEAD", "2")
    with pytest.raises(UsageError, match=r"D490 .*V2 runner"):
        engram_ahead.attach(worker)
