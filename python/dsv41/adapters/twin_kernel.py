"""The product with an FP8 twin, in Triton. Imported only where a GPU runs it."""

# ruff: noqa: ANN001, ANN201, N803, PLR0913, PLR0917 - a kernel's arguments are Triton's affair

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def project(  # type: ignore[no-untyped-def]
    x,
    values,
    exponents,
    out,
    tokens,
    rows,
    columns,
    x_token,
    x_group,
    out_token,
    out_group,
    TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """One tile of at most 32 rows of one group, for all tokens.

    The rows of a tile share their blocks' powers of two, which are multiplied into the inputs:
    exact in bf16, and fewer products than with the weights. Sums are float32, by tensor cores.
    """
    group = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * TILE
    row = first + tl.arange(0, TILE)
    token = tl.arange(0, TOKENS)
    column = tl.arange(0, STEP)
    here = token[:, None] < tokens
    weights = values + group * rows * columns + row[None, :] * columns + column[:, None]
    powers = exponents + group * (rows // 32) * (columns // 32)
    powers += (first // 32) * (columns // 32) + column // 32
    inputs = x + group * x_group + token[:, None] * x_token + column[None, :]
    total = tl.zeros((TOKENS, TILE), dtype=tl.float32)
    for _ in range(0, columns, STEP):
        power = tl.load(powers).to(tl.int32)
        # the byte is float32's own exponent field, but for 0, which is 2^-127
        scale = tl.where(power == 0, 1 << 22, power << 23).to(tl.float32, bitcast=True)
        taken = tl.load(inputs, mask=here, other=0.0) * scale.to(tl.bfloat16)[None, :]
        total = tl.dot(taken, tl.load(weights).to(tl.bfloat16), total)
        inputs += STEP
        weights += STEP
        powers += STEP // 32
    at = out + group * out_group + token[:, None] * out_token + row[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=here)
