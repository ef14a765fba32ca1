"""Rows of the next prompt chunk, asked for while a step computes: which, when, and to what end."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dsv41.local.engine.generation import Job, Sampling
from dsv41.local.engine.steps import Meter, Runner, Step
from dsv41.local.fixture.readout.conversations import Conversation, conversations
from dsv41.local.model.ahead import Counts, Early
from dsv41.local.model.comm import Alone
from dsv41.local.model.engram import StoreReader
from rank_threads import Loader, together
from toy_model import Bench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dsv41.geometry import Engram
    from dsv41.local.model.comm import Comm
    from dsv41.local.model.engram import RowReader, Rows
    from dsv41.local.model.transformer import Model

CHUNK = 64
ROWS = 24 * 2  # row ids of a token at one rank: 24 columns, two layers


@pytest.fixture(scope="module")
def loader(checkpoint: Path, rows_dir: Path) -> Loader:
    torch.set_num_threads(1)
    return Loader(checkpoint=checkpoint, rows_dir=rows_dir)


@pytest.fixture(scope="module")
def canned(checkpoint: Path) -> dict[str, Conversation]:
    text = (checkpoint / "tokenizer.json").read_text(encoding="utf-8")
    return {one.name: one for one in conversations(text)}


@pytest.fixture(scope="module")
def model(loader: Loader) -> Model:
    return loader.model(Alone())


def put(model: Model, rows: RowReader, comm: Comm) -> Model:
    """The same model over other rows and another group."""
    for layer in model._engram.values():
        layer._rows = rows
    model._comm = comm
    return model


@dataclass(kw_only=True)
class Served:
    """What rank 0 saw of some jobs, and this rank's counters."""

    logits: list[Tensor] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    counts: Counts


def serve(
    model: Model,
    comm: Comm,
    jobs: Sequence[Conversation],
    *,
    ahead: bool,
    chunk: int = CHUNK,
    leave: int = 0,
) -> Served:
    """Have conversations side by side; after `leave` steps the first one's reader goes."""
    meter = Meter()
    model._early, model.chunk = Early(meter.ahead), chunk
    runner = Runner(model, comm, slots=len(jobs), context=600, chunk=chunk, meter=meter)
    served = Served(counts=meter.ahead)
    if comm.rank:
        while runner.follow():
            pass
        return served
    bench = Bench(slots=len(jobs), chunk=chunk, context=600, ahead=ahead)
    requests = [bench.add(greedy(one)) for one in jobs]
    for number in range(1000):
        requests[0].canceled = requests[0].canceled or 0 < leave <= number
        step = bench.scheduler.plan()
        logits = runner.lead(step)
        served.logits += [one for one in (logits.prefill, logits.decode) if one is not None]
        bench.scheduler.apply(step, logits)
        if bench.scheduler.idle and not bench.scheduler.loose:
            break
    runner.lead(Step(stop=True))
    served.texts = [bench.text(i) for i in range(len(jobs))]
    return served


def greedy(one: Conversation) -> Job:
    return Job(
        prompt=one.prompt,
        max_tokens=len(one.answer),
        sampling=Sampling(temperature=0.0),
        eos=frozenset(),
    )


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    pairs = zip(one, two, strict=True)
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def test_a_long_conversation_has_the_same_bits(
    model: Model, canned: dict[str, Conversation]
) -> None:
    # over three real processes, with chunks asked for ahead, it is had by test_service.py
    one = replace(canned["long-prompt"], answer=canned["long-prompt"].answer[:3])
    off, on = (serve(model, Alone(), [one], ahead=ahead) for ahead in (False, True))
    assert on.texts == off.texts == [list(one.answer)]
    assert len(on.logits) == 7 + 2
    assert same(on.logits, off.logits)
    assert on.counts == Counts(asked=(416 - CHUNK) * ROWS, used=(416 - CHUNK) * ROWS)
    assert off.counts == Counts()


def test_prompts_that_take_turns_have_the_same_bits_at_two_ranks(
    loader: Loader, canned: dict[str, Conversation]
) -> None:
    jobs = [canned["thinking"], canned["multi-turn"]]
    jobs = [replace(one, answer=one.answer[:2]) for one in jobs]

    def work(comm: Comm) -> list[Served]:
        model = loader.model(comm)
        return [serve(model, comm, jobs, ahead=ahead, chunk=16) for ahead in (False, True)]

    for rank, (off, on) in enumerate(together(2, work)):
        columns = on.counts.asked // (38 + 25 - 16)
        assert 16 <= columns <= ROWS, "a rank asks for the columns of which it owns rows"
        assert on.counts == Counts(asked=(38 + 25 - 16) * columns, used=on.counts.asked)
        assert off.counts == Counts()
        if rank == 0:
            assert on.texts == off.texts == [list(one.answer) for one in jobs]
            assert same(on.logits, off.logits)


