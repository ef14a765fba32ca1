"""Padding and cutting of tensors: any number of ranks, and the released model at three and four."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.adapters.shard import (
    E2M1_MAGNITUDE,
    Padding,
    axis_of,
    is_owned,
    pad_and_cut,
    padding_for,
    repair_scales,
)
from dsv41.errors import CheckFailed
from dsv41.geometry import LEGAL_LOCAL_HEADS, Shard

REAL: dict[str, Any] = {"heads": 64, "groups": 8, "vocab": 129280, "inner": 2304, "experts": 384}


def ranks(tp: int) -> list[Shard]:
    return [Shard(rank=rank, tp=tp) for rank in range(tp)]


def real_shape(name: str, shape: tuple[int, ...], shard: Shard, **options: Any) -> list[int]:
    padding = padding_for(**REAL, tp=shard.tp, **options)
    tensor = torch.empty(1, dtype=torch.uint8).expand(shape)
    return list(pad_and_cut(name, tensor, shard=shard, padding=padding).shape)


@pytest.mark.parametrize(
    ("name", "whole", "tp3", "tp4"),
    [
        ("layers.3.attn.wq_b.weight", (32768, 1280), [16384, 1280], [8192, 1280]),
        ("layers.3.attn.wq_b.scale", (1024, 40), [512, 40], [256, 40]),
        ("mtp.0.attn.wq_b.weight", (32768, 1280), [16384, 1280], [8192, 1280]),
        ("layers.3.attn.attn_sink", (64,), [32], [16]),
        ("layers.3.attn.wo_a.weight", (8192, 4096), [4096, 4096], [2048, 4096]),
        ("layers.3.attn.wo_a.scale", (256, 128), [128, 128], [64, 128]),
        ("layers.3.attn.wo_b.weight", (5120, 8192), [5120, 4096], [5120, 2048]),
        ("layers.3.attn.wo_b.scale", (160, 256), [160, 128], [160, 64]),
        ("embed.weight", (129280, 8), [43136, 8], [32320, 8]),
        ("head.weight", (129280, 8), [43136, 8], [32320, 8]),
        ("layers.3.ffn.experts.7.w1.weight", (2304, 2560), [768, 2560], [576, 2560]),
        ("layers.3.ffn.experts.7.w3.scale", (2304, 160), [768, 160], [576, 160]),
        ("layers.3.ffn.experts.7.w2.weight", (5120, 1152), [5120, 384], [5120, 288]),
        ("layers.3.ffn.experts.7.w2.scale", (5120, 72), [5120, 24], [5120, 18]),
        ("layers.3.ffn.shared_experts.w1.scale", (72, 160), [24, 160], [18, 160]),
        ("layers.3.ffn.shared_experts.w2.weight", (5120, 2304), [5120, 768], [5120, 576]),
        ("layers.2.attn.indexer.wq_b.weight", (4096, 1280), [4096, 1280], [4096, 1280]),
        ("layers.3.attn.wq_a.weight", (1280, 5120), [1280, 5120], [1280, 5120]),
        ("layers.3.ffn.gate.bias", (384,), [384], [384]),
    ],
)
def test_shapes_of_the_released_model(
    name: str, whole: tuple[int, ...], tp3: list[int], tp4: list[int]
) -> None:
    for shard in ranks(3):
        assert real_shape(name, whole, shard) == tp3
    for shard in ranks(4):
        assert real_shape(name, whole, shard) == tp4


def test_balanced_layout_pads_groups_to_nine() -> None:
    for shard in ranks(3):
        assert real_shape("layers.0.attn.wo_a.weight", (8192, 4), shard, layout="balanced") == [
            3072,
            4,
        ]
        assert real_shape("layers.0.attn.attn_sink", (64,), shard, layout="balanced") == [24]


AXES = {
    "layers.0.attn.wq_b.weight": ("heads", 0, 2),
    "layers.1.attn.attn_sink": ("heads", 0, 1),
    "layers.0.attn.wo_a.scale": ("groups", 0, 3),
    "layers.0.attn.wo_b.weight": ("groups", 1, 2),
    "embed.weight": ("vocab", 0, 1),
    "layers.0.ffn.experts.1.w3.weight": ("inner", 0, 2),
    "layers.0.ffn.shared_experts.w2.scale": ("inner", 1, 1),
}


def counts(padding: Padding) -> dict[str, tuple[int, int]]:
    return {
        "heads": (padding.attention.heads, padding.attention.padded_heads),
        "groups": (padding.attention.groups, padding.attention.padded_groups),
        "vocab": (padding.vocab.real, padding.vocab.padded),
        "inner": (padding.inner_blocks, padding.inner_padded),
    }


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(sorted(AXES)),
    tp=st.integers(1, 8),
    groups=st.integers(1, 8),
    per_group=st.sampled_from([1, 2, 4, 8]),
    vocab=st.integers(1, 700),
    blocks=st.integers(1, 9),
    layout=st.sampled_from(["legal", "balanced"]),
)
def test_pad_then_cut_then_concatenate_is_the_identity(
    name: str, tp: int, groups: int, per_group: int, vocab: int, blocks: int, layout: str
) -> None:
    padding = padding_for(
        heads=groups * per_group,
        groups=groups,
        vocab=vocab,
        inner=32 * blocks,
        experts=5,
        tp=tp,
        layout=layout,
    )
    axis, dim, unit = AXES[name]
    real, padded = counts(padding)[axis]
    size = real * unit
    tensor = torch.arange(1, size + 1)
    if axis != "heads" or "sink" not in name:
        tensor = tensor[:, None] if dim == 0 else tensor.expand(3, -1)
    parts = [pad_and_cut(name, tensor, shard=s, padding=padding, fill=0.0) for s in ranks(tp)]
    assert {part.shape[dim] for part in parts} == {padded * unit // tp}
    whole = torch.cat(parts, dim)
    assert torch.equal(whole.narrow(dim, 0, size), tensor)
    assert not whole.narrow(dim, size, padded * unit - size).any()
    attention = padding.attention
    assert attention.kernel_heads in LEGAL_LOCAL_HEADS
    if layout == "legal":
        assert attention.local_heads == attention.kernel_heads
    assert attention.local_heads * groups == attention.local_groups * attention.heads


@settings(max_examples=60, deadline=None)
@given(tp=st.integers(1, 8), experts=st.integers(1, 20))
def test_whole_experts_belong_to_one_rank_each(tp: int, experts: int) -> None:
    padding = padding_for(
        heads=8, groups=8, vocab=64, inner=32, experts=experts, tp=tp, expert_parallel=True
    )
    for layer_expert in range(experts):
        name = f"layers.0.ffn.experts.{layer_expert}.w1.weight"
        owners = [s.rank for s in ranks(tp) if is_owned(name, shard=s, padding=padding)]
        assert owners == [layer_expert // padding.experts.per_rank]  # type: ignore[union-attr]
        tensor = torch.ones(32, 2)
        assert pad_and_cut(name, tensor, shard=Shard(rank=0, tp=tp), padding=padding) is tensor
    assert is_owned("layers.0.attn.wq_a.weight", shard=Shard(rank=tp - 1, tp=tp), padding=padding)
    assert axis_of("layers.0.ffn.shared_experts.w1.weight") == (0, "inner")


def test_the_last_of_three_ranks_holds_no_attention() -> None:
    padding = padding_for(**REAL, tp=3)
    for name, shape in (
        ("attn_sink", (64,)),
        ("wo_a.weight", (8192, 2)),
        ("wo_b.weight", (2, 8192)),
    ):
        weight = torch.ones(shape, dtype=torch.bfloat16)
        full, *_, last = (
            pad_and_cut(f"layers.0.attn.{name}", weight, shard=s, padding=padding) for s in ranks(3)
        )
        assert full.all()
        assert not last.any()
        assert last.dtype == torch.bfloat16


def test_eight_bit_floats_and_default_fill() -> None:
    padding = padding_for(heads=16, groups=8, vocab=64, inner=96, experts=2, tp=3)
    last = Shard(rank=2, tp=3)
    scale = torch.full((16, 2), 0.25).to(torch.float8_e8m0fnu)
    cut = pad_and_cut("layers.0.attn.wq_b.scale", scale, shard=last, padding=padding)
    assert cut.dtype == torch.float8_e8m0fnu
    assert cut.float().tolist() == [[1.0, 1.0]] * 8
    weight = torch.full((512, 64), 2.0).to(torch.float8_e4m3fn)
    cut = pad_and_cut("layers.0.attn.wq_b.weight", weight, shard=last, padding=padding)
    assert not cut.view(torch.uint8).any()
    first = pad_and_cut(
        "layers.0.attn.wq_b.weight", weight, shard=Shard(rank=0, tp=3), padding=padding
    )
    assert set(first.float().flatten().tolist()) == {2.0}


def test_a_tensor_of_other_units_is_refused() -> None:
    padding = padding_for(**REAL, tp=3)
    with pytest.raises(CheckFailed, match=r"D046.*wq_b.weight has 100 .*64 heads"):
        pad_and_cut(
            "layers.0.attn.wq_b.weight",
            torch.ones(100, 4),
            shard=Shard(rank=0, tp=3),
            padding=padding,
        )
    with pytest.raises(CheckFailed, match=r"D046.*100 is not a multiple of 32"):
        padding_for(heads=8, groups=8, vocab=64, inner=100, experts=2, tp=2)


BAD = [0.0, -1.0, 3.0, float("nan"), float("inf"), 2.0**-127, 1e-40]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_scale_of_a_zero_block_becomes_one(bad: float) -> None:
    weight = torch.zeros(64, 96, dtype=torch.uint8)
    weight[0:32, 0:32] = 0x80  # negative zero counts as zero
    weight[32:, 32:] = 0x38
    scales = torch.full((2, 3), 0.5)
    scales[0, 0] = scales[0, 2] = bad
    repaired = repair_scales(weight, scales)
    assert repaired.tolist() == [[1.0, 0.5, 1.0], [0.5, 0.5, 0.5]]
    assert torch.equal(repaired, repair_scales(weight, repaired))


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_scale_of_a_nonzero_block_is_an_error(bad: float) -> None:
    weight = torch.zeros(64, 70, dtype=torch.uint8)
    weight[40, 69] = 0x01  # the least denormal, in the last, partial block
    scales = torch.full((2, 3), 0.5)
    scales[1, 2] = bad
    with pytest.raises(CheckFailed, match=r"D045 layers.0.attn.wo_b.weight .* block \(1, 2\)"):
        repair_scales(weight, scales, name="layers.0.attn.wo_b.weight")


def test_good_scales_are_returned_as_they_are() -> None:
    scales = torch.tensor([[2.0**-126, 2.0**127]])
    weight = torch.full((32, 64), 0x38, dtype=torch.uint8)
    assert repair_scales(weight, scales) is scales


def test_packed_pairs_have_two_signs() -> None:
    scales = torch.tensor([[0.0, 0.5]])
    weight = torch.full((1, 32), 0x88, dtype=torch.uint8)  # two negative zeros
    repaired = repair_scales(weight, scales, (1, 16), magnitude=E2M1_MAGNITUDE)
    assert repaired.tolist() == [[1.0, 0.5]]
    with pytest.raises(CheckFailed, match="D045"):
        repair_scales(weight, scales, (1, 16))  # as E4M3, 0x88 is not zero


def test_scales_of_another_shape_are_refused() -> None:
    weight = torch.zeros(64, 64, dtype=torch.uint8)
    for scales in (torch.ones(2, 3), torch.ones(2, 2, dtype=torch.float64)):
        with pytest.raises(CheckFailed, match="D046"):
            repair_scales(weight, scales)


def test_the_module_imports_no_torch() -> None:
    code = "import sys, dsv41.adapters.shard; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
