"""Attention of one layer: one key-value latent, window, compressed entries, sinks, grouped output.

A layer with ratio 0 sees only its window. One with ratio > 0 also sees selected compressed entries:
a source layer makes them (and the index keys), an index layer selects, the others reuse both. Heads
are sharded over the ranks; the result is this rank's part of a sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from dsv41.local.model.codec import fake_quant_fp8
from dsv41.local.model.compress import Compressor, Index
from dsv41.local.model.norm import RmsNorm
from dsv41.local.model.rope import rotate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from dsv41.geometry import AttentionPadding
    from dsv41.local.model.batch import Batch
    from dsv41.local.model.cache import Cache
    from dsv41.local.model.config import ModelConfig


class Attention:
    """One layer's attention on one rank.

    Args:
        weights: this rank's tensors under their official names.
        padding: local heads and groups, and the head count that a kernel is called with.
        real_heads: how many of the local heads are no padding.
        fill: what stands in memory that a kernel allocates and nobody writes (NaN in proofs).
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        layer: int,
        padding: AttentionPadding,
        real_heads: int,
        fill: float = 0.0,
    ) -> None:
        prefix = f"layers.{layer}.attn."
        self._layer, self._config = layer, config
        self._heads, self._groups = padding.local_heads, padding.local_groups
        self._kernel_heads, self._real_heads, self._fill = padding.kernel_heads, real_heads, fill
        eps = config.rms_norm_eps
        self._q_norm = RmsNorm(
            config.q_lora_rank, eps=eps, weight=weights[prefix + "q_norm.weight"]
        )
        self._kv_norm = RmsNorm(config.head_dim, eps=eps, weight=weights[prefix + "kv_norm.weight"])
        ratio = config.compress_ratios[layer]
        self._compressed = ratio > 0
        self.source = max((s for s in config.kv_source_layer_ids if s <= layer), default=-1)
        self._compressor = self._index = None
        if layer in config.kv_source_layer_ids:
            self._compressor = Compressor(config, weights, layer=layer)
        if layer in config.index_source_layer_ids:
            self._index = Index(config, weights, layer=layer)
        self._stack(weights, prefix)
        sink = weights[prefix + "attn_sink"]
        self._sink = F.pad(sink, (0, self._kernel_heads - self._heads)).view(1, -1, 1)

    def _stack(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        """Projections that read the same tensor become one product each."""
        own = [weights[f"{prefix}{name}.weight"] for name in ("wq_a", "wkv")]
        if self._compressor is not None:
            own += self._compressor.projections
        if self._index is not None:
            own.append(self._index.weights_proj)
        self._from_hidden = torch.cat(own)
        self._hidden_sizes = [len(weight) for weight in own]
        queries = [weights[prefix + "wq_b.weight"]]
        if self._index is not None:
            queries.append(self._index.wq_b)
        self._from_latent = torch.cat(queries)
        self._latent_sizes = [len(weight) for weight in queries]
        rank = self._config.o_lora_rank
        grouped = weights[prefix + "wo_a.weight"].view(self._groups, rank, -1)
        self._wo_a = grouped.transpose(1, 2).contiguous()
        self._wo_b = weights[prefix + "wo_b.weight"]

    def __call__(self, hidden: Tensor, batch: Batch, cache: Cache) -> Tensor:
        """Normed inputs [n, d] -> this rank's part of the output [n, d]."""
        turn = batch.turn[self._compressed]
        both = F.linear(hidden, self._from_hidden)
        latent, kv, *rest = both.split_with_sizes(self._hidden_sizes, 1)
        both = F.linear(self._q_norm(latent), self._from_latent)
        queries, *others = both.split_with_sizes(self._latent_sizes, 1)
        kv = self._kv_norm(kv)
        ring = cache.window[self._layer]
        ring.flatten(0, 1).index_copy_(0, batch.window_at, fake_quant_fp8(rotate(kv, turn)))
        if self._compressor is not None:
            self._compressor.append(rest, batch, cache)
        if self._index is not None:
            self._index.select(others[0], rest[-1], batch, cache)
        heads = self._attend(self._turned(queries, turn), batch, cache)
        return self._output(rotate(heads, batch.turn_back[self._compressed]))

    def _turned(self, queries: Tensor, turn: Tensor) -> Tensor:
        """Rotate queries, [n, heads, dim]; heads that only the kernel wants are filler."""
        queries = rotate(queries.reshape(len(queries), self._heads, -1), turn)
        extra = self._kernel_heads - self._heads
        return F.pad(queries, (0, 0, 0, extra), value=self._fill) if extra else queries

    def _attend(self, queries: Tensor, batch: Batch, cache: Cache) -> Tensor:
        """Attend to window, selected entries and sink: [n, kernel heads, dim] -> [n, heads, dim].

        The sink is a last entry of zeros whose score is the head's sink logit.
        """
        values = [batch.window.read(cache.window[self._layer])]
        bias = [batch.window.bias]
        if self._compressed:
            picks = batch.picks[self.source]
            values.append(picks.read(cache.compressed[self.source]))
            bias.append(picks.bias)
        entries = torch.cat([*values, values[0].new_zeros(batch.rows, 1, queries.shape[2])], 1)
        shape = (batch.rows, self._kernel_heads, -1)
        logits = torch.cat(
            [*(b.expand(shape) for b in bias), self._sink.expand(shape[0], -1, -1)], 2
        )
        scale = self._config.head_dim**-0.5
        logits = torch.baddbmm(logits, queries, entries.transpose(1, 2), alpha=scale)
        heads = torch.bmm(logits.softmax(-1), entries)[:, : self._heads].contiguous()
        # Zero rows of wo_a and zero columns of wo_b already remove padded heads as long as they are
        # finite; clearing them makes that independent of what they hold.
        heads[:, self._real_heads :] = 0
        return heads

    def _output(self, heads: Tensor) -> Tensor:
        """Per group of heads wo_a, then wo_b: [n, heads, dim] -> [n, d]."""
        grouped = heads.view(len(heads), self._groups, -1).transpose(0, 1)
        low = torch.bmm(grouped, self._wo_a).transpose(0, 1)
        return F.linear(low.flatten(1), self._wo_b)
