"""Rotary positions: frequencies with and without YaRN, and the rotation of adjacent pairs.

Public source: the released model's config.json and its published inference code. YaRN changes
frequencies only (its magnitude factor is 1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.local.model.config import ModelConfig, RopeScaling


def frequencies(*, theta: float, channels: int, scaling: RopeScaling | None) -> Tensor:
    """Angle per position of each channel pair: float64 [channels / 2]."""
    plain = theta ** -(torch.arange(0, channels, 2, dtype=torch.float64) / channels)
    if scaling is None:
        return plain
    low = max(math.floor(_turning_pair(scaling.beta_fast, theta, channels, scaling)), 0)
    high = min(math.ceil(_turning_pair(scaling.beta_slow, theta, channels, scaling)), channels - 1)
    pairs = torch.arange(channels // 2, dtype=torch.float64)
    slow = ((pairs - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / scaling.factor * slow + plain * (1 - slow)


def _turning_pair(turns: float, theta: float, channels: int, scaling: RopeScaling) -> float:
    """Find the (fractional) pair that makes `turns` rotations over the original context."""
    length = scaling.original_max_position_embeddings
    return channels * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))


class Rope:
    """Phases of a model's two rotations: layers with ratio 0, and layers with compressed keys."""

    def __init__(self, config: ModelConfig) -> None:
        channels = config.qk_rope_head_dim
        self._plain = frequencies(theta=config.rope_theta, channels=channels, scaling=None)
        self._compressed = frequencies(
            theta=config.compress_rope_theta, channels=channels, scaling=config.rope_scaling
        )

    def phases(self, positions: Tensor, *, compressed: bool, dtype: torch.dtype) -> Tensor:
        """Give unit complex numbers: int64 [n] -> complex [n, channels / 2] of the real `dtype`."""
        rates = self._compressed if compressed else self._plain
        angles = positions.to(torch.float64).unsqueeze(-1) * rates
        return torch.polar(torch.ones_like(angles), angles).to(dtype.to_complex())


def rotate(values: Tensor, phases: Tensor) -> Tensor:
    """Rotate the last channels of `values` in place, adjacent channels forming a pair.

    Args:
        values: [n, channels] or [n, heads, channels], contiguous.
        phases: complex [n, pairs]; the conjugate turns back.
    """
    if values.dim() == phases.dim() + 1:
        phases = phases.unsqueeze(-2)
    pairs = phases.shape[-1]
    turned = values[..., -2 * pairs :].view(*values.shape[:-1], pairs, 2)
    torch.view_as_complex(turned).mul_(phases)
    return values
