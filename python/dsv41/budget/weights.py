"""Bytes of the model's tensors on one rank, from their shapes.

Shapes are those of the released checkpoint (config.json and the safetensors headers). What an
engine takes beyond the tensors while it loads them (its context, converted copies, fragments) is
the difference to the published figure of that engine at four ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsv41.geometry import pad_attention, pad_experts, pad_vocab

GIB = 1 << 30
LAYERS, DRAFT_LAYERS, HIDDEN, VOCAB = 40, 3, 5120, 129_280
HEADS, GROUPS, EXPERTS, DRAFT_EXPERTS, WIDTH = 64, 8, 384, 128, 2304
# MXFP4: two values a byte, one E8M0 scale per 32 of them
EXPERT = 3 * (WIDTH * HIDDEN // 2 + WIDTH * HIDDEN // 32)  # w1, w2, w3

# published: 77 GiB of weights and 2.5 GiB of draft a rank at TP4 (MIA-README); "Model loading took
# 78.79 GiB" for text alone at TP4 (SR-PR261)
LOADED_AT_TP4: Mapping[str, float] = {"sglang": 77.0, "vllm": 78.79}
DRAFT_AT_TP4: Mapping[str, float] = {"sglang": 2.5}


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Bytes on one rank."""

    experts: int
    dense: int
    vision: int
    draft: int
    overhead: int

    @property
    def loaded(self) -> int:
        """What the model takes without its draft."""
        return self.experts + self.dense + self.vision + self.overhead


def of_rank(*, engine: str, tp: int, layout: str = "legal", text_only: bool = False) -> Weights:
    """The weights of one rank of `tp`, the fullest one where ranks differ."""
    tensors = _tensors(tp, layout)
    at_four = _tensors(4, "legal")
    seen = at_four.experts + at_four.dense + (at_four.vision if engine == "sglang" else 0)
    overhead = int(LOADED_AT_TP4[engine] * GIB) - seen
    extra = int(DRAFT_AT_TP4[engine] * GIB) - at_four.draft if engine in DRAFT_AT_TP4 else 0
    return Weights(
        experts=tensors.experts,
        dense=tensors.dense,
        vision=0 if text_only else tensors.vision,
        draft=tensors.draft + extra,
        overhead=overhead,
    )


def balanced_saves(tp: int) -> int:
    """Bytes that the balanced layout of padded heads saves on each of `tp` ranks; 0 without any.

    Ranks hold equally much in either layout, padding included: at three ranks 3 groups, not 4.
    """
    legal, balanced = _tensors(tp, "legal"), _tensors(tp, "balanced")
    return legal.dense + legal.draft - balanced.dense - balanced.draft


def whole(*, stored: bool = True) -> Weights:
    """The whole checkpoint on one rank; `stored` as it lies on disk, else as engines hold it."""
    return _tensors(1, "legal", wo_a_bytes=1 if stored else 2)


def _tensors(tp: int, layout: str, *, wo_a_bytes: int = 2) -> Weights:
    heads = pad_attention(heads=HEADS, groups=GROUPS, tp=tp, layout=layout)
    share = heads.local_groups / GROUPS
    attention = _attention(share, wo_a_bytes)
    vocabulary = pad_vocab(VOCAB, tp=tp).per_rank
    draft_experts = pad_experts(DRAFT_EXPERTS, tp=tp).padded
    shared = 3 * WIDTH * HIDDEN // tp
    mixing = 2 * 24 * 4 * HIDDEN * 4  # hyper-connections, float32
    layer = attention + shared + mixing
    dense = LAYERS * (layer + EXPERTS * HIDDEN * 2) + _sources() + 2 * vocabulary * HIDDEN * 2
    draft = DRAFT_LAYERS * (layer + DRAFT_EXPERTS * HIDDEN * 2 + draft_experts * EXPERT // tp)
    draft += 3 * HIDDEN * HIDDEN + 2 * vocabulary * 256 * 2  # main_proj, Markov head
    return Weights(
        experts=LAYERS * EXPERTS * EXPERT // tp,
        dense=int(dense),
        vision=32 * (4 * 1024 * 1024 + 3 * 1024 * 2816) * 2,
        draft=int(draft),
        overhead=0,
    )


def _attention(share: float, wo_a_bytes: int) -> float:
    """One layer: wq_b, wo_a and wo_b are cut by groups, wq_a and wkv are on every rank.

    wo_a is FP8 on disk and bf16 once an engine has loaded it.
    """
    scales = 1 + 1 / 1024  # a byte per block of 32x32
    cut = 32768 * 1280 * scales + 8192 * 4096 * wo_a_bytes + HIDDEN * 8192 * scales
    return share * cut + (1280 + 512) * HIDDEN * scales


def _sources() -> int:
    """On every rank: indexers of 8 layers, compressors of 4, 3 with a gate, Engram's 2 wkv."""
    indexers = 8 * (4096 * 1280 + 32 * HIDDEN * 2)
    compressors = 7 * 512 * HIDDEN * 2
    return indexers + compressors + 2 * 25600 * 6144
