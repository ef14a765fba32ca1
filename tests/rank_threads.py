"""Ranks of one model as threads of this process, and greedy text from them.

Sums go in rank order, so a run has the same bits every time. What a rank loads is kept for the
session: tests share it and must not write to it.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from dsv41 import rows
from dsv41.adapters import shard as sharding
from dsv41.geometry import DEFAULT_PARTITION, Shard
from dsv41.local.model.comm import Alone
from dsv41.local.model.config import ModelConfig
from dsv41.local.model.engram import StoreReader
from dsv41.local.model.transformer import Model
from dsv41.local.model.weights import load_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from dsv41.local.fixture.readout.conversations import Conversation
    from dsv41.local.model.comm import Comm
    from dsv41.local.model.engram import RowReader

T = TypeVar("T")


class Group:
    """Ranks that take turns: one runs until its next collective, then the next one.

    Threads that ran at once would spend more time handing over the interpreter than computing.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.turns = [threading.Semaphore(rank == 0) for rank in range(world)]
        # a rank may give to the next collective while others still read what this one gave
        self.given: tuple[list[Any], list[Any]] = ([None] * world, [None] * world)
        self.failed = False

    def wait(self, rank: int) -> None:
        if not self.turns[rank].acquire(timeout=60) or self.failed:
            raise RuntimeError("another rank failed")

    def fail(self) -> None:
        self.failed = True
        for turn in self.turns:
            turn.release()


class Member:
    """One rank of a group of threads."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank, self.world = group, rank, group.world
        self.round = 0

    def _all(self, tensor: Tensor) -> list[Tensor]:
        given = self.group.given[self.round % 2]
        self.round += 1
        given[self.rank] = tensor.clone()
        self.group.turns[(self.rank + 1) % self.world].release()
        self.group.wait(self.rank)
        return list(given)

    def sum(self, tensor: Tensor) -> Tensor:
        first, *others = self._all(tensor)
        total = first.clone()
        for other in others:
            total += other
        return tensor.copy_(total)

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        found = self._all(tensor)
        return None if self.rank else found

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self._all(tensor)[0])

    def close(self) -> None:
        pass


def together(world: int, work: Callable[[Comm], T]) -> list[T]:
    """Run `work` on every rank; the results in rank order."""
    if world == 1:
        return [work(Alone())]
    group = Group(world)

    def one(rank: int) -> T:
        torch.set_num_threads(1)
        try:
            group.wait(rank)
            result = work(Member(group, rank))
        except BaseException:
            group.fail()
            raise
        group.turns[(rank + 1) % world].release()
        return result

    with ThreadPoolExecutor(world) as pool:
        return [future.result() for future in [pool.submit(one, rank) for rank in range(world)]]


@dataclass(frozen=True, kw_only=True)
class Loader:
    """What the ranks of a checkpoint are made from; hashable, so that loads can be kept."""

    checkpoint: Path
    rows_dir: Path

    @property
    def config(self) -> ModelConfig:
        return _config(self.checkpoint)

    @property
    def alone(self) -> Shard:
        return Shard(rank=0, tp=1)

    @property
    def token_map(self) -> list[int]:
        return _token_map(self.checkpoint)

    def cut(self, name: str, tensor: Tensor, *, shard: Shard, fill: float) -> Tensor:
        """A whole tensor, padded and cut to a rank as the loader does it."""
        config = self.config
        padding = sharding.padding_for(
            heads=config.num_attention_heads,
            groups=config.o_groups,
            vocab=config.vocab_size,
            inner=config.moe_intermediate_size,
            experts=config.n_routed_experts,
            tp=shard.tp,
        )
        return sharding.pad_and_cut(name, tensor, shard=shard, padding=padding, fill=fill)

    def stores(self, shard: Shard) -> RowReader:
        return _reader(self.checkpoint, self.rows_dir, shard)

    def model(
        self,
        comm: Comm,
        *,
        layout: str = "legal",
        dtype: torch.dtype = torch.float32,
        fill: float = 0.0,
        weights: dict[str, Tensor] | None = None,
        **replaced: Any,
    ) -> Model:
        """A rank's model over the real row store; `weights` go over the checkpoint's."""
        shard = Shard(rank=comm.rank, tp=comm.world)
        loaded = load_shard(
            self.checkpoint, config=self.config, shard=shard, layout=layout, dtype=dtype, fill=fill
        )
        parts: dict[str, Any] = {"rows": self.stores(shard), "token_map": self.token_map}
        return Model(
            config=self.config,
            weights={**loaded, **(weights or {})},
            shard=shard,
            layout=layout,
            comm=comm,
            dtype=dtype,
            fill=fill,
            **{**parts, **replaced},
        )


@lru_cache
def _config(checkpoint: Path) -> ModelConfig:
    return ModelConfig.from_file(checkpoint)


@lru_cache
def _token_map(checkpoint: Path) -> list[int]:
    ids: list[int] = np.fromfile(checkpoint / "token_map.i32", "<i4").tolist()
    return ids


@lru_cache
def _reader(checkpoint: Path, rows_dir: Path, shard: Shard) -> RowReader:
    stores = rows.open_shard(
        rows_dir=rows_dir,
        engram=_config(checkpoint).engram,
        partition=DEFAULT_PARTITION,
        shard=shard,
        checkpoint=checkpoint,
        engine="pread",
    )
    return StoreReader(stores)


def greedy(
    model: Model, comm: Comm, conversations: Sequence[Conversation]
) -> list[tuple[int, ...]] | None:
    """Answer all conversations side by side, each to its answer's length; on rank 0."""
    model.chunk = 512  # in service 64: here only time counts
    count = len(conversations)
    room = max(len(c.prompt) + len(c.answer) for c in conversations)
    cache = model.cache(slots=count, capacity=room)
    said: list[list[int]] = [[] for _ in conversations]
    next_ids = torch.zeros(count, dtype=torch.int64)
    for slot, conversation in enumerate(conversations):
        logits = model.prefill(cache, slot=slot, tokens=conversation.prompt)
        if logits is not None:
            next_ids[slot] = logits.argmax()
    while True:
        comm.broadcast(next_ids)
        for slot, conversation in enumerate(conversations):
            if len(said[slot]) < len(conversation.answer):
                said[slot].append(int(next_ids[slot]))
        left = [len(s) < len(c.answer) for s, c in zip(said, conversations, strict=True)]
        if not any(left):
            return None if comm.rank else [tuple(answer) for answer in said]
        logits = model.decode(cache, tokens=next_ids, active=torch.tensor(left))
        if logits is not None:
            next_ids = logits.argmax(1)
