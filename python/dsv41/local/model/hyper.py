"""Hyper-connections: four residual streams, mixed anew by every sublayer.

Single pass: a sublayer reads the streams by the weights that the sublayer before it has computed,
and computes, from the streams it finds, the weights by which its own output and the old streams
form the new ones. Public source: the model's technical report and published inference code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dsv41.local.model.norm import RmsNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from dsv41.local.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """What one sublayer computes from the streams that it finds.

    `pre` [n, m] is for the next sublayer to read by, `post` [n, m] spreads this one's output,
    `comb` [n, m, m] (from, to) carries the streams over.
    """

    pre: Tensor
    post: Tensor
    comb: Tensor


class HyperConnection:
    """The mixing weights of one sublayer (`site` is "attn" or "ffn")."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], *, layer: int, site: str
    ) -> None:
        m = self._streams = config.hc_mult
        prefix = f"layers.{layer}.hc_{site}_"
        fn, base, scale = (weights[prefix + part] for part in ("fn", "base", "scale"))
        self._base = base
        # the three scales belong to pre, post and comb
        scaled = fn * scale.repeat_interleave(torch.tensor([m, m, m * m])).unsqueeze(1)
        self._norm = RmsNorm(fn.shape[1], eps=config.rms_norm_eps)
        self._fn = (scaled * self._norm.factor).t()
        self._eps = config.hc_eps
        self._sinkhorn = Sinkhorn(
            streams=m, iterations=config.hc_sinkhorn_iters, eps=self._eps, dtype=fn.dtype
        )

    def mix(self, streams: Tensor) -> Mix:
        """Weights from the streams [n, m, d]."""
        m, flat = self._streams, streams.flatten(1)
        # the norm divides each row by one number: that may as well happen behind the product
        logits = torch.addcdiv(self._base, flat @ self._fn, self._norm.length(flat))
        gates = logits[:, : 2 * m].sigmoid()
        comb = logits[:, 2 * m :].reshape(-1, m, m).softmax(-1).view(-1, m * m)
        return Mix(
            pre=gates[:, :m] + self._eps,
            post=gates[:, m:] * 2,
            comb=self._sinkhorn.normalize(comb).view(-1, m, m),
        )


class Sinkhorn:
    """Makes matrices of positive rows doubly stochastic.

    Adds eps to each number; a column pass; then row and column passes in turn. A pass divides by
    the sum of the row or column plus eps. There are 39 passes a sublayer over a few numbers, so
    what counts is the cost of a call. All sums come from one product with a 0/1 matrix, eps
    included by a last line of ones, and numpy's calls cost less than torch's: 3 us a pass for eight
    4 x 4 matrices, against 23 us when written plainly in torch (one x86-64 core).
    """

    def __init__(self, *, streams: int, iterations: int, eps: float, dtype: torch.dtype) -> None:
        one, all_ = torch.eye(streams, dtype=dtype), torch.ones(streams, streams, dtype=dtype)
        last = torch.full((streams * streams, 1), eps, dtype=dtype)
        columns, rows = (
            torch.cat([torch.kron(a, b), last], 1).numpy() for a, b in ((all_, one), (one, all_))
        )
        self._passes = [columns] + [rows, columns] * (iterations - 1)
        self._eps = columns.dtype.type(eps)

    def normalize(self, matrices: Tensor) -> Tensor:
        """Normalize [n, m * m]; a new tensor."""
        n, size = matrices.shape
        lines = np.ones((size + 1, n), self._eps.dtype)
        values, sums = lines[:size], np.empty((size, n), self._eps.dtype)
        np.add(matrices.numpy().T, self._eps, values)
        for which in self._passes:
            np.dot(which, lines, sums)
            np.divide(values, sums, values)
        return torch.from_numpy(np.ascontiguousarray(values.T))


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Read the streams: [n, m, d] and [n, m] -> [n, d]."""
    return torch.bmm(pre.unsqueeze(1), streams).squeeze(1)


def expand(output: Tensor, streams: Tensor, mix: Mix) -> Tensor:
    """Form the new streams [n, m, d] from a sublayer's output [n, d] and the old streams."""
    spread = mix.post.unsqueeze(2) * output.unsqueeze(1)
    return torch.baddbmm(spread, mix.comb.transpose(1, 2), streams)
