"""Bytes of the compressed KV cache.

Only the KV source layers keep a cache that grows with the context: one latent entry per group of
``ratio`` tokens, with one index key. Every rank keeps all of it (there is one KV head). The rule is
that of SGLang's pool configurator (0.5.23); it gives the 1670.75 bytes a token that its boot line
prints on a GB10.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

POOL_MULTIPLE = 256  # tokens; every pool size seen in SGLang's boot lines is a multiple


def latent_bytes(*, head_dim: int = 512, rope_dim: int = 64) -> int:
    """Bytes of one latent entry in SGLang's pool.

    FP8 for the channels without rope, BF16 for those with, 8 bytes of scales: 448 + 128 + 8 = 584.
    """
    return head_dim - rope_dim + 2 * rope_dim + 8


def index_key_bytes(*, index_dim: int = 128) -> int:
    """Bytes of one index key: FP4 values and one E8M0 scale per 32 of them: 64 + 4 = 68."""
    return index_dim // 2 + index_dim // 32


def kv_bytes_per_token(
    *,
    source_ratios: Sequence[int] = (2, 2, 2, 1),
    layers: int = 40,
    draft_layers: int = 1,
    entry_bytes: int | None = None,
) -> Fraction:
    """Bytes of KV cache that one token of context costs on each rank, exact.

    Args:
        source_ratios: compression ratio of each KV source layer.
        layers: layers of the target model.
        draft_layers: layers that SGLang adds for the drafter, which widens the figure by
            ``(layers + draft_layers) / layers``; 0 without speculation.
        entry_bytes: latent entry plus index key, 584 + 68 when left out.

    Returns:
        1670.75 for the released model: 652 B x (3/2 + 1) entries per token x 41/40, the figure
        ``bytes_per_full_token`` of SGLang's boot line.
    """
    entry = latent_bytes() + index_key_bytes() if entry_bytes is None else entry_bytes
    entries = sum((Fraction(1, ratio) for ratio in source_ratios), start=Fraction(0))
    return entry * entries * Fraction(layers + draft_layers, layers)


def kv_pool_bytes(tokens: int, *, per_token: Fraction | None = None) -> int:
    """Bytes of a pool for this many tokens, without the fixed window pool, rounded up."""
    each = kv_bytes_per_token() if per_token is None else per_token
    return -int(-tokens * each // 1)


def kv_pool_tokens(pool_bytes: int, *, per_token: Fraction | None = None) -> int:
    """Tokens that fit in a pool of this many bytes, a multiple of 256."""
    each = kv_bytes_per_token() if per_token is None else per_token
    return int(pool_bytes / each) // POOL_MULTIPLE * POOL_MULTIPLE
