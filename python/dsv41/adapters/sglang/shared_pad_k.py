"""The shared expert's down projection padded to what the b12x kernels take.

What: At four ranks its weight is 5,120 x 576, and b12x's MXFP8 kernels want a multiple of 128
columns, so that it would stay on CUTLASS. This pads the weight with zeros to 640, its scales with
ones, and the input with zeros. A width that is a multiple already is left alone, as at three ranks.

Why: `mxfp8_b12x` serves the shapes that b12x takes, and this one is in every layer.

Exact: the columns that are added multiply zero by zero.

Effect: not measured here. MiaAI-Lab's four-Spark recipe: -0.9 ms a step, bit-identical, 14 MB.

Off: DSV41_SHARED_PAD_K=0.

Obsolete when: b12x takes a multiple of 64, or the engine pads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dsv41.adapters.adapter import Adapter, Hook
from dsv41.errors import CheckFailed

log = logging.getLogger(__name__)
METHOD = "sglang.srt.layers.quantization.fp8.Fp8LinearMethod"
LAYER = "shared_experts.down_proj"
MULTIPLE = 128


def widen(method: Any, layer: Any) -> None:
    """Before a layer's scales are encoded: pad weight [N, K] e4m3 and scales [N/bn, K/bk]."""
    import torch  # noqa: PLC0415 - only where the adapter is on
    from torch.nn.functional import pad  # noqa: PLC0415 - as above

    missing = -layer.weight.shape[1] % MULTIPLE
    if not str(getattr(layer, "prefix", "")).endswith(LAYER) or not missing:
        return
    rows, columns = method.weight_block_size
    weight, scales = layer.weight.data, layer.weight_scale_inv.data
    fits = (-(-weight.shape[0] // rows), weight.shape[1] // columns) == tuple(scales.shape)
    if not fits or missing % columns or weight.element_size() != 1:
        raise _unpadded(f"weight {tuple(weight.shape)}, scales {tuple(scales.shape)}")
    wide = pad(weight.view(torch.uint8), (0, missing)).view(weight.dtype)  # the byte 0 is 0.0
    layer.weight.data = wide
    layer.weight_scale_inv.data = pad(scales, (0, missing // columns), value=1.0)
    layer.dsv41_missing = missing
    log.info("DSV41 shared pad: %s has %d columns, %d of them zeros", LAYER, wide.shape[1], missing)


def apply(original: Callable[..., Any], method: Any, layer: Any, x: Any, *rest: Any) -> Any:
    """Pad the input of a layer that was padded, [..., K]."""
    import torch  # noqa: PLC0415 - as above
    from torch.nn.functional import pad  # noqa: PLC0415 - as above

    missing = getattr(layer, "dsv41_missing", 0)
    if not missing:
        return original(method, layer, x, *rest)
    if not isinstance(x, torch.Tensor):
        raise _unpadded(f"its input is a {type(x).__name__}, quantized before it comes here")
    return original(method, layer, pad(x, (0, missing)), *rest)


def _unpadded(says: str) -> CheckFailed:
    return CheckFailed(
        "D484",
        f"shared_pad_k cannot pad {LAYER}: {says}.",
        fix="set DSV41_SHARED_PAD_K=0 and report it",
    )


ADAPTER = Adapter(
    name="shared_pad_k",
    switch="shared_pad_k",
    engines=("sglang",),
    trees=("sglang-0.5.23",),
    hooks=(
        Hook(
            target=f"{METHOD}._prepare_block_fp8_as_mxfp8",
            kind="before",
            call=widen,
            takes=("layer",),
        ),
        Hook(target=f"{METHOD}.apply", kind="around", call=apply, takes=("layer", "x")),
    ),
)
