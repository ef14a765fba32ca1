"""The rows of one step: which slot and position each token has, and what all layers share of that.

Two kinds of step go through the same layers: decode has one row per slot, prefill has consecutive
positions of one slot. Everything that depends on positions alone is worked out here, once a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.local.model.cache import Cache
    from dsv41.local.model.config import ModelConfig
    from dsv41.local.model.rope import Rope


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """Entries that each row reads from one buffer of the cache, flattened over slots.

    index: int64 [n * k]. hidden: bool [n, k, 1], entries to leave out. bias: [n, 1, k], 0 or -inf.
    """

    index: Tensor
    hidden: Tensor
    bias: Tensor

    @classmethod
    def of(cls, index: Tensor, valid: Tensor, *, dtype: torch.dtype) -> Keys:
        """From int64 and bool [n, k]."""
        bias = torch.zeros(valid.shape, dtype=dtype).masked_fill_(~valid, -torch.inf)
        return cls(index=index.flatten(), hidden=~valid.unsqueeze(2), bias=bias.unsqueeze(1))

    def read(self, buffer: Tensor) -> Tensor:
        """Entries [n, k, channels] of a buffer [slots + 1, length, channels]; hidden ones are 0.

        Hidden entries may never have been written: they are replaced, not multiplied by zero.
        """
        found = buffer.flatten(0, 1).index_select(0, self.index)
        return found.view(*self.hidden.shape[:2], -1).masked_fill_(self.hidden, 0)


@dataclass(kw_only=True, slots=True)
class Batch:
    """One step's rows.

    slots, positions: int64 [n] (an inactive row has the spare slot and position 0).
    places: the positions as Python ints. start: for prefill the first position, None for decode.
    window_at: int64 [n], where each row writes its window entry (flattened over slots).
    window: what each row reads back. turn, turn_back: complex [n, pairs] by `compressed`.
    group_turn, visible: by ratio, the phases of the compressed entry that a row completes, and how
    many entries a row sees. picks: by source layer, the selected entries, set by index layers.
    candidates: bool [n, width], what the candidate layer leaves to later index layers; None is all.
    """

    slots: Tensor
    positions: Tensor
    places: list[int]
    slot_list: list[int]
    start: int | None
    window_at: Tensor
    window: Keys
    turn: dict[bool, Tensor]
    turn_back: dict[bool, Tensor]
    group_turn: dict[int, Tensor]
    visible: dict[int, Tensor]
    picks: dict[int, Keys] = field(default_factory=dict)
    candidates: Tensor | None = None

    @property
    def rows(self) -> int:
        """How many tokens the step has."""
        return len(self.places)


def make_batch(
    cache: Cache,
    config: ModelConfig,
    rope: Rope,
    *,
    slots: list[int],
    places: list[int],
    start: int | None,
) -> Batch:
    """Work out what all layers share; `slots` and `places` are the rows' slots and positions."""
    where, positions = torch.tensor(slots), torch.tensor(places)
    dtype = cache.window[0].dtype
    seen = positions.unsqueeze(1) - torch.arange(config.sliding_window - 1, -1, -1)
    base = where * cache.ring
    turn = {kind: rope.phases(positions, compressed=kind, dtype=dtype) for kind in (False, True)}
    ratios = {config.compress_ratios[layer] for layer in config.kv_source_layer_ids}
    return Batch(
        slots=where,
        positions=positions,
        places=places,
        slot_list=slots,
        start=start,
        window_at=base + positions % cache.ring,
        window=Keys.of(base.unsqueeze(1) + seen % cache.ring, seen >= 0, dtype=dtype),
        turn=turn,
        turn_back={kind: phases.conj().resolve_conj() for kind, phases in turn.items()},
        # a compressed entry stands at the first position of its group
        group_turn={
            ratio: turn[True]
            if ratio == 1
            else rope.phases(positions // ratio * ratio, compressed=True, dtype=dtype)
            for ratio in ratios
        },
        visible={ratio: (positions + 1) // ratio for ratio in ratios},
    )
