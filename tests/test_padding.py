"""Whole tensors padded by their names, and the words of the switches that ask for it.

What the real SGLang does with them is in tests/engines.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

from dsv41.adapters import padding
from dsv41.adapters.sglang import mxfp8_b12x, tp_pad
from dsv41.errors import CheckFailed
from dsv41.geometry import pad_experts

WIDTHS = padding.Widths(hidden=5120, head_dim=512, q_lora_rank=1280, o_lora_rank=1024)
CONFIG = SimpleNamespace(num_attention_heads=64, o_groups=8, dspark_n_routed_experts=128)
SHAPES = {  # of the released checkpoint
    "wq_b.weight": (32768, 1280),
    "wq_b.scale": (1024, 40),
    "wo_a.weight": (8192, 4096),
    "wo_a.scale": (256, 128),
    "wo_b.weight": (5120, 8192),
    "wo_b.scale": (160, 256),
    "attn_sink": (64,),
}


def counts(layout: str = "legal", *, tp: int = 3, ep: int = 1) -> padding.Counts:
    return padding.counts_for(CONFIG, tp=tp, ep=ep, layout=layout)


def padded(name: str, *, layout: str = "legal", shape: tuple[int, ...] | None = None) -> torch.Size:
    """The padded shape of a tensor of the released checkpoint, a byte an element."""
    tensor = torch.empty(shape or SHAPES[name.split(".attn.")[1]], dtype=torch.uint8)
    attention = counts(layout).attention
    return padding.pad_heads(name, tensor, attention=attention, widths=WIDTHS).shape


@pytest.mark.parametrize(("layout", "heads", "groups"), [("legal", 96, 12), ("balanced", 72, 9)])
@pytest.mark.parametrize("prefix", ["layers.39.attn", "mtp.2.attn"])
def test_shapes_of_the_released_checkpoint(
    layout: str, heads: int, groups: int, prefix: str
) -> None:
    expected = {
        "wq_b.weight": (heads * 512, 1280),
        "wq_b.scale": (heads * 16, 40),
        "wo_a.weight": (groups * 1024, 4096),
        "wo_a.scale": (groups * 32, 128),
        "wo_b.weight": (5120, groups * 1024),
        "wo_b.scale": (160, groups * 32),
        "attn_sink": (heads,),
    }
    found = {name: tuple(padded(f"{prefix}.{name}", layout=layout)) for name in SHAPES}
    assert found == expected


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("along", [0, -1])
def test_another_shape_is_refused_by_name(name: str, along: int) -> None:
    """Also one that would divide: half of the heads is not this checkpoint."""
    shape = list(SHAPES[name])
    shape[along] //= 2
    official = f"layers.7.attn.{name}"
    says = f"{re.escape(official)} .*expected shape .*{SHAPES[name][0]}.*found .*{shape[0]}"
    with pytest.raises(CheckFailed, match=says) as error:
        padded(official, shape=tuple(shape))
    assert error.value.code == "D150"


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.wq_b.weight",
        "layers.0.attn.wq_b.weight_scale_inv",
        "layers.0.attn.wo_a.bias",
        "layers.0.self_attn.attn_sink",
    ],
)
def test_a_name_that_is_not_official_is_refused(name: str) -> None:
    with pytest.raises(CheckFailed, match="D150"):
        padded(name, shape=(64,))


@pytest.mark.parametrize(
    "name",
    [
        "layers.2.attn.indexer.wq_b.weight",
        "layers.2.attn.wkv.weight",
        "embed.weight",
        "layers.0.ffn.experts.3.w1.weight",
        "vision.blocks.0.attn.wo.weight",
    ],
)
def test_what_has_no_heads_passes_as_it_is(name: str) -> None:
    tensor = torch.zeros(3)
    attention = counts().attention
    assert padding.pad_heads(name, tensor, attention=attention, widths=WIDTHS) is tensor


def test_a_group_that_breaks_a_block_is_refused() -> None:
    odd = padding.Widths(hidden=64, head_dim=48, q_lora_rank=64, o_lora_rank=32)
    with pytest.raises(CheckFailed, match="whole blocks of 32"):
        padding.pad_heads(
            "layers.0.attn.wq_b.scale",
            torch.ones(96, 2),
            attention=counts().attention,
            widths=odd,
        )


def test_what_changes_in_the_configuration() -> None:
    heads = {"num_attention_heads": 96, "o_groups": 12}
    assert counts().changes() == heads
    assert counts(ep=3).changes() == {**heads, "dspark_n_routed_experts": 129}
    assert counts("balanced").changes() == {"num_attention_heads": 72, "o_groups": 9}
    assert counts(tp=4, ep=2).changes() == {}


def draft(*names: str, experts: int = 4) -> list[padding.Named]:
    """Tensors of one draft stage, by the ends of their names."""
    made = {
        "gate.weight": torch.ones(experts, 6, dtype=torch.bfloat16),
        "gate.bias": torch.zeros(experts),
        "experts.3.w1.weight": torch.ones(2, 3, dtype=torch.int8),
        "experts.3.w1.scale": torch.full((2, 3), 4.0).to(torch.float8_e8m0fnu),
        "experts.0.w1.weight": torch.ones(2, 3, dtype=torch.int8),
    }
    return [(f"mtp.1.ffn.{name}", made[name]) for name in names]


def test_padded_draft_experts_are_blank_and_masked() -> None:
    given = draft("gate.weight", "gate.bias", "experts.0.w1.weight", "experts.3.w1.weight")
    given += draft("experts.3.w1.scale")
    found = dict(padding.pad_draft_experts(given, experts=pad_experts(4, tp=3)))
    new = [name for name in found if re.search(r"experts\.[45]\.", name)]
    assert len(found) == len(given) + len(new) == 5 + 4
    gate, bias = found["mtp.1.ffn.gate.weight"], found["mtp.1.ffn.gate.bias"]
    assert gate.dtype == torch.bfloat16
    assert gate[:4].all()
    assert not gate[4:].any()
    assert bias.tolist() == [0, 0, 0, 0, float("-inf"), float("-inf")]
    assert not found["mtp.1.ffn.experts.5.w1.weight"].any()
    scale = found["mtp.1.ffn.experts.5.w1.scale"]
    assert scale.dtype == torch.float8_e8m0fnu
    assert (scale.float() == 1).all()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (draft("gate.weight"), "gate.bias .*expected a bias"),
        (draft("gate.bias", experts=8), "expected 4 experts, found 8"),
        (
            [("mtp.0.ffn.experts.3.w2.scale", torch.ones(2, 2, dtype=torch.uint8))],
            "a scale of a float type, found torch.uint8",
        ),
    ],
)
def test_what_could_let_a_padded_expert_through_is_refused(
    given: list[padding.Named], says: str
) -> None:
    with pytest.raises(CheckFailed, match=says):
        list(padding.pad_draft_experts(given, experts=pad_experts(4, tp=3)))


@pytest.mark.parametrize(
    ("word", "layout"),
    [("", "legal"), ("legal", "legal"), ("legacy", "legal"), ("balanced", "balanced")],
)
def test_words_for_a_layout(word: str, layout: str) -> None:
    assert tp_pad.layout_of({"DSV41_TP_PAD_LAYOUT": word}) == layout


def test_another_layout_is_refused() -> None:
    with pytest.raises(CheckFailed, match=r"D151 .*'even', expected one of legal, balanced"):
        tp_pad.layout_of({"DSV41_TP_PAD_LAYOUT": "even"})


@pytest.mark.parametrize(
    ("word", "backend"),
    [("b12x", "b12x"), ("cudnn", "cudnn")] + [(w, "cutlass") for w in ("", "off", "0", "cutlass")],
)
def test_words_for_a_backend(word: str, backend: str) -> None:
    assert mxfp8_b12x.backend_of({"DSV41_MXFP8_BACKEND": word}) == backend


def test_the_next_kernel() -> None:
    widths = {8: 8, 9: 16, 18: 32, 24: 32, 32: 32, 33: 64, 96: 128, 128: 128, 192: 192}
    assert {heads: tp_pad.kernel_heads(heads) for heads in widths} == widths
