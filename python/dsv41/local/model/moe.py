"""Mixture of experts of one layer: sqrt(softplus) routing, clamped SwiGLU, a shared expert.

The experts of this model are so small that computing all of them in two products, and leaving out
what was not selected in between, is far quicker than visiting the selected ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from dsv41.local.model.config import ModelConfig


class Experts:
    """One layer's experts on one rank: slices of the inner width, or the whole experts it holds.

    Args:
        weights: this rank's tensors under their official names; experts that are not there belong
            to other ranks.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], *, layer: int) -> None:
        prefix = f"layers.{layer}.ffn."
        self._config = config
        self._bias = weights[prefix + "gate.bias"]
        names = [f"{prefix}experts.{e}." for e in range(config.n_routed_experts)]
        owned = [e for e, name in enumerate(names) if name + "w1.weight" in weights]
        self._owned = torch.tensor(owned) if len(owned) < len(names) else None
        parts = [*(names[e] for e in owned), f"{prefix}shared_experts."]
        w1, w3 = ([weights[f"{part}{w}.weight"] for part in parts] for w in ("w1", "w3"))
        gate = weights[prefix + "gate.weight"]
        self._sizes = [len(gate), sum(map(len, w1)), sum(map(len, w3))]
        self._routed_width = len(w1[0])
        self._in = torch.cat([gate, *w1, *w3])
        self._out = torch.cat([weights[f"{part}w2.weight"] for part in parts], 1)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Normed inputs [n, d] -> this rank's part of the output [n, d]."""
        limit = self._config.swiglu_limit
        scores, gate, up = F.linear(hidden, self._in).split_with_sizes(self._sizes, 1)
        inner = F.silu(gate.clamp(max=limit)).mul_(up.clamp(-limit, limit))
        share = self._route(scores)
        routed = inner[:, : share.shape[1] * self._routed_width]
        routed.view(*share.shape, -1).mul_(share.unsqueeze(2))
        return F.linear(inner, self._out)

    def _route(self, scores: Tensor) -> Tensor:
        """Weigh the experts that this rank holds: [n, experts] -> [n, owned]; 0 is not selected.

        Among equal scores the lowest expert wins. The bias takes part in the selection only.
        """
        count = self._config.num_experts_per_tok
        strength = F.softplus(scores).sqrt_()
        order = (strength + self._bias).sort(dim=1, descending=True, stable=True).indices
        chosen = order[:, :count]
        share = strength.gather(1, chosen)
        if self._config.norm_topk_prob:
            share = share / (share.sum(1, keepdim=True) + 1e-20)
        share = share * self._config.routed_scaling_factor
        weights = torch.zeros_like(strength).scatter_(1, chosen, share)
        return weights if self._owned is None else weights[:, self._owned]
