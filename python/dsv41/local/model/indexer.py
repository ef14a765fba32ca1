"""Which compressed entries a query attends to: index scores, candidate blocks and a stable top-k.

Scores pass a ReLU, so many are exactly zero and equal. The tie rule is: the lowest index wins;
without a rule, prefill and decode of the same text select different entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.local.model.config import ModelConfig

TILE = 64  # scores are computed for a multiple of this many entries, so that shapes repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """Entries that queries attend to: `index` int64 [n, k] ascending, `valid` bool [n, k]."""

    index: Tensor
    valid: Tensor


def keep_best(scores: Tensor, count: int) -> Tensor:
    """Mark the `count` largest of each row, among equals those of the lowest index.

    `scores` [n, width] holds no NaN and is wider than `count`; the result is bool [n, width].
    """
    least = scores.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, level = scores > least, scores == least
    room = count - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= room))


def index_scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """Sum over heads of relu(q . k) times the head's weight: [n, width].

    `queries` are [n, heads, dim], `keys` [width, dim], `weights` [n, heads].
    """
    products = (queries.flatten(0, 1) @ keys.t()).relu_().view(*queries.shape[:2], -1)
    return products.mul_(weights.unsqueeze(-1)).sum(1)


class Selector:
    """Top-k selection of one index layer."""

    def __init__(self, config: ModelConfig, *, layer: int) -> None:
        self._count = config.index_topk
        self._blocks = config.candidate_topk_blocks
        self._block = config.candidate_block_size
        source = config.candidate_source_layer_id
        self.makes_candidates = layer == source
        self.uses_candidates = 0 <= source < layer

    def few(self, visible: int) -> bool:
        """Whether `visible` entries are all selected, without any score."""
        if self.uses_candidates or self.makes_candidates:
            return visible <= min(self._count, self._blocks * self._block)
        return visible <= self._count

    def first(self, visible: Tensor, width: int) -> Pick:
        """Select all visible entries, for queries that see few: int64 [n] -> new [n, topk]."""
        place = torch.arange(self._count)
        index = place.clamp_max(width - 1).repeat(len(visible), 1)
        return Pick(index=index, valid=place < visible.unsqueeze(1))

    def best(
        self, scores: Tensor, visible: Tensor, candidates: Tensor | None
    ) -> tuple[Pick, Tensor | None]:
        """Select by scores [n, width]; the result is the selection and the candidates.

        `visible` int64 [n] says how many entries each query sees. `candidates` bool [n, width] is
        what the candidate layer returned for the same queries; None is no limit.
        """
        hidden = torch.arange(scores.shape[1]) >= visible.unsqueeze(1)
        scores = scores.masked_fill_(hidden, -torch.inf)
        if self.makes_candidates:
            candidates = self._candidates(scores, visible)
        elif self.uses_candidates and candidates is not None:
            scores.masked_fill_(~candidates, -torch.inf)
        return self._pick(scores), candidates

    def _pick(self, scores: Tensor) -> Pick:
        width = scores.shape[1]
        if width <= self._count:
            place = torch.arange(self._count)
            index = place.clamp_max(width - 1).expand(len(scores), -1)
            return Pick(index=index, valid=(scores.gather(1, index) > -torch.inf) & (place < width))
        index = keep_best(scores, self._count).nonzero()[:, 1].view(len(scores), -1)
        return Pick(index=index, valid=scores.gather(1, index) > -torch.inf)

    def _candidates(self, scores: Tensor, visible: Tensor) -> Tensor | None:
        """Entries of the best blocks; the newest entry's block is always among them."""
        width = scores.shape[1]
        if width <= self._blocks * self._block:
            return None
        padded = F.pad(scores, (0, -width % self._block), value=-torch.inf)
        best = padded.view(len(scores), -1, self._block).amax(-1)
        newest = (visible.unsqueeze(1) - 1).div(self._block, rounding_mode="floor")
        best.masked_fill_(torch.arange(best.shape[1]) == newest, torch.inf)
        return keep_best(best, self._blocks).repeat_interleave(self._block, 1)[:, :width]
