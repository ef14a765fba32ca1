"""How axes that do not divide over the ranks are padded.

Padding is exact: padded heads have zero queries, zero rows of ``wo_a`` and zero columns of
``wo_b``; padded vocabulary is cut off the logits; a padded expert can never be selected. All
padding stands at the end of its axis. Groups are padded first and heads follow, so that a head
keeps its group.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, lcm
from typing import TYPE_CHECKING

from dsv41.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Local head counts that the SM120 sparse-MLA kernels are built for (SGLang three-Spark recipe).
LEGAL_LOCAL_HEADS = (8, 16, 32, 64, 128)
LAYOUTS = ("legal", "balanced")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionPadding:
    """Attention heads and output groups of one model on ``tp`` ranks.

    ``kernel_heads`` is the local count that the attention kernel is called with: where it is more
    than ``local_heads``, q is padded with zero heads just before the kernel and its output cut.
    """

    heads: int
    groups: int
    padded_heads: int
    padded_groups: int
    local_heads: int
    local_groups: int
    kernel_heads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabPadding:
    """Rows of the embedding and the output head; ids from ``real`` on are padding."""

    real: int
    padded: int
    per_rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertPadding:
    """Experts of a mixture; those from ``real`` on are padding."""

    real: int
    padded: int
    per_rank: int


def pad_attention(*, heads: int, groups: int, tp: int, layout: str = "legal") -> AttentionPadding:
    """Pad groups, and heads with them, so that each rank holds whole groups.

    Args:
        heads: attention heads.
        groups: output groups (``o_groups``); ``heads / groups`` heads form one.
        tp: number of ranks.
        layout: ``legal`` raises the local heads to the next count that the kernels know (64 heads
            in 8 groups become 96 in 12 at TP3, and rank 2 holds nothing real); ``balanced`` pads
            groups only up to a multiple of tp (72 in 9) and leaves the rest to ``kernel_heads``.

    Raises:
        UsageError: D092, when heads do not fill groups, the layout is unknown, or no legal count
            of local heads is made of whole groups.
    """
    _require(heads >= 1 and groups >= 1 and heads % groups == 0, f"{heads} heads, {groups} groups")
    _require(layout in LAYOUTS, f"layout {layout!r} is unknown, known are {', '.join(LAYOUTS)}")
    per_group = heads // groups
    local_groups = _ceil(groups, tp) // tp
    if layout == "legal":
        local_groups = _legal(local_groups * per_group, per_group) // per_group
    local_heads = local_groups * per_group
    return AttentionPadding(
        heads=heads,
        groups=groups,
        padded_heads=local_heads * tp,
        padded_groups=local_groups * tp,
        local_heads=local_heads,
        local_groups=local_groups,
        kernel_heads=_legal(local_heads, 1),
    )


def pad_vocab(vocab: int, *, tp: int, multiple: int = 64) -> VocabPadding:
    """Pad the vocabulary to the least common multiple of ``multiple`` and ``tp``.

    129,280 becomes 129,408 = 3 x 43,136 at TP3.
    """
    _require(vocab >= 1 and multiple >= 1, f"vocabulary {vocab}, multiple {multiple}")
    padded = _ceil(vocab, lcm(multiple, _ranks(tp)))
    return VocabPadding(real=vocab, padded=padded, per_rank=padded // tp)


def pad_experts(experts: int, *, tp: int) -> ExpertPadding:
    """Pad routed or draft experts to a multiple of tp: 128 draft experts become 129 at TP3."""
    _require(experts >= 1, f"{experts} experts")
    padded = _ceil(experts, tp)
    return ExpertPadding(real=experts, padded=padded, per_rank=padded // tp)


def selection_bias(
    padding: ExpertPadding, bias: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Selection bias of all experts, -inf for padded ones.

    A zero gate row scores sqrt(softplus(0)) = 0.83, more than many a real expert; only a bias of
    -inf keeps top-k from selecting a padded expert.

    Args:
        padding: real and padded counts.
        bias: the real experts' bias, 0.0 each when left out.

    Raises:
        UsageError: D092, when ``bias`` is not of the real experts' length.
    """
    real = tuple(bias) if bias is not None else (0.0,) * padding.real
    _require(len(real) == padding.real, f"{len(real)} bias values for {padding.real} experts")
    return (*real, *(-inf,) * (padding.padded - padding.real))


def _legal(local_heads: int, per_group: int) -> int:
    counts = [n for n in LEGAL_LOCAL_HEADS if n >= local_heads and n % per_group == 0]
    _require(
        bool(counts),
        f"{local_heads} local heads in groups of {per_group} reach none of {LEGAL_LOCAL_HEADS}",
    )
    return counts[0]


def _ceil(count: int, multiple: int) -> int:
    return -(-count // _ranks(multiple)) * multiple


def _ranks(tp: int) -> int:
    _require(tp >= 1, f"{tp} ranks")
    return tp


def _require(met: bool, found: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not met:
        raise UsageError(
            "D092",
            f"Padding: cannot be worked out from {found}.",
            fix="compare the counts with the checkpoint's config.json and the number of ranks",
        )
