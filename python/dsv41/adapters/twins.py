"""FP8 twins of bf16 weights: half the bytes to read, exact where the weight was FP8 before.

A twin is e4m3 values with one power of two for each block of 32x32, as the checkpoint has its FP8
weights. The exponent is the least with which the block's largest value fits (448, e4m3's largest
finite value, after the OCP FP8 formats). A weight that an engine dequantized from such blocks comes
back bit for bit, for a smaller exponent only moves values to where e4m3 is denser.

`project` multiplies by a twin: on a GPU in Triton, with float32 sums, and elsewhere by the same
arithmetic in torch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 32
LARGEST = 448.0  # of e4m3
BIAS = 127  # of the exponent's byte (E8M0)
SHARED = 90 * 2**10  # bytes of shared memory to fill; a block of SM120 and SM121 has 99 KiB
MOST_ROWS = 192  # of one product: beyond it the weight's bytes are no longer what a product costs


@dataclass(frozen=True, kw_only=True, slots=True)
class Twin:
    """values: e4m3 [groups, rows, columns]; exponents: uint8 [groups, rows / 32, columns / 32]."""

    values: Tensor
    exponents: Tensor

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return self.values.numel() + self.exponents.numel()

    def whole(self) -> Tensor:
        """The weight again, bf16 [groups, rows, columns], in memory of its own."""
        import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

        scales = torch.exp2(self.exponents.float() - BIAS)
        return _over_blocks(self.values.float(), scales, torch.mul).to(torch.bfloat16)


def twin(weight: Tensor) -> Twin:
    """The nearest twin of a weight [groups, rows, columns], rows and columns multiples of 32.

    A value differs by at most 2^-4 of itself, and by 2^-10 of the block's exponent where e4m3 is
    subnormal (three bits of mantissa; round to nearest).
    """
    import torch  # noqa: PLC0415 - as above

    groups, rows, columns = weight.shape
    if rows % BLOCK or columns % BLOCK:
        raise ValueError(f"a twin has blocks of {BLOCK}x{BLOCK}; the weight is {rows}x{columns}")
    parts = weight.float().view(groups, rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    largest = parts.abs().amax((2, 4))
    exponents = torch.ceil(torch.log2(largest / LARGEST)).clamp(-BIAS, BIAS)
    # log2 of a float is rounded: what does not fit takes the next power
    exponents = torch.where(largest > LARGEST * torch.exp2(exponents), exponents + 1, exponents)
    values = _over_blocks(weight.float(), torch.exp2(exponents), torch.div)
    return Twin(
        values=values.to(torch.float8_e4m3fn).contiguous(),
        exponents=(exponents + BIAS).to(torch.uint8).contiguous(),
    )


def exact_twin(weight: Tensor) -> Twin | None:
    """The twin of a bf16 weight, or None where it is not the same to the last bit."""
    import torch  # noqa: PLC0415 - as above

    found = twin(weight)
    same = torch.equal(found.whole().view(torch.int16), weight.contiguous().view(torch.int16))
    return found if same else None


def project(x: Tensor, by: Twin) -> Tensor:
    """Multiply bf16 [tokens, groups, columns] by the twin: bf16 [tokens, groups, rows].

    Sums are float32. At most MOST_ROWS tokens on a GPU.
    """
    import torch  # noqa: PLC0415 - as above

    tokens, groups, _ = x.shape
    out = torch.empty(tokens, groups, by.values.shape[1], dtype=x.dtype, device=x.device)
    if x.device.type == "cuda":
        _launch(x, by, out)
        return out
    for group in range(groups):
        out[:, group] = (x[:, group].float() @ by.whole()[group].float().T).to(x.dtype)
    return out


def _over_blocks(values: Tensor, scales: Tensor, apply: Any) -> Tensor:
    groups, rows, columns = values.shape
    parts = values.view(groups, rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    result: Tensor = apply(parts, scales[:, :, None, :, None]).view(groups, rows, columns)
    return result


def _launch(x: Tensor, by: Twin, out: Tensor) -> None:
    tokens, groups, columns = x.shape
    rows = by.values.shape[1]
    padded = max(16, 1 << (tokens - 1).bit_length())
    tile = 32 if padded <= 32 else 16  # measured: tests/gpu/test_twins.py
    step = next(s for s in (128, 64, BLOCK) if columns % s == 0 and padded * s <= 2**13)
    stages = max(2, min(4, SHARED // (padded * step * 2 + tile * step)))
    grid = (rows // tile, groups)
    _kernel()[grid](
        x, by.values, by.exponents, out, tokens, rows, columns,
        x.stride(0), x.stride(1), out.stride(0), out.stride(1),
        TOKENS=padded, TILE=tile, STEP=step,
        num_warps=4 if padded <= 64 else 8, num_stages=stages,
    )  # fmt: skip


@functools.cache
def _kernel() -> Any:
    from dsv41.adapters import twin_kernel  # noqa: PLC0415 - needs Triton

    return twin_kernel.project
