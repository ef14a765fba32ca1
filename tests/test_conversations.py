"""The fitted conversations at any number of ranks, and what mistakes with rows do to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from dsv41_rows import RowsError

from dsv41 import rows
from dsv41.geometry import DEFAULT_PARTITION, Shard, partition
from dsv41.local.fixture.readout.conversations import Conversation, conversations
from dsv41.local.model.comm import Alone
from dsv41.local.model.engram import StoreReader
from rank_threads import Loader, greedy, together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from dsv41.geometry import Engram
    from dsv41.local.model.engram import RowReader, Rows
    from dsv41.local.model.transformer import Model


@pytest.fixture(scope="module")
def loader(checkpoint: Path, rows_dir: Path) -> Loader:
    torch.set_num_threads(1)
    return Loader(checkpoint=checkpoint, rows_dir=rows_dir)


@pytest.fixture(scope="module")
def canned(checkpoint: Path) -> list[Conversation]:
    return conversations((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))


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
    return [conversation for conversation in canned if len(conversation.prompt) < 100]


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_the_conversations_at_any_number_of_ranks(
    loader: Loader, canned: list[Conversation], tp: int
) -> None:
    # over three real processes they are had by test_service.py
    found = together(tp, lambda comm: answers(loader.model(comm), canned))[0]
    assert found == [conversation.answer for conversation in canned]


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

    def ask(self, layer_id: int, ids: Tensor) -> Rows:
        return self._rows.ask(layer_id, self._change(layer_id, ids))


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
        assert reader(loader, rows_dir, rank).ask(1, ids)().any(2).all()
        with pytest.raises(RowsError, match=r"(?i)checksum|crc"):
            reader(loader, tmp_path, rank).ask(1, ids)()


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
