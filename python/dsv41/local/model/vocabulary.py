"""Token embedding and output head of one rank's part of the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from dsv41.geometry import Shard, pad_vocab

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from dsv41.local.model.comm import Comm
    from dsv41.local.model.config import ModelConfig


class Embedding:
    """Rows of the ids that this rank holds."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], *, shard: Shard) -> None:
        self._table = weights["embed.weight"]
        self._first = shard.rank * pad_vocab(config.vocab_size, tp=shard.tp).per_rank

    def __call__(self, ids: Tensor) -> Tensor:
        """int64 [n] -> [n, d]; ids of other ranks give zeros."""
        local = ids - self._first
        foreign = (local < 0) | (local >= len(self._table))
        return self._table[local.masked_fill(foreign, 0)].masked_fill_(foreign.unsqueeze(1), 0)


class Head:
    """Logits of all tokens, from the rows of the head that are not wholly zero.

    A row of zeros gives a logit of exactly zero. All but some hundred rows of the fixture's head
    are such; with them left out a step of eight rows takes 18 ms less (129,280 rows of 128, one
    x86-64 core) and the ranks send kilobytes instead of megabytes.

    Construction is a collective: the ranks tell each other which rows are not zero.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], *, shard: Shard, comm: Comm
    ) -> None:
        self._comm, self._vocab = comm, config.vocab_size
        table = weights["head.weight"]
        per_rank = pad_vocab(config.vocab_size, tp=shard.tp).per_rank
        used = torch.zeros(shard.tp, per_rank)
        used[shard.rank] = (table != 0).any(1).float()  # NaN is not zero
        comm.sum(used)
        counts = used.count_nonzero(1).tolist()
        # every rank sends equal shapes: as many columns as the fullest rank has
        self._table = F.pad(
            table[used[shard.rank] > 0], (0, 0, 0, max(counts) - counts[shard.rank])
        ).contiguous()
        rows = [used[rank].nonzero()[:, 0] + rank * per_rank for rank in range(shard.tp)]
        # columns of rows beyond the vocabulary are padding and are cut
        self._kept = [torch.arange(len(ids))[ids < self._vocab] for ids in rows]
        self._ids = [ids[ids < self._vocab] for ids in rows]

    def __call__(self, hidden: Tensor) -> Tensor | None:
        """Normed final states [n, d] -> logits [n, vocab] on rank 0, None elsewhere."""
        parts = self._comm.gather(F.linear(hidden, self._table))
        if parts is None:
            return None
        logits = hidden.new_zeros(len(hidden), self._vocab)
        for part, kept, ids in zip(parts, self._kept, self._ids, strict=True):
            logits[:, ids] = part[:, kept]
        return logits
