"""The model on one rank: against an independent implementation, against itself, part by part."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from dsv41.errors import UsageError
from dsv41.local.model.comm import Alone
from rank_threads import Loader

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.local.model.cache import Cache
    from dsv41.local.model.transformer import Model

ORACLE = Path(__file__).parent / "cases" / "oracle.safetensors"
LONG = 84  # tokens: the window's ring wraps; more entries than top-k and candidates take


def text(length: int, *, salt: int) -> list[int]:
    draw = random.Random(salt)
    return [draw.randrange(3, 128000) for _ in range(length)]


@pytest.fixture(scope="module")
def loader(checkpoint: Path, rows_dir: Path) -> Loader:
    torch.set_num_threads(1)
    return Loader(checkpoint=checkpoint, rows_dir=rows_dir)


@pytest.fixture(scope="module")
def exact(loader: Loader) -> Model:
    """In float64; memory that nobody wrote holds NaN."""
    return loader.model(Alone(), dtype=torch.float64, fill=math.nan)


@pytest.fixture(scope="module")
def quick(loader: Loader) -> Model:
    """As in service."""
    return loader.model(Alone())


@pytest.fixture(scope="module")
def whole(exact: Model) -> Tensor:
    """Normed final states of a long text in one pass: float64 [n, d]."""
    return states(exact, text(LONG, salt=1), chunk=LONG)


def states(model: Model, tokens: list[int], *, chunk: int) -> Tensor:
    model.chunk = chunk
    cache = model.cache(slots=2, capacity=len(tokens))
    try:
        return model.states(cache, slot=1, tokens=tokens).clone()
    finally:
        del model.chunk


# What an independent implementation gives: NVIDIA's nemo-automodel 0.7.0 (its top-k made stable),
# run in float32 on the fixture by scripts/freeze_oracle.py; every tenth position of 150 tokens.
@pytest.mark.parametrize("kind", ["exact", "quick"])
def test_the_states_are_those_of_an_independent_implementation(
    request: pytest.FixtureRequest, kind: str
) -> None:
    frozen = load_file(ORACLE)
    model: Model = request.getfixturevalue(kind)
    found = states(model, frozen["ids"].tolist(), chunk=64)[frozen["positions"]]
    assert frozen["states"].abs().max() > 2
    assert (found - frozen["states"]).abs().max() < 1e-4


def test_prefill_is_one_token_decode(exact: Model, whole: Tensor) -> None:
    tokens = text(LONG, salt=1)
    cache = exact.cache(slots=1, capacity=LONG)
    for state, token in zip(whole, tokens, strict=True):
        wanted = exact._head(state.unsqueeze(0))
        logits = exact.decode(cache, tokens=torch.tensor([token]), active=torch.tensor([True]))
        assert wanted is not None
        assert logits is not None
        assert wanted.abs().max() > 1
        assert (logits - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("chunk", [7, 64])
def test_chunked_prefill_is_whole_prefill(exact: Model, whole: Tensor, chunk: int) -> None:
    assert (states(exact, text(LONG, salt=1), chunk=chunk) - whole).abs().max() < 1e-12


def test_every_position_depends_on_all_that_selection_leaves(exact: Model, whole: Tensor) -> None:
    other = text(LONG, salt=1)
    other[20] += 1
    changed = (states(exact, other, chunk=LONG) - whole).abs().amax(1)
    assert changed[:20].max() == 0
    assert changed[20:30].min() > 1e-3
    assert changed[30:].max() > 1e-3  # beyond every window: through compressed entries alone


class Streams:
    """Slots that prefill and decode texts; what a slot gets does not depend on others' calls."""

    def __init__(self, model: Model, *, slots: int) -> None:
        self.model, self.slots = model, slots
        self.cache: Cache = model.cache(slots=slots, capacity=256)

    def prefill(self, slot: int, tokens: list[int]) -> Tensor:
        logits = self.model.prefill(self.cache, slot=slot, tokens=tokens)
        assert logits is not None
        return logits

    def decode(self, slots: dict[int, int]) -> Tensor:
        tokens = torch.full((self.slots,), 77)
        active = torch.zeros(self.slots, dtype=torch.bool)
        for slot, token in slots.items():
            tokens[slot], active[slot] = token, True
        logits = self.model.decode(self.cache, tokens=tokens, active=active)
        assert logits is not None
        return logits


def alone(streams: Streams, slot: int) -> list[Tensor]:
    """A text of one slot: a prompt of two chunks, then ten tokens."""
    found = [streams.prefill(slot, text(70, salt=2))]
    return found + [streams.decode({slot: token})[slot] for token in text(10, salt=3)]


def test_no_bit_depends_on_neighbors(quick: Model) -> None:
    wanted = alone(Streams(quick, slots=4), 2)
    busy = Streams(quick, slots=4)
    busy.prefill(0, text(90, salt=4))
    found = [busy.prefill(2, text(70, salt=2))]
    for step, token in enumerate(text(10, salt=3)):
        if step == 4:
            busy.model.reset(busy.cache, slot=0)
        if step in (3, 5):  # a neighbor's prompt comes in two parts, with decodes in between
            busy.prefill(1, text(33, salt=5))
        others = {0: 5 + step} if step != 4 else {3: 8}
        found.append(busy.decode({2: token, **others})[2])
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_used_slot_is_as_a_fresh_one_and_as_any_other(quick: Model) -> None:
    streams = Streams(quick, slots=4)
    wanted = alone(streams, 2)
    streams.prefill(2, text(50, salt=6))
    for slot in (2, 0):
        quick.reset(streams.cache, slot=slot)
        found = alone(streams, slot)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_full_slot_is_refused(quick: Model) -> None:
    cache = quick.cache(slots=1, capacity=5)
    quick.prefill(cache, slot=0, tokens=[3, 4, 5])
    with pytest.raises(UsageError, match=r"D059 Slot 0 holds 3 .* 5: 3 more"):
        quick.prefill(cache, slot=0, tokens=[3, 4, 5])
    for token in (6, 7):
        quick.decode(cache, tokens=torch.tensor([token]), active=torch.tensor([True]))
    with pytest.raises(UsageError, match="D059"):
        quick.decode(cache, tokens=torch.tensor([8]), active=torch.tensor([True]))
    assert cache.lengths == [5]


def test_memory_of_a_service_is_small(quick: Model) -> None:
    assert quick.cache(slots=8, capacity=4096).bytes < 20e6
