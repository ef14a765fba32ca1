"""Padding and cutting of the checkpoint's tensors to one rank, by their official names.

What: pure functions on tensors; the engine plugin and the local engine call the same ones. Cut are
`wq_b` rows and `attn_sink` by heads, `wo_a` rows and `wo_b` columns by output groups, `embed` and
`head` rows by vocabulary, routed experts either by slices of their inner width or whole (expert
parallel, contiguous ids), shared experts by slices of their inner width. All else is replicated.

Why: 64 heads and 8 groups do not divide by three. Groups are padded first and heads follow, so that
a head keeps its group; padded queries are zero, and zero rows of `wo_a` and zero columns of `wo_b`
remove what such heads return. Source of the rule: the three-Spark recipe for SGLang.

Scales of blocks that are all padding are memory that nobody wrote. The engine cannot re-encode such
a scale, and falls back to a slower kernel (22 ms a step on the padded rank, same source) without a
word, hence `repair_scales`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dsv41.errors import CheckFailed
from dsv41.geometry import (
    AttentionPadding,
    ExpertPadding,
    Shard,
    VocabPadding,
    pad_attention,
    pad_experts,
    pad_vocab,
    real_span,
)

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 32  # columns, and in dense weights rows, that share a scale; slices must be whole blocks
E4M3_MAGNITUDE = 0x7F  # bits of an E4M3 byte that are not its sign
E2M1_MAGNITUDE = 0x77  # the same of two packed E2M1 codes

Axis = Literal["heads", "groups", "vocab", "inner"]

_LAYER = r"(?:layers|mtp)\.\d+\."
_QUANTIZED = r"\.(?:weight|scale)"
_MLP = r"ffn\.(?:experts\.\d+|shared_experts)"
_RULES: tuple[tuple[str, int, Axis], ...] = (
    (rf"{_LAYER}attn\.wq_b{_QUANTIZED}", 0, "heads"),
    (rf"{_LAYER}attn\.attn_sink", 0, "heads"),
    (rf"{_LAYER}attn\.wo_a{_QUANTIZED}", 0, "groups"),
    (rf"{_LAYER}attn\.wo_b{_QUANTIZED}", 1, "groups"),
    (r"(?:embed|head)\.weight", 0, "vocab"),
    (rf"{_LAYER}{_MLP}\.w[13]{_QUANTIZED}", 0, "inner"),
    (rf"{_LAYER}{_MLP}\.w2{_QUANTIZED}", 1, "inner"),
)
_EXPERT = r"layers\.\d+\.ffn\.experts\.(\d+)\..*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """Real and padded counts of every axis that is cut.

    `inner_blocks` of `inner_padded` blocks of 32 are real in an expert's inner width. `experts` is
    None unless the layers' routed experts are kept whole (expert parallel).
    """

    attention: AttentionPadding
    vocab: VocabPadding
    inner_blocks: int
    inner_padded: int
    experts: ExpertPadding | None = None

    def counts(self, axis: Axis) -> tuple[int, int]:
        """(real, padded) units of an axis."""
        match axis:
            case "heads":
                return self.attention.heads, self.attention.padded_heads
            case "groups":
                return self.attention.groups, self.attention.padded_groups
            case "vocab":
                return self.vocab.real, self.vocab.padded
            case "inner":
                return self.inner_blocks, self.inner_padded


def padding_for(
    *,
    heads: int,
    groups: int,
    vocab: int,
    inner: int,
    experts: int,
    tp: int,
    layout: str = "legal",
    expert_parallel: bool = False,
) -> Padding:
    """Work out the padding of a model on `tp` ranks; `inner` is `moe_intermediate_size`.

    The inner width is padded to whole blocks of 32 a rank; 2304 is 3 x 768 at TP3, 4 x 576 at TP4.

    Raises CheckFailed D046 when the inner width is not made of blocks of 32.
    """
    if inner % BLOCK:
        raise _mismatch(f"moe_intermediate_size {inner} is not a multiple of {BLOCK}")
    blocks = inner // BLOCK
    return Padding(
        attention=pad_attention(heads=heads, groups=groups, tp=tp, layout=layout),
        vocab=pad_vocab(vocab, tp=tp),
        inner_blocks=blocks,
        inner_padded=-(-blocks // tp) * tp,
        experts=pad_experts(experts, tp=tp) if expert_parallel else None,
    )


def axis_of(name: str) -> tuple[int, Axis] | None:
    """(dimension, axis) along which the tensor of this official name is cut; None: replicated."""
    return next(((dim, axis) for rule, dim, axis in _RULES if re.fullmatch(rule, name)), None)


def is_owned(name: str, *, shard: Shard, padding: Padding) -> bool:
    """Whether this rank holds anything of a tensor: false only for other ranks' whole experts."""
    expert = re.fullmatch(_EXPERT, name)
    if padding.experts is None or expert is None:
        return True
    return int(expert[1]) in real_span(
        padding.experts.real, per_rank=padding.experts.per_rank, shard=shard
    )


