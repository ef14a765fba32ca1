"""What a model keeps of each sequence between steps, in one row per slot.

A slot's state: its length; the last three compressed ids (Engram look-back); per layer a ring of
window entries; per source layer the compressed entries and index keys; where several tokens make
one compressed entry, the projections of the last tokens. One more row takes what inactive slots of
a step write, so that a fixed-width step never touches their state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.local.model.config import ModelConfig


class Cache:
    """State of `slots` sequences of up to `capacity` tokens.

    Tensors: `window[layer]` [slots + 1, ring, head_dim]; for source layers `compressed[layer]`
    [slots + 1, groups, head_dim], `keys[layer]` [slots + 1, groups, index_head_dim] and, for ratios
    above 1, `pending[layer]` [slots + 1, ratio - 1, 2, head_dim]. All start as `fill`: nothing is
    read before it was written, which proofs show by filling with NaN.

    Args:
        chunk: most tokens of one slot in a step; the ring holds a window before each of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        slots: int,
        capacity: int,
        chunk: int,
        dtype: torch.dtype,
        fill: float = 0.0,
    ) -> None:
        self.slots = slots
        self.capacity = capacity
        self.lengths = [0] * slots
        self.history: list[tuple[int, ...]] = [()] * slots
        self.ring = config.sliding_window + chunk - 1
        self.window = [
            torch.full((slots + 1, self.ring, config.head_dim), fill, dtype=dtype)
            for _ in range(config.num_hidden_layers)
        ]
        self.compressed: dict[int, Tensor] = {}
        self.keys: dict[int, Tensor] = {}
        self.pending: dict[int, Tensor] = {}
        for layer in config.kv_source_layer_ids:
            ratio = config.compress_ratios[layer]
            shape = (slots + 1, -(-capacity // ratio))
            self.compressed[layer] = torch.full((*shape, config.head_dim), fill, dtype=dtype)
            self.keys[layer] = torch.full((*shape, config.index_head_dim), fill, dtype=dtype)
            tail = (slots + 1, ratio - 1, 2, config.head_dim)
            self.pending[layer] = torch.full(tail, fill, dtype=dtype)

    @property
    def bytes(self) -> int:
        """Memory of all tensors."""
        tensors = [*self.window, *self.compressed.values(), *self.keys.values()]
        tensors += self.pending.values()
        return sum(tensor.nbytes for tensor in tensors)

    def reset(self, slot: int) -> None:
        """Empty a slot; its memory stays as it is and is written before it is read again."""
        self.lengths[slot] = 0
        self.history[slot] = ()

    def room(self, slot: int, tokens: int) -> None:
        """Check that a slot takes `tokens` more; UsageError D059 otherwise."""
        if self.lengths[slot] + tokens > self.capacity:
            raise UsageError(
                "D059",
                f"Slot {slot} holds {self.lengths[slot]} tokens and has room for {self.capacity}:"
                f" {tokens} more do not fit.",
                fix="send a shorter prompt, or serve with a larger context",
            )
