"""Whole checkpoint tensors padded by their official names, before an engine cuts them to ranks.

Heads and groups go through `shard`, whose rule the local engine has too; draft experts are padded
here. A tensor that is not of the shape that the configuration says is refused, never guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv41.adapters import shard as sharding
from dsv41.errors import CheckFailed
from dsv41.geometry import (
    AttentionPadding,
    ExpertPadding,
    Shard,
    pad_attention,
    pad_experts,
    pad_vocab,
    selection_bias,
)

if TYPE_CHECKING:
    from torch import Tensor

_PADDED = re.compile(r"(?:.*\.)?(wq_b|wo_a|wo_b|attn_sink)(?:\..*)?")
_WHOLE = Shard(rank=0, tp=1)  # pads without cutting
_GATE = re.compile(r"(mtp\.\d+)\.ffn\.gate\.(weight|bias)")
_EXPERT = re.compile(r"(mtp\.\d+\.ffn\.experts\.)(\d+)(\..*)")

Named = tuple[str, "Tensor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """Sizes of a configuration that padding leaves alone, and the blocks of its dense scales."""

    hidden: int
    head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    block: tuple[int, int] = (sharding.BLOCK, sharding.BLOCK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What a model is padded to; `experts` are the draft's, None where it has none."""

    attention: AttentionPadding
    experts: ExpertPadding | None

    @property
    def pads_heads(self) -> bool:
        """Whether heads and groups are padded at all."""
        return self.attention.padded_groups != self.attention.groups

    @property
    def pads_experts(self) -> bool:
        """Whether the draft's experts are."""
        return self.experts is not None and self.experts.padded != self.experts.real

    def changes(self) -> dict[str, int]:
        """The configuration's keys that change, with their new values."""
        found = {}
        if self.pads_heads:
            found["num_attention_heads"] = self.attention.padded_heads
            found["o_groups"] = self.attention.padded_groups
        if self.experts is not None and self.pads_experts:
            found["dspark_n_routed_experts"] = self.experts.padded
        return found


def counts_for(config: Any, *, tp: int, ep: int, layout: str) -> Counts:
    """Work out the padding of a flat V4.1 configuration.

    Args:
        config: an object with `num_attention_heads` and `o_groups` as published.
        tp: ranks of the attention.
        ep: ranks that share the experts, each holding whole ones.
        layout: `legal` or `balanced`.

    Raises:
        UsageError: D092, when the heads cannot be padded so.
    """
    draft = int(getattr(config, "dspark_n_routed_experts", 0) or 0)
    heads, groups = config.num_attention_heads, config.o_groups
    return Counts(
        attention=pad_attention(heads=heads, groups=groups, tp=tp, layout=layout),
        experts=pad_experts(draft, tp=ep) if draft else None,
    )


def pad_heads(name: str, tensor: Tensor, *, attention: AttentionPadding, widths: Widths) -> Tensor:
    """Pad one official tensor along heads or groups; the same object where it has neither.

    Raises CheckFailed D150 for an unknown name of a tensor that has them, and for a wrong shape.
    """
    cut = sharding.axis_of(name)
    if cut is None or cut[1] not in ("heads", "groups"):
        found = _PADDED.fullmatch(name)
        if found and ".indexer." not in name:  # indexers stand whole on every rank
            raise _refused(name, f"layers.N.attn.{found[1]} or mtp.N.attn.{found[1]}", "this name")
        return tensor
    expected = _shape(name, attention, widths)
    if tuple(tensor.shape) != expected:
        raise _refused(name, f"shape {list(expected)}", str(list(tensor.shape)))
    padding = sharding.Padding(
        attention=attention, vocab=pad_vocab(1, tp=1), inner_blocks=1, inner_padded=1
    )
    return sharding.pad_and_cut(name, tensor, shard=_WHOLE, padding=padding)


def _shape(name: str, attention: AttentionPadding, widths: Widths) -> tuple[int, ...]:
    """The checkpoint's shape of a tensor, in elements or, for a scale, in blocks."""
    module, _, kind = name.split(".attn.")[1].partition(".")
    heads, narrow = attention.heads, attention.groups * widths.o_lora_rank
    shape: tuple[int, ...] = {
        "attn_sink": (heads,),
        "wq_b": (heads * widths.head_dim, widths.q_lora_rank),
        "wo_a": (narrow, heads // attention.groups * widths.head_dim),
        "wo_b": (widths.hidden, narrow),
    }[module]
    if kind != "scale":
        return shape
    unit = widths.head_dim if module == "wq_b" else widths.o_lora_rank
    step = widths.block[module == "wo_b"]
    if unit % step:
        raise _refused(name, f"heads and groups of whole blocks of {step}", f"{unit} elements")
    return tuple(-(-size // step) for size, step in zip(shape, widths.block, strict=True))


def pad_draft_experts(weights: Iterable[Named], *, experts: ExpertPadding) -> Iterator[Named]:
    """Pad the draft's gates, and add its padded experts' tensors: zeros, with scales of 1.0.

    A padded expert's selection bias is -inf, so that no top-k takes it. Raises CheckFailed D150
    for a gate of another number of experts, or one whose bias never comes.
    """
    biased: dict[str, bool] = {}
    for name, tensor in weights:
        gate, expert = _GATE.fullmatch(name), _EXPERT.fullmatch(name)
        if gate:
            biased[gate[1]] = biased.get(gate[1], False) or gate[2] == "bias"
            yield name, _longer_gate(name, tensor, experts)
            continue
        yield name, tensor
        if expert and int(expert[2]) == experts.real - 1:
            blank = _blank(name, tensor)
            for index in range(experts.real, experts.padded):
                yield f"{expert[1]}{index}{expert[3]}", blank.clone()
    for stage, has_bias in biased.items():
        if not has_bias:
            raise _refused(f"{stage}.ffn.gate.bias", "a bias, for its padded experts", "none")


def _longer_gate(name: str, tensor: Tensor, experts: ExpertPadding) -> Tensor:
    import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

    if tensor.shape[0] != experts.real:
        raise _refused(name, f"{experts.real} experts", str(tensor.shape[0]))
    if name.endswith(".bias"):
        more = torch.tensor(selection_bias(experts)[experts.real :])
    else:
        more = torch.zeros(experts.padded - experts.real, *tensor.shape[1:])
    return torch.cat([tensor, more.to(tensor)])


def _blank(name: str, tensor: Tensor) -> Tensor:
    import torch  # noqa: PLC0415 - as above

    is_scale = name.endswith(".scale")
    if is_scale and not tensor.dtype.is_floating_point:
        raise _refused(name, "a scale of a float type", str(tensor.dtype))
    # By way of float32: 8-bit floats have no fill of their own.
    return torch.tensor(float(is_scale)).to(tensor).expand(tensor.shape)


def _refused(name: str, expected: str, found: str) -> CheckFailed:
    return CheckFailed(
        "D150",
        f"Padding: {name} is not what it must be: expected {expected}, found {found}.",
        fix="use config.json and tensors of one and the same checkpoint",
    )
