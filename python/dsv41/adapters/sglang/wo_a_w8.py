"""wo_a from exact FP8 twins: half the bytes in the products of decode and verification.

What: The checkpoint has wo_a in FP8 with one power of two a block of 32x32, and SGLang dequantizes
it to bf16 while loading. This makes FP8 twins of it again (`adapters.twins`) and multiplies 1 to 8
rows by them; with DSV41_WO_A_W8_MID=1 up to 192 rows of a verification or a draft as well. A weight
whose twin is not the same to the last bit stays as it is. DSV41_WO_A_W8_DROP=1 gives the bf16
weight's memory back: larger products then make it again, each in memory of its own. The draft's
wo_a stays bf16 unless DSV41_WO_A_W8_DRAFT=1, and is never dropped.

Why: These products read their weights and do little else. The engine's fast kernels are for two
local groups, four ranks; three ranks have four.

Exact: The weights are bit for bit the engine's own. Sums are float32 in another order than the
engine's kernels have, as between any two of its own; compared with sums in float64 in
tests/gpu/test_twins.py.

Effect: on one H200 (SM90) see docs/evidence/gpu.md. Not measured on a GB10. MiaAI-Lab's profiles
have it on, with MID and DROP; dropping took 640 MB a rank off.

Off: DSV41_WO_A_W8=0.

Obsolete when: the engine keeps wo_a in FP8 on SM12x.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dsv41 import switches
from dsv41.adapters import twins
from dsv41.adapters.adapter import Adapter, Hook

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
MODELS = "sglang.srt.models"
FEW_ROWS = 8  # where the engine's own small kernels end
TWINS: dict[int, twins.Twin] = {}  # by the address of the weight that it stands for
_kept: list[Tensor] = []  # what stands where a dropped weight was


@functools.cache
def _on(name: str) -> bool:
    """A switch of this process, whose environment does not change while it serves."""
    return switches.read_exactly(os.environ, name) != 0


def load_target(result: Any, model: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After the target's weights: twins of every wo_a, in their place where that is asked for."""
    _make(model, drop=_on("wo_a_w8_drop"), says="target")
    return result


def load_draft(result: Any, model: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After the draft's weights: twins beside them, where that is asked for."""
    if _on("wo_a_w8_draft"):
        _make(model, drop=False, says="draft")
    return result


def _make(model: Any, *, drop: bool, says: str) -> None:
    import torch  # noqa: PLC0415 - only where the adapter is on

    layers = [m for m in model.modules() if hasattr(m, "wo_a") and hasattr(m, "n_local_groups")]
    weights = [m for m in layers if getattr(m.wo_a, "weight", None) is not None]
    weights = [m for m in weights if m.wo_a.weight.dtype == torch.bfloat16]
    made = sum(_replace(m, drop=drop) for m in weights)
    log.info("DSV41 wo_a twins: %d of %d layers of the %s are exact", made, len(layers), says)


def _replace(layer: Any, *, drop: bool) -> bool:
    weight = layer.wo_a.weight
    whole = weight.data.view(layer.n_local_groups, -1, weight.shape[-1])
    found = twins.exact_twin(whole)
    if found is None:
        return False
    if drop:
        tag = weight.data.new_zeros(1)
        _kept.append(tag)
        weight.data = tag.expand(weight.shape)  # the shape without the memory
    TWINS[weight.data_ptr()] = found
    return True


def multiply(
    original: Callable[..., Any], o: Tensor, wo_a: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Give [tokens, groups, rows], of o [tokens, groups, columns], wo_a [groups, rows, columns]."""
    found = TWINS.get(wo_a.data_ptr())
    if found is None:
        return original(o, wo_a, *args, **kwargs)
    verifies = bool(args[1] if len(args) > 1 else kwargs.get("is_target_verify"))
    most = twins.MOST_ROWS if verifies and _on("wo_a_w8_mid") else FEW_ROWS
    if 0 < len(o) <= most and o.stride(-1) == 1:
        return twins.project(o, found)
    if wo_a.stride(-1) == 0:  # dropped
        wo_a = found.whole()
    return original(o, wo_a, *args, **kwargs)


def check(environ: Mapping[str, str]) -> None:
    """The switches are numbers; D074."""
    for name in ("wo_a_w8_mid", "wo_a_w8_drop", "wo_a_w8_draft"):
        switches.read_exactly(environ, name)


ADAPTER = Adapter(
    name="wo_a_w8",
    switch="wo_a_w8",
    engines=("sglang",),
    trees=("sglang-0.5.23",),
    hooks=(
        Hook(
            target=f"{MODELS}.deepseek_v4.DeepseekV4ForCausalLM.load_weights",
            kind="after",
            call=load_target,
        ),
        Hook(
            target=f"{MODELS}.deepseek_v4_dspark.DeepseekV4ForCausalLMDSpark.load_weights",
            kind="after",
            call=load_draft,
        ),
        Hook(
            target=f"{MODELS}.deepseek_v4._apply_wo_a_bf16_matmul",
            kind="around",
            call=multiply,
            takes=("o", "wo_a", "is_decode", "is_target_verify"),
        ),
    ),
    check=check,
)
