"""Ranks: padded equals unpadded, every number of ranks says the same, and mistakes show."""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from dsv41_rows import RowsError

from dsv41 import rows
from dsv41.geometry import DEFAULT_PARTITION, Shard, partition
from dsv41.local.comm import Alone
from dsv41.local.engram import StoreReader
from dsv41.local.readout.conversations import Conversation, conversations
from rank_threads import Loader, greedy, together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from dsv41.geometry import Engram
    from dsv41.local.comm import Comm
    from dsv41.local.engram import RowReader
    from dsv41.local.model import Model

PROMPT, STEPS = 40, 100
# (ranks, layout); TP3 pads 8 groups to 12 (legal) or 9 (balanced), the latter with 6 heads of 8 in
# the kernel; at TP4 the experts' inner width is padded from 6 to 8 blocks, so rank 3 has none
WAYS = [(3, "legal"), (3, "balanced"), (2, "legal"), (4, "legal")]


@pytest.fixture(scope="module")
def loader(checkpoint: Path, rows_dir: Path) -> Loader:
    torch.set_num_threads(1)
    return Loader(checkpoint=checkpoint, rows_dir=rows_dir)


@pytest.fixture(scope="module")
def canned(checkpoint: Path) -> list[Conversation]:
    return conversations((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))


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


@pytest.mark.parametrize(("tp", "layout"), WAYS)
def test_any_number_of_ranks_says_the_same(
    loader: Loader, unpadded: tuple[list[int], Tensor], tp: int, layout: str
) -> None:
    # with NaN in all memory that nobody writes and in the heads that only the kernel wants
    steps = STEPS if layout == "legal" else 20
    said, logits = exact(loader, tp, layout, steps=steps, fill=math.nan)
    assert said == unpadded[0][:steps]
    assert len(set(said)) > steps // 2
    assert (logits - unpadded[1][:steps]).abs().max() < 1e-12 * unpadded[1].abs().max()


@pytest.mark.parametrize("layout", ["legal", "balanced"])
def test_zero_weights_alone_remove_padded_heads(
    loader: Loader, unpadded: tuple[list[int], Tensor], layout: str
) -> None:
    said, logits = exact(loader, 3, layout, steps=2, clear=False)
    assert said == unpadded[0][:2]
    assert (logits - unpadded[1][:2]).abs().max() < 1e-12 * unpadded[1].abs().max()


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


# --- the fitted conversations ------------------------------------------------------------------


def answers(model: Model, canned: Sequence[Conversation]) -> list[tuple[int, ...]] | None:
    """What is said at each position of the answers when they are given; on rank 0."""
    model.chunk = 512
    found = []
    for conversation in canned:
        said = [*conversation.prompt, *conversation.answer[:-1]]
        cache = model.cache(slots=1, capacity=len(said))
        states = model.states(cache, slot=0, tokens=said)[len(conversation.prompt) - 1 :]
        logits = model._head(states)
        if logits is not None:
            found.append(tuple(logits.argmax(1).tolist()))
    return found or None


def brief(canned: list[Conversation]) -> list[Conversation]:
    return [conversation for conversation in canned if len(conversation.prompt) < 300]


@pytest.mark.parametrize("tp", [2, 4])
def test_the_conversations_at_two_and_four_ranks(
    loader: Loader, canned: list[Conversation], tp: int
) -> None:
    short = brief(canned)
    found = together(tp, lambda comm: answers(loader.model(comm), short))[0]
    assert found == [conversation.answer for conversation in short]


def test_the_conversations_at_one_rank_side_by_side(
    loader: Loader, canned: list[Conversation]
) -> None:
    found = greedy(loader.model(Alone()), Alone(), canned)
    assert found == [conversation.answer for conversation in canned]


class Mistaken:
    """A reader that is asked for the right rows and gives what `change` makes of it."""

    def __init__(self, rows: RowReader, change: Callable[[int, Tensor], Tensor]) -> None:
        self._rows, self._change = rows, change

    def columns(self, engram: Engram, layer_id: int) -> Sequence[int]:
        return self._rows.columns(engram, layer_id)

    def rows(self, layer_id: int, ids: Tensor) -> Tensor:
        return self._rows.rows(layer_id, self._change(layer_id, ids))


def exchanged(engram: Engram, layer_id: int, ids: Tensor) -> Tensor:
    """Two ranks' row files in each other's place: the same local row of the other rank."""
    split = partition(DEFAULT_PARTITION, engram=engram, layer_id=layer_id, tp=2)
    moved = torch.full_like(ids, -1)
    for rank in (0, 1):
        local = split.locals_of(rank, ids)
        theirs = split.globals_of(1 - rank, local)
        moved = torch.where(local >= 0, theirs, moved)
    return moved


def mistakes(loader: Loader) -> dict[str, dict[str, Any]]:
    rows, engram = loader.stores(loader.alone), loader.config.engram
    return {
        "zeroed tables": {"rows": Mistaken(rows, lambda _, ids: torch.full_like(ids, -1))},
        "rows off by one": {"rows": Mistaken(rows, lambda _, ids: ids - 1)},
        "exchanged row files": {"rows": Mistaken(rows, partial(exchanged, engram))},
        "rolled token map": {"token_map": [*loader.token_map[1:], loader.token_map[0]]},
    }


def test_mistakes_with_rows_break_the_conversations(
    loader: Loader, canned: list[Conversation]
) -> None:
    short = brief(canned)
    for mistake, parts in mistakes(loader).items():
        found = answers(loader.model(Alone(), **parts), short)
        assert found is not None
        right = [c.name for c, said in zip(short, found, strict=True) if c.answer == said]
        assert not right, f"{mistake}: still answered are {right}"


def test_pages_of_another_rank_are_never_read_as_ones_own(
    loader: Loader, rows_dir: Path, tmp_path: Path
) -> None:
    # behind the header, which stays as it is: a row's checksum covers its layer and number
    names = [
        [rows.file_name(layer=n, rank=rank, tp=2, partition=DEFAULT_PARTITION) for rank in (0, 1)]
        for n in (1, 2)
    ]
    contents = [(rows_dir / name).read_bytes() for name in names[0]]
    common = min(map(len, contents))
    for name, own, other in zip(names[0], contents, reversed(contents), strict=True):
        (tmp_path / name).write_bytes(own[:4096] + other[4096:common] + own[common:])
    for name in names[1]:
        (tmp_path / name).symlink_to(rows_dir / name)
    split = partition(DEFAULT_PARTITION, engram=loader.config.engram, layer_id=1, tp=2)
    for rank in (0, 1):
        first = split.ranges(rank)[0].lo
        ids = torch.arange(first, first + 24).view(1, 24)
        assert reader(loader, rows_dir, rank).rows(1, ids).any(2).all()
        with pytest.raises(RowsError, match=r"(?i)checksum|crc"):
            reader(loader, tmp_path, rank).rows(1, ids)


def reader(loader: Loader, folder: Path, rank: int) -> RowReader:
    stores = rows.open_shard(
        rows_dir=folder,
        engram=loader.config.engram,
        partition=DEFAULT_PARTITION,
        shard=Shard(rank=rank, tp=2),
        checkpoint=loader.checkpoint,
        engine="pread",
    )
    return StoreReader(stores)
