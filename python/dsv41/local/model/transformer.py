"""A DeepSeek-V4.1 text model on one rank: prefill and decode over a cache.

The architecture is the released one, from its configuration: hyper-connections over four streams,
CSA2 attention, a mixture of experts, Engram before the attention of some layers. It has no vision
tower and no draft stages.

Collectives of a step, the same on every rank: one sum of all embeddings and Engram projections, one
sum after each attention and one after each mixture, one gather of the logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41.geometry import Shard, carry, pad_attention, real_span, windows
from dsv41.local.model.ahead import FRESH, Ahead, Early
from dsv41.local.model.attention import Attention
from dsv41.local.model.batch import Batch, make_batch
from dsv41.local.model.cache import Cache
from dsv41.local.model.engram import FOREIGN, EngramLayer, Hasher
from dsv41.local.model.hyper import HyperConnection, collapse, expand
from dsv41.local.model.moe import Experts
from dsv41.local.model.norm import RmsNorm
from dsv41.local.model.rope import Rope
from dsv41.local.model.vocabulary import Embedding, Head

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from dsv41.local.model.comm import Comm
    from dsv41.local.model.config import ModelConfig
    from dsv41.local.model.engram import RowReader, Rows

# Most prompt tokens of one step. On one x86-64 core a prompt token costs 2.6 ms in chunks of 16,
# 1.4 in 64, 1.2 in 256, and other streams wait for a chunk: 41, 92, 297 ms.
CHUNK = 64


class Layer:
    """One layer's parts."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        layer: int,
        shard: Shard,
        layout: str,
        fill: float,
    ) -> None:
        padding = pad_attention(
            heads=config.num_attention_heads, groups=config.o_groups, tp=shard.tp, layout=layout
        )
        real = real_span(padding.heads, per_rank=padding.local_heads, shard=shard)
        self.attention = Attention(
            config, weights, layer=layer, padding=padding, real_heads=len(real), fill=fill
        )
        self.experts = Experts(config, weights, layer=layer)
        self.attention_mix = HyperConnection(config, weights, layer=layer, site="attn")
        self.experts_mix = HyperConnection(config, weights, layer=layer, site="ffn")
        size, eps = config.hidden_size, config.rms_norm_eps
        before = [weights[f"layers.{layer}.{site}_norm.weight"] for site in ("attn", "ffn")]
        self.attention_norm, self.experts_norm = (
            RmsNorm(size, eps=eps, weight=weight) for weight in before
        )