@pytest.mark.parametrize("chunk", [1, 3])
def test_the_look_back_goes_over_chunks_of_any_length(
    model: Model, canned: dict[str, Conversation], chunk: int
) -> None:
    one = canned["arithmetic"]
    off, on = (serve(model, Alone(), [one], ahead=ahead, chunk=chunk) for ahead in (False, True))
    assert on.texts == [list(one.answer)]
    assert same(on.logits, off.logits)
    assert on.counts == Counts(asked=(12 - chunk) * ROWS, used=(12 - chunk) * ROWS)


class Watched:
    """A row store that remembers the tickets it gave as long as they live."""

    def __init__(self, store: Any) -> None:
        self.store, self.tickets = store, weakref.WeakSet[Any]()
        self.rank, self.tp, self.partition = store.rank, store.tp, store.partition

    def submit(self, ids: Any, weights: Any, scales: Any) -> Any:
        ticket = self.store.submit(ids, weights, scales)
        self.tickets.add(ticket)
        return ticket


@pytest.mark.parametrize(("leave", "dropped"), [(1, 0), (2, 16), (3, 0)])
def test_a_reader_that_leaves_mid_prompt_leaves_no_ticket(
    loader: Loader, model: Model, canned: dict[str, Conversation], leave: int, dropped: int
) -> None:
    reader = loader.stores(loader.alone)
    stores = {n: Watched(store) for n, store in reader._stores.items()}  # type: ignore[attr-defined]
    failed = [store.store.stats()["failed_batches"] for store in stores.values()]
    jobs = [canned["prompt-66"], canned["multi-turn"]]
    put(model, StoreReader(stores), Alone())
    found = serve(model, Alone(), jobs, ahead=True, chunk=16, leave=leave)
    put(model, reader, Alone())
    assert found.texts == [[], list(jobs[1].answer)]
    counts = found.counts
    assert (counts.asked, counts.dropped) == (counts.used + counts.dropped, dropped * ROWS)
    assert not any(len(store.tickets) for store in stores.values())
    assert [store.store.stats()["failed_batches"] for store in stores.values()] == failed


def test_one_that_leaves_alone_leaves_no_ticket_either(
    loader: Loader, model: Model, canned: dict[str, Conversation]
) -> None:
    reader = loader.stores(loader.alone)
    stores = {n: Watched(store) for n, store in reader._stores.items()}  # type: ignore[attr-defined]
    put(model, StoreReader(stores), Alone())
    found = serve(model, Alone(), [canned["prompt-66"]], ahead=True, chunk=16, leave=2)
    put(model, reader, Alone())
    assert found.counts == Counts(asked=2 * 16 * ROWS, used=16 * ROWS, dropped=16 * ROWS)
    assert not any(len(store.tickets) for store in stores.values())


# --- time, on a disk and a network that are slow by a clock of their own


@dataclass(kw_only=True)
class Clock:
    """Milliseconds; what waits for rows says so."""

    now: int = 0
    waited: int = 0


class SlowDisk:
    """The real rows, `delay` after they were asked for."""

    def __init__(self, rows: RowReader, clock: Clock, *, delay: int) -> None:
        self._rows, self._clock, self._delay = rows, clock, delay

    def columns(self, engram: Engram, layer_id: int) -> Sequence[int]:
        return self._rows.columns(engram, layer_id)

    def ask(self, layer_id: int, ids: Tensor) -> Rows:
        found, there = self._rows.ask(layer_id, ids), self._clock.now + self._delay

        def rows() -> Tensor:
            left = max(0, there - self._clock.now)
            self._clock.waited += left
            self._clock.now += left
            return found()

        return rows


class SlowNetwork(Alone):
    """Every sum takes 5 ms: it stands for the time of a step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def sum(self, tensor: Tensor) -> Tensor:
        self._clock.now += 5
        return super().sum(tensor)


def test_the_time_of_a_slow_disk_passes_while_a_chunk_computes(
    loader: Loader, model: Model, canned: dict[str, Conversation]
) -> None:
    waited, took, delay = {}, {}, 30
    one = replace(canned["multi-turn"], answer=canned["multi-turn"].answer[:1])
    reader = loader.stores(loader.alone)
    for ahead in (False, True):
        clock = Clock()
        comm = SlowNetwork(clock)
        put(model, SlowDisk(reader, clock, delay=delay), comm)
        serve(model, comm, [one], ahead=ahead, chunk=5)  # 5 chunks
        waited[ahead], took[ahead] = clock.waited, clock.now
    put(model, reader, Alone())
    # a chunk takes 65 ms: only the first one's rows are waited for
    assert (waited[False], waited[True]) == (5 * delay, delay)
    assert took[False] - took[True] == 4 * delay
