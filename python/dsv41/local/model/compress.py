"""CSA2: source layers make compressed entries and index keys, index layers select among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from dsv41.local.model.batch import Keys
from dsv41.local.model.codec import fake_quant_fp4_e4m3, fake_quant_fp4_e8m0
from dsv41.local.model.indexer import TILE, Selector, index_scores
from dsv41.local.model.norm import RmsNorm
from dsv41.local.model.rope import rotate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from dsv41.local.model.batch import Batch
    from dsv41.local.model.cache import Cache
    from dsv41.local.model.config import ModelConfig


class Compressor:
    """Makes one entry of `ratio` tokens: a gated mean per channel, normed, rotated, in FP4.

    The index key of the entry comes from its normed latent before the rotation.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], *, layer: int) -> None:
        prefix = f"layers.{layer}.attn."
        self._layer, eps = layer, config.rms_norm_eps
        self._ratio = config.compress_ratios[layer]
        self.projections = [weights[prefix + "compressor.wkv.weight"]]
        if self._ratio > 1:
            self.projections.append(weights[prefix + "compressor.wgate.weight"])
        norm, k_norm = (
            weights[f"{prefix}{n}.weight"] for n in ("compressor.norm", "indexer.k_norm")
        )
        self._norm = RmsNorm(config.head_dim, eps=eps, weight=norm)
        self._k_norm = RmsNorm(config.index_head_dim, eps=eps, weight=k_norm)
        self._wk = weights[prefix + "indexer.wk.weight"]

    def append(self, projected: Sequence[Tensor], batch: Batch, cache: Cache) -> None:
        """Take the tokens in: `projected` is wkv (and wgate) of the rows, [n, head_dim] each.

        In decode every row writes the entry of its group, complete or not: an incomplete one is not
        visible yet and its group's next token overwrites it. So shapes never depend on positions.
        """
        rows, latent = self._pool(projected, batch, cache)
        if not latent.shape[0]:
            return
        latent = self._norm(latent)
        turn = batch.group_turn[self._ratio][rows]
        key = rotate(self._k_norm(F.linear(latent, self._wk)), turn)
        store = cache.compressed[self._layer]
        at = batch.slots[rows] * store.shape[1] + batch.positions[rows] // self._ratio
        store.flatten(0, 1).index_copy_(0, at, fake_quant_fp4_e4m3(rotate(latent, turn)))
        cache.keys[self._layer].flatten(0, 1).index_copy_(0, at, fake_quant_fp4_e8m0(key))

    def _pool(
        self, projected: Sequence[Tensor], batch: Batch, cache: Cache
    ) -> tuple[slice, Tensor]:
        """Find the rows that write an entry, and the entries' pooled values [m, head_dim]."""
        if self._ratio == 1:
            return slice(None), projected[0]
        tail = cache.pending[self._layer]
        new = torch.stack(list(projected[:2]), 1)  # [n, 2, head_dim]: value and gate
        if batch.start is None:
            group = torch.cat([tail[batch.slots], new.unsqueeze(1)], 1)
            tail.index_copy_(0, batch.slots, group[:, 1:])
            return slice(None), _pooled(group)
        slot = batch.slot_list[0]
        run = torch.cat([tail[slot], new])
        rows = slice(-(batch.start + 1) % self._ratio, None, self._ratio)
        tail[slot] = run[1 - self._ratio :]
        return rows, _pooled(run.unfold(0, self._ratio, 1)[rows].movedim(-1, 1))


def _pooled(group: Tensor) -> Tensor:
    """Softmax of the gates over the group weighs the values: [m, ratio, 2, dim] -> [m, dim]."""
    return (group[:, :, 0] * group[:, :, 1].softmax(1)).sum(1)


class Index:
    """Index layer: scores the source's keys, selects entries for itself and the next layers."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], *, layer: int) -> None:
        prefix = f"layers.{layer}.attn.indexer."
        self._ratio = config.compress_ratios[layer]
        self._source = max(source for source in config.kv_source_layer_ids if source <= layer)
        self._heads, dim = config.index_n_heads, config.index_head_dim
        self.wq_b = weights[prefix + "wq_b.weight"]
        scale = dim**-0.5 * self._heads**-0.5
        self.weights_proj = weights[prefix + "weights_proj.weight"] * scale
        self._selector = Selector(config, layer=layer)

    def select(self, queries: Tensor, weights: Tensor, batch: Batch, cache: Cache) -> None:
        """Set `batch.picks` of the source from queries [n, heads * dim] and weights [n, heads]."""
        keys = cache.keys[self._source]
        visible = batch.visible[self._ratio]
        counts = [(place + 1) // self._ratio for place in batch.places]
        if self._selector.few(max(counts)):
            pick = self._selector.first(visible, keys.shape[1])
        else:
            queries = queries.reshape(batch.rows, self._heads, -1)
            queries = fake_quant_fp4_e8m0(rotate(queries, batch.turn[True]))
            scores = self._scores(queries, weights, counts, batch, keys)
            pick, batch.candidates = self._selector.best(scores, visible, batch.candidates)
        at = batch.slots.unsqueeze(1) * keys.shape[1] + pick.index
        batch.picks[self._source] = Keys.of(at, pick.valid, dtype=keys.dtype)

    def _scores(
        self, queries: Tensor, weights: Tensor, counts: list[int], batch: Batch, keys: Tensor
    ) -> Tensor:
        """Scores [n, width] of what each row sees.

        In decode each row is scored by itself, over a width that its own length sets, so that no
        bit depends on other slots; the selection from them is exact at any width. A row that sees
        so few entries that all are selected is not scored: its scores are zeros.
        """
        if batch.start is not None:
            width = _tiles(counts[-1], keys)
            return index_scores(queries, keys[batch.slot_list[0], :width], weights)
        scores = queries.new_zeros(batch.rows, _tiles(max(counts), keys))
        for row, (slot, count) in enumerate(zip(batch.slot_list, counts, strict=True)):
            if not self._selector.few(count):
                width, one = _tiles(count, keys), slice(row, row + 1)
                scores[row, :width] = index_scores(queries[one], keys[slot, :width], weights[one])
        return scores


def _tiles(count: int, keys: Tensor) -> int:
    """A width of whole tiles, or of the whole buffer, that holds `count` entries."""
    return min(-(-count // TILE) * TILE, keys.shape[1])
