"""Where 24 heads a rank meet the SM120 kernels: q is widened to 32, and nothing else changes.

The balanced layout needs it. What stands here for a GB10: that the platform is SM12x, the table of
FlashInfer 0.7.2's decode kernels, and the engine's own pure-torch kernel in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hooked import hooked
from sglang.kernels.ops.attention import flash_mla_sm120
from sglang.srt.models.deepseek_v4 import MqaAttentionBase
from sglang.srt.runtime_context import get_platform

from dsv41.adapters.sglang import tp_pad
from dsv41.geometry import pad_attention

TP = 3


@pytest.fixture
def padded() -> Iterator[None]:
    with hooked(tp_pad.ADAPTER, DSV41_TP_PAD="1", DSV41_TP_PAD_LAYOUT="balanced"):
        yield


def test_the_released_model_has_these_heads() -> None:
    found = pad_attention(heads=64, groups=8, tp=TP, layout="balanced")
    assert (found.local_heads, found.local_groups, found.kernel_heads) == (24, 3, 32)


class Attention:
    """What `_kernel_num_heads` reads of a layer."""

    attn_tp_size = TP

    def __init__(self, local: int) -> None:
        self.n_local_heads, self.n_heads = local, local * TP


@pytest.fixture
def gb10(monkeypatch: pytest.MonkeyPatch, padded: None) -> None:
    """SM12x with FlashInfer's decode kernels, which this machine has not: their table alone."""
    del padded
    table = (64, frozenset({8, 16, 32, 64, 128}))  # of FlashInfer 0.7.2
    monkeypatch.setattr(flash_mla_sm120, "_flashinfer_dsv4_decode_capabilities", lambda: table)
    monkeypatch.setattr(type(get_platform()), "is_sm120", True, raising=False)


@pytest.mark.usefixtures("gb10")
@pytest.mark.parametrize(
    ("local", "tokens", "width", "stock"),
    [
        (24, 6, 32, 64),
        (24, 64, 32, 64),
        (24, 65, 24, 24),
        (32, 6, 32, 32),
        (32, 4096, 32, 32),
        (16, 6, 16, 16),
    ],
)
def test_decode_takes_the_next_kernel(local: int, tokens: int, width: int, stock: int) -> None:
    """24 local heads would go to 64; in prefill they stay, and the kernel's caller is widened."""
    heads: Any = MqaAttentionBase._kernel_num_heads
    assert heads(Attention(local), tokens) == width
    assert heads.__wrapped__(Attention(local), tokens) == stock


@pytest.mark.usefixtures("padded")
def test_other_devices_keep_their_width() -> None:
    heads: Any = MqaAttentionBase._kernel_num_heads
    assert heads(Attention(24), 6) == heads.__wrapped__(Attention(24), 6) == 64


@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize(("heads", "width"), [(18, 32), (24, 32), (32, 32), (64, 64)])
def test_the_kernel_sees_heads_that_it_has(
    heads: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the engine's own pure-torch kernel, which takes any number: the same comes out."""
    seen = []

    def kernel(q: torch.Tensor, *rest: Any) -> Any:
        seen.append((q.shape[-2], len(rest[3])))
        return stock(q, *rest)

    stock = flash_mla_sm120._sm120_sparse_decode_fwd
    monkeypatch.setattr(flash_mla_sm120, "_sm120_sparse_decode_fwd", kernel)
    monkeypatch.setattr(flash_mla_sm120, "_sm120_default_backend", "torch")
    call: Any = flash_mla_sm120.flash_mla_with_kvcache_sm120
    arguments = paged(heads)
    plain, widened = call.__wrapped__(**arguments)[0], call(**arguments)[0]
    assert seen == [(heads, heads), (width, width)]
    assert plain.shape == widened.shape == (3, 1, heads, 512)
    assert plain.float().abs().max() > 0
    assert torch.equal(widened, plain)


def paged(heads: int) -> dict[str, Any]:
    """Three tokens' q over four random pages of the engine's layout: 576 bytes, then 8 scales."""
    made = torch.Generator().manual_seed(heads)
    pages = torch.full((4, 256 * 584), 120, dtype=torch.uint8)  # scale code 120: 2**-7
    pages[:, : 256 * 576] = torch.randint(0, 56, (4, 256 * 576), generator=made).to(torch.uint8)
    return {
        "q": torch.randn(3, 1, heads, 512, generator=made).bfloat16(),
        "k_cache": pages.view(torch.float8_e4m3fn).view(4, 256, 1, 584),
        "indices": torch.randint(0, 1024, (3, 1, 64), generator=made, dtype=torch.int32),
        "topk_length": torch.tensor([64, 40, 1], dtype=torch.int32),
        "attn_sink": torch.randn(heads, generator=made),
        "head_dim_v": 512,
        "softmax_scale": 512**-0.5,
    }