def pad_and_cut(
    name: str, tensor: Tensor, *, shard: Shard, padding: Padding, fill: float | None = None
) -> Tensor:
    """Cut this rank's part out of a tensor, padded at the end of its axis.

    Args:
        name: official name; the `.scale` of a weight is cut like the weight, in blocks.
        tensor: the whole tensor, any dtype; every unit of its axis (head, group, vocabulary row,
            block) has the same number of elements.
        shard: the rank.
        padding: counts of all axes.
        fill: value of padded elements; left out, 1.0 for scales and 0 for all else.

    Returns:
        A tensor of the same dtype: a new one, or the same object where it is replicated or whole.

    Raises:
        CheckFailed: D046, when the axis is not made of the real count of units.
    """
    cut = axis_of(name)
    if cut is None or (padding.experts is not None and re.fullmatch(_EXPERT, name)):
        return tensor
    dim, axis = cut
    real, padded = padding.counts(axis)
    size = tensor.shape[dim]
    if size == 0 or size % real:
        raise _mismatch(f"{name} has {size} along dimension {dim}, not a multiple of {real} {axis}")
    unit, per_rank = size // real, padded // shard.tp
    span = real_span(real, per_rank=per_rank, shard=shard)
    part = tensor.narrow(dim, span.start * unit, len(span) * unit)
    value = fill if fill is not None else float(name.endswith(".scale"))
    return _lengthened(part, dim=dim, size=per_rank * unit, value=value)


def _lengthened(part: Tensor, *, dim: int, size: int, value: float) -> Tensor:
    """A new tensor of `size` along `dim`: the part, then `value`."""
    import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

    shape = [*part.shape]
    shape[dim] = size
    # By way of float32: 8-bit floats have no fill of their own.
    result = torch.full((), value, dtype=torch.float32).to(part.dtype).expand(shape).clone()
    result.narrow(dim, 0, part.shape[dim]).copy_(part)
    return result


def repair_scales(
    weight_bytes: Tensor,
    scales: Tensor,
    block: tuple[int, int] = (BLOCK, BLOCK),
    *,
    name: str = "weight",
    magnitude: int = E4M3_MAGNITUDE,
) -> Tensor:
    """Set every bad scale of an all-zero block to 1.0.

    A scale is bad unless it is a positive, finite, normal power of two: memory that nobody wrote
    holds zeros, denormals or anything. A block is all zero when no byte has a magnitude bit: -0
    counts as zero.

    Args:
        weight_bytes: uint8 [rows, columns], E4M3 bytes or packed E2M1 pairs.
        scales: float32 [ceil(rows / block rows), ceil(columns / block columns)].
        block: bytes that share a scale, (32, 32) for E4M3 and (1, 16) for packed E2M1.
        name: the tensor, for the message.
        magnitude: bits of a byte that are not signs, `E4M3_MAGNITUDE` or `E2M1_MAGNITUDE`.

    Returns:
        `scales` itself when nothing was bad, else a repaired copy.

    Raises:
        CheckFailed: D045, a bad scale on a block with a non-zero weight; D046, shapes do not fit.
    """
    import torch  # noqa: PLC0415 - as above

    grid = tuple(-(-size // step) for size, step in zip(weight_bytes.shape, block, strict=True))
    if scales.dtype != torch.float32 or tuple(scales.shape) != grid:
        found = f"{scales.dtype} {list(scales.shape)}"
        raise _mismatch(f"scales of {name} must be float32 {list(grid)}, found {found}")
    mantissa = scales.contiguous().view(torch.int32) & 0x7FFFFF
    bad = (mantissa != 0) | ~(scales > 0) | scales.isinf()
    if not bad.any():
        return scales
    wrong = bad & _nonzero_blocks(weight_bytes & magnitude, block)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise CheckFailed(
            "D045",
            f"{name} has scale {float(scales[row, column])!r} in block ({row}, {column}),"
            " whose weights are not all zero.",
            fix="verify the checkpoint's files against their published hashes",
        )
    return scales.masked_fill(bad, 1.0)


def _nonzero_blocks(magnitudes: Tensor, block: tuple[int, int]) -> Tensor:
    """Bool [block rows, block columns]: whether any byte of a block is not zero."""
    from torch.nn.functional import pad  # noqa: PLC0415 - as above

    rows, columns = (-(-size // step) for size, step in zip(magnitudes.shape, block, strict=True))
    short = (0, columns * block[1] - magnitudes.shape[1], 0, rows * block[0] - magnitudes.shape[0])
    whole = pad(magnitudes, short) != 0
    return whole.reshape(rows, block[0], columns, block[1]).any(3).any(1)


def _mismatch(says: str) -> CheckFailed:
    return CheckFailed(
        "D046",
        f"Shapes do not fit the configuration: {says}.",
        fix="use config.json and tensors of one and the same checkpoint",
    )