class Model:
    """The model on one rank.

    Args:
        config: of the checkpoint.
        weights: this rank's tensors, as `weights.load_shard` gives them.
        shard: this rank; all ranks construct their models at the same time.
        layout: of padded attention heads, `legal` or `balanced`.
        rows: reads this rank's Engram rows.
        comm: the group of ranks.
        token_map: token id -> compressed id.
        early: holds the rows of the next prompt chunk.
        dtype: of all tensors: float32 in service, float64 in proofs.
        fill: what memory holds that nothing may read before it is written: NaN in proofs.
    """

    chunk = CHUNK

    def __init__(  # noqa: PLR0913 - what a model is made of
        self,
        *,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        shard: Shard,
        layout: str,
        rows: RowReader,
        comm: Comm,
        token_map: Sequence[int],
        early: Early | None = None,
        dtype: torch.dtype = torch.float32,
        fill: float = 0.0,
    ) -> None:
        self._config, self._comm, self._dtype, self._fill = config, comm, dtype, fill
        self._token_map, self._early = token_map, early or Early()
        self._layers = [
            Layer(config, weights, layer=layer, shard=shard, layout=layout, fill=fill)
            for layer in range(config.num_hidden_layers)
        ]
        self._engram = {
            n: EngramLayer(config, weights, layer=n, rows=rows) for n in config.engram_layer_ids
        }
        self._hasher = Hasher(config.engram)
        self._rope = Rope(config)
        self._norm = RmsNorm(
            config.hidden_size, eps=config.rms_norm_eps, weight=weights["norm.weight"]
        )
        self._embedding = Embedding(config, weights, shard=shard)
        self._head = Head(config, weights, shard=shard, comm=comm)

    def cache(self, *, slots: int, capacity: int) -> Cache:
        """Empty state for `slots` sequences of up to `capacity` tokens."""
        return Cache(
            self._config,
            slots=slots,
            capacity=capacity,
            chunk=self.chunk,
            dtype=self._dtype,
            fill=self._fill,
        )

    def reset(self, cache: Cache, *, slot: int) -> None:
        """Empty a slot."""
        cache.reset(slot)

    def forget_ahead(self) -> None:
        """Drop the rows that were asked for ahead: nobody wants that chunk any more."""
        self._early.drop()

    def prefill(
        self, cache: Cache, *, slot: int, tokens: Sequence[int], ahead: Ahead | None = None
    ) -> Tensor | None:
        """Append tokens to a slot, `chunk` a pass; logits [vocab] of the last one on rank 0.

        The rows of `ahead` are asked for while the last pass computes.

        Raises UsageError D059 when the slot has no room for them.
        """
        states = self.states(cache, slot=slot, tokens=tokens, ahead=ahead)
        logits = self._head(states[-1:])
        return None if logits is None else logits[0]

    @torch.inference_mode()
    def states(
        self, cache: Cache, *, slot: int, tokens: Sequence[int], ahead: Ahead | None = None
    ) -> Tensor:
        """As `prefill`, but all normed final states [n, d], before the head; on every rank."""
        cache.room(slot, len(tokens))
        parts = []
        for first in range(0, len(tokens), self.chunk):
            part = list(tokens[first : first + self.chunk])
            start = cache.lengths[slot]
            terms = self._look_back(cache, slot, part)
            rows = self._early.take(terms) or self._ask(terms)
            if ahead is not None and first + self.chunk >= len(tokens):
                self._ask_ahead(cache, ahead)
            batch = make_batch(
                cache,
                self._config,
                self._rope,
                slots=[slot] * len(part),
                places=list(range(start, start + len(part))),
                start=start,
            )
            parts.append(self._forward(cache, batch, torch.tensor(part), rows))
        return torch.cat(parts)

    @torch.inference_mode()
    def decode(
        self, cache: Cache, *, tokens: Tensor, active: Tensor, ahead: Ahead | None = None
    ) -> Tensor | None:
        """Append one token to every active slot, at the full width whatever is active.

        `tokens` int64 [slots] holds anything at inactive slots, `active` is bool [slots]. The
        result is logits [slots, vocab] on rank 0 and None elsewhere; rows of inactive slots mean
        nothing.

        Raises UsageError D059 when an active slot is full.
        """
        live = active.tolist()
        for slot, alive in enumerate(live):
            if alive:
                cache.room(slot, 1)
        ids = tokens.masked_fill(~active, 0)
        places = [cache.lengths[slot] if alive else 0 for slot, alive in enumerate(live)]
        blank = (0,) * self._config.engram_max_ngram_size
        terms = [
            self._look_back(cache, slot, [token])[0] if alive else blank
            for slot, (token, alive) in enumerate(zip(ids.tolist(), live, strict=True))
        ]
        rows = self._ask(terms, active)
        if ahead is not None:
            self._ask_ahead(cache, ahead)
        batch = make_batch(
            cache,
            self._config,
            self._rope,
            slots=[slot if alive else cache.slots for slot, alive in enumerate(live)],
            places=places,
            start=None,
        )
        return self._head(self._forward(cache, batch, ids, rows))

    def _look_back(self, cache: Cache, slot: int, tokens: list[int]) -> list[tuple[int, ...]]:
        """Engram windows of the next tokens of a slot, which then counts them."""
        ids = [self._token_map[token] for token in tokens]
        before, engram = cache.history[slot], self._config.engram
        found = windows(ids, engram=engram, previous=before)
        cache.history[slot] = carry(ids, engram=engram, previous=before)
        cache.lengths[slot] += len(ids)
        return found

    def _ask_ahead(self, cache: Cache, ahead: Ahead) -> None:
        """Begin to read the rows of a chunk that follows what its slot holds now."""
        before = () if ahead.slot == FRESH else cache.history[ahead.slot]
        ids = [self._token_map[token] for token in ahead.tokens]
        terms = windows(ids, engram=self._config.engram, previous=before)
        columns = sum(layer.columns for layer in self._engram.values())
        self._early.ask(terms, lambda: self._ask(terms), ids=len(terms) * columns)

    def _ask(self, terms: list[tuple[int, ...]], active: Tensor | None = None) -> list[Rows]:
        """Begin to read the rows of n look-back windows for all Engram layers."""
        ids = self._hasher.ids(terms)
        if active is not None:
            ids.masked_fill_(~active.view(1, -1, 1), FOREIGN)
        return [layer.ask(wanted) for layer, wanted in zip(self._engram.values(), ids, strict=True)]

    def _forward(self, cache: Cache, batch: Batch, ids: Tensor, rows: Sequence[Rows]) -> Tensor:
        """Normed final states [n, d] of the batch's rows; the cache takes the rows in."""
        embedded, memory = self._inputs(ids, rows)
        streams = embedded.unsqueeze(1).repeat(1, self._config.hc_mult, 1)
        pre = streams.new_zeros(streams.shape[:2])
        pre[:, 0] = 1
        for number, layer in enumerate(self._layers):
            if number in memory:
                streams = self._engram[number].add(streams, memory[number])
            mix = layer.attention_mix.mix(streams)
            hidden = layer.attention_norm(collapse(streams, pre))
            output = self._comm.sum(layer.attention(hidden, batch, cache))
            streams, pre = expand(output, streams, mix), mix.pre
            mix = layer.experts_mix.mix(streams)
            hidden = layer.experts_norm(collapse(streams, pre))
            output = self._comm.sum(layer.experts(hidden))
            streams, pre = expand(output, streams, mix), mix.pre
        return self._norm(collapse(streams, pre))

    def _inputs(self, ids: Tensor, rows: Sequence[Rows]) -> tuple[Tensor, dict[int, Tensor]]:
        """Embeddings [n, d] and, by layer, Engram projections: one collective for all."""
        parts = [self._embedding(ids)]
        parts += [
            layer.project(asked) for layer, asked in zip(self._engram.values(), rows, strict=True)
        ]
        sizes = [part.shape[1] for part in parts]
        summed = self._comm.sum(torch.cat(parts, 1))
        embedded, *projected = summed.split_with_sizes(sizes, 1)
        return embedded, dict(zip(self._engram, projected, strict=True))
