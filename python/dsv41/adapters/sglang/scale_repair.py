"""Block scales that nobody wrote set to 1.0 before SGLang encodes them.

What: before a layer's FP8 block scales are encoded as MXFP8 (E8M0), a scale that is not a positive
normal power of two becomes 1.0 where its whole block of weights is zero, minus zero included. On a
block with a weight such a scale is an error, and the process ends. Done in place, on the layer's
own device; weights are read only when a scale is bad.

Why: scales of blocks that are all padding can be memory that nobody wrote: denormals, zeros, or
the float32 minimum that the engine fills in. One such scale and the encoder refuses the layer,
which then stays on the Triton kernel with a warning. `tp_pad` writes 1.0 for every block that it
adds, so this is the second guard, for what the engine pads itself.

Effect: 22 ms a step on the rank that is all padding (three-Spark recipe, MiaAI-Lab README).

Off: DSV41_SCALE_REPAIR=0.

Obsolete when: SGLang's encoder takes any scale of an all-zero block.
"""

from __future__ import annotations

import logging
from typing import Any

from dsv41.adapters import shard
from dsv41.adapters.adapter import Adapter, Hook

log = logging.getLogger(__name__)


def repair(method: Any, layer: Any) -> None:
    """Repair one layer's `weight_scale_inv`, float32 [ceil(N / bn), ceil(K / bk)], in place.

    Raises CheckFailed D045 for a bad scale on a block that is not all zero, D046 for scales that
    do not fit the weight.
    """
    import torch  # noqa: PLC0415 - only where the adapter is on

    if getattr(layer, "keep_plain_weight_layout", False):
        return  # the engine does not encode these
    weight, scales = layer.weight.data, layer.weight_scale_inv.data
    rows, columns = method.weight_block_size
    name = getattr(layer, "prefix", "") or f"{type(layer).__name__} {tuple(weight.shape)}"
    repaired = shard.repair_scales(weight.view(torch.uint8), scales, (rows, columns), name=name)
    if repaired is not scales:
        count = int((repaired != scales).sum())
        scales.copy_(repaired)
        log.info("DSV41 scale repair: %d scales of all-zero blocks in %s", count, name)


ADAPTER = Adapter(
    name="scale_repair",
    switch="scale_repair",
    engines=("sglang",),
    trees=("sglang-0.5.23", "sglang-branch", "sglang-base"),
    hooks=(
        Hook(
            target="sglang.srt.layers.quantization.fp8.Fp8LinearMethod._prepare_block_fp8_as_mxfp8",
            kind="before",
            call=repair,
            takes=("layer",),
        ),
    ),
)
