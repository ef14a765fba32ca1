"""Loading: the checkpoint's tensors of one rank, padded, cut, repaired and dequantized exactly."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from dsv41.adapters import shard as sharding
from dsv41.errors import CheckFailed
from dsv41.local.model import codec
from dsv41.rows import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from dsv41.geometry import Shard
    from dsv41.local.model.config import ModelConfig

    Read = Callable[[str], Tensor]


def load_shard(
    directory: Path,
    *,
    config: ModelConfig,
    shard: Shard,
    layout: str = "legal",
    dtype: torch.dtype = torch.float32,
    fill: float = 0.0,
    expert_parallel: bool = False,
) -> dict[str, Tensor]:
    """Official tensor name (without `.scale`) -> this rank's tensor of `dtype`.

    Quantized weights are padded and cut as bytes with their scales, then every bad scale of an
    all-zero block becomes 1.0, then they are dequantized: a power of two times a few bits, exact in
    float32.
    Engram tables are left out: their rows are read through the row store.

    Args:
        directory: a checkpoint in the released form.
        config: its configuration.
        shard: the rank.
        layout: of padded attention heads, `legal` or `balanced`.
        dtype: of all results.
        fill: value of padding that nothing may read: scales of blocks that are all padding, before
            their repair, and rows of `embed` and `head` beyond the vocabulary. NaN proves it.
        expert_parallel: whole experts of contiguous ids instead of slices of every expert.

    Raises:
        CheckFailed: D044, when the index or a tensor is missing or unreadable; D045 and D046 as
            `adapters.shard` says.
    """
    padding = sharding.padding_for(
        heads=config.num_attention_heads,
        groups=config.o_groups,
        vocab=config.vocab_size,
        inner=config.moe_intermediate_size,
        experts=config.n_routed_experts,
        tp=shard.tp,
        layout=layout,
        expert_parallel=expert_parallel,
    )
    places = _weight_map(directory)
    names = [
        name
        for name in places
        if not name.endswith(".scale")
        and ".engram.embed." not in name
        and sharding.is_owned(name, shard=shard, padding=padding)
    ]

    def cut(name: str, tensor: Tensor, value: float | None = None) -> Tensor:
        return sharding.pad_and_cut(name, tensor, shard=shard, padding=padding, fill=value)

    def load(name: str) -> Tensor:
        scale = f"{name.removesuffix('weight')}scale"
        if not name.endswith(".weight") or scale not in places:
            value = fill if name in ("embed.weight", "head.weight") else None
            return cut(name, read(name), value).to(dtype, copy=True)
        scales = cut(scale, read(scale).to(torch.float32), fill)
        return dequantize(name, cut(name, read(name).view(torch.uint8)), scales).to(dtype)

    with ExitStack() as stack:
        read = _reader(directory, places, stack)
        return {name: load(name) for name in names}


def dequantize(name: str, weight: Tensor, scales: Tensor) -> Tensor:
    """Values of a quantized weight, after the repair of scales of all-zero blocks.

    Args:
        name: official name; routed experts are packed E2M1, all else is E4M3.
        weight: uint8 [rows, columns], or [rows, columns / 2] packed.
        scales: float32 [ceil(rows / 32), columns / 32], packed: [rows, columns / 32].

    Returns:
        float32 [rows, columns].
    """
    if ".experts." not in name:
        scales = sharding.repair_scales(weight, scales, name=name)
        values = weight.view(torch.float8_e4m3fn).to(torch.float32)
        down = scales.repeat_interleave(sharding.BLOCK, 0)[: len(values)]
    else:
        scales = sharding.repair_scales(
            weight, scales, (1, sharding.BLOCK // 2), name=name, magnitude=sharding.E2M1_MAGNITUDE
        )
        pairs = torch.stack((weight & 15, weight >> 4), -1).flatten(1)
        values = torch.from_numpy(codec.E2M1_VALUES)[pairs.int()]
        down = scales
    values.view(*down.shape, sharding.BLOCK).mul_(down.unsqueeze(2))
    return values


def _weight_map(directory: Path) -> dict[str, str]:
    """Tensor name -> file name, from the index."""
    try:
        index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        return dict(index["weight_map"])
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(f"{directory / INDEX}: {error!r}") from error


def _reader(directory: Path, places: dict[str, str], stack: ExitStack) -> Read:
    """A function from tensor name to tensor; every file is opened once, until `stack` closes."""
    opened: dict[str, safe_open] = {}

    def read(name: str) -> Tensor:
        file = places[name]
        try:
            if file not in opened:
                opened[file] = stack.enter_context(safe_open(directory / file, framework="pt"))
            tensor: Tensor = opened[file].get_tensor(name)  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise _unreadable(f"{name} in {directory / file}: {error}") from error
        return tensor

    return read


def _unreadable(says: str) -> CheckFailed:
    return CheckFailed(
        "D044",
        f"The checkpoint cannot be read: {says}.",
        fix="remove the checkpoint's folder, then run the same command again",
    )
