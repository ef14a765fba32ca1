"""The engine's router as its GPUs run it, its Triton kernel, in Triton's own interpreter.

Prints as JSON, for V4's and V4.1's numerics, which of 129 experts are taken by tokens that like
no real one: with the padded expert's bias at -inf, and at 0. A process of its own, because
TRITON_INTERPRET is read when a kernel is defined. The interpreter has no libdevice, so its three
functions are written with Triton's own here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))
import engine_cpu  # isort: skip  before anything of the engine

import json

import torch
import triton
import triton.language as tl
from sglang.kernels.ops.moe import moe_fused_gate as router

from dsv41.geometry import pad_experts, selection_bias

REAL, TOP = 128, 3


@triton.jit  # type: ignore[untyped-decorator]
def log1p(x: Any) -> Any:
    return tl.log(1.0 + x)


@triton.jit  # type: ignore[untyped-decorator]
def exp(x: Any) -> Any:
    return tl.exp(x)


@triton.jit  # type: ignore[untyped-decorator]
def sqrt(x: Any) -> Any:
    return tl.sqrt(x)


def taken(bias: torch.Tensor, *, log1p: bool) -> list[int]:
    """Ids that 32 tokens take; a padded expert's zero gate row gives a logit of 0."""
    logits = torch.randn(32, len(bias), generator=torch.Generator().manual_seed(3)) - 8
    logits[:, REAL:] = 0
    _, ids = router.moe_fused_gate(
        logits, bias, topk=TOP, scoring_func="sqrtsoftplus", sqrtsoftplus_log1p=log1p
    )
    return sorted(set(ids.flatten().tolist()))


def main() -> None:
    assert engine_cpu.OPERATORS is not None
    router.libdevice = SimpleNamespace(log1p=log1p, exp=exp, sqrt=sqrt)
    router.is_arch_support_pdl = lambda: False
    masked = torch.tensor(selection_bias(pad_experts(REAL, tp=3)))
    plain = torch.zeros_like(masked)
    numerics = {"v4": False, "v4.1": True}
    found = {n: [taken(masked, log1p=k), taken(plain, log1p=k)] for n, k in numerics.items()}
    print(json.dumps(found))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main()
