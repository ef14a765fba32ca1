"""Ranks in float64: padded equals unpadded, and any number of ranks says the same."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from dsv41.geometry import Shard
from rank_threads import Loader, together

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.local.model.comm import Comm
    from dsv41.local.model.transformer import Model

PROMPT, STEPS = 40, 100
# (ranks, layout); TP3 pads 8 groups to 12 (legal) or 9 (balanced), the latter with 6 heads of 8 in
# the kernel; the experts have an inner width of 3 blocks, padded to 4 at TP2 and TP4
WAYS = [(3, "legal"), (3, "balanced"), (2, "legal"), (4, "legal")]


@pytest.fixture(scope="module")
def loader(checkpoint: Path, rows_dir: Path) -> Loader:
    torch.set_num_threads(1)
    return Loader(checkpoint=checkpoint, rows_dir=rows_dir)


def prompt() -> list[int]:
    draw = random.Random(11)
    return [draw.randrange(3, 128000) for _ in range(PROMPT)]


def run_on(model: Model, comm: Comm, *, steps: int) -> tuple[list[int], Tensor] | None:
    """A random text, then greedy tokens; the tokens and all steps' logits on rank 0."""
    cache = model.cache(slots=1, capacity=PROMPT + steps)
    logits, tokens, said = model.prefill(cache, slot=0, tokens=prompt()), torch.zeros(1).long(), []
    seen: list[Tensor] = []
    for _ in range(steps):
        if logits is not None:
            seen.append(logits.flatten()[HEAD_ROWS].clone())
            tokens[0] = logits.argmax()
        comm.broadcast(tokens)
        said.append(int(tokens[0]))
        logits = model.decode(cache, tokens=tokens, active=torch.tensor([True]))
    return None if comm.rank else (said, torch.stack(seen))


HEAD_ROWS = torch.arange(7, 129280, 61)  # 2120 tokens all over the vocabulary get a random row


def head(loader: Loader, shard: Shard, *, fill: float) -> dict[str, Tensor]:
    table = torch.zeros(129280, loader.config.hidden_size, dtype=torch.float64)
    table[HEAD_ROWS] = torch.randn(
        len(HEAD_ROWS), table.shape[1], generator=torch.Generator().manual_seed(3)
    ).double()
    return {"head.weight": loader.cut("head.weight", table, shard=shard, fill=fill)}


def exact(
    loader: Loader, tp: int, layout: str, *, steps: int, fill: float = 0.0, clear: bool = True
) -> tuple[list[int], Tensor]:
    """`run_on` in float64; without `clear` only zero weights remove what padded heads return."""

    def work(comm: Comm) -> tuple[list[int], Tensor] | None:
        shard = Shard(rank=comm.rank, tp=tp)
        over = head(loader, shard, fill=fill)
        model = loader.model(comm, layout=layout, dtype=torch.float64, fill=fill, weights=over)
        if not clear:
            for layer in model._layers:
                layer.attention._real_heads = layer.attention._heads
        return run_on(model, comm, steps=steps)

    found = together(tp, work)[0]
    assert found is not None
    return found


@pytest.fixture(scope="module")
def unpadded(loader: Loader) -> tuple[list[int], Tensor]:
    return exact(loader, 1, "legal", steps=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "layout"), WAYS)
def test_any_number_of_ranks_says_the_same(
    loader: Loader, unpadded: tuple[list[int], Tensor], tp: int, layout: str
) -> None:
    # with NaN in all memory that nobody writes and in the heads that only the kernel wants
    steps = STEPS if layout == "legal" else 6
    said, logits = exact(loader, tp, layout, steps=steps, fill=math.nan)
    assert said == unpadded[0][:steps]
    assert len(set(said)) >= steps // 2
    assert (logits - unpadded[1][:steps]).abs().max() < 1e-12


def test_zero_weights_alone_remove_padded_heads(
    loader: Loader, unpadded: tuple[list[int], Tensor]
) -> None:
    said, logits = exact(loader, 3, "legal", steps=2, clear=False)  # rank 2 is all padding
    assert said == unpadded[0][:2]
    assert (logits - unpadded[1][:2]).abs().max() < 1e-12


def test_poison_in_padding_changes_no_bit(loader: Loader) -> None:
    clean, poisoned = (exact(loader, 3, "balanced", steps=3, fill=fill) for fill in (0.0, math.nan))
    assert torch.equal(clean[1], poisoned[1])


def test_poison_in_padded_heads_changes_no_bit(loader: Loader) -> None:
    def work(comm: Comm) -> Tensor | None:
        found = []
        for poison in (0.0, math.nan):
            model = loader.model(comm)
            for layer in model._layers:  # rank 2 holds nothing real, rank 0 nothing padded
                sink = layer.attention._sink
                sink[:, layer.attention._real_heads :] += poison
            found.append(run_on(model, comm, steps=3))
        return None if comm.rank else torch.stack([f[1] for f in found if f is not None])

    clean, poisoned = together(3, work)[0]  # type: ignore[misc]
    assert clean.isfinite().all()
    assert torch.equal(clean, poisoned)
