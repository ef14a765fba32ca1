"""The number formats of the checkpoint and of the key-value cache, exactly.

Formats (OCP 8-bit and microscaling specifications; the released checkpoint uses the three):
E4M3, 1-4-3 bits, bias 7, no infinities, 0x7F and 0xFF are NaN, largest 448; E8M0, a power of two
2**(code - 127), 255 is NaN; E2M1, 0 0.5 1 1.5 2 3 4 6 and their negatives, two a byte, the low
nibble first.

The byte side works on numpy and needs no torch: making or packing a checkpoint must not pay for
its import (1.7 s). The cache formats work on torch tensors, which import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor, dtype

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]

E4M3_MAX = 448.0
E2M1_MAX = 6.0
ROW_BLOCK = 32  # values that share one scale, in Engram rows and in microscaled weights


def _e4m3_value(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


def _e2m1_value(code: int) -> float:
    magnitude = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)[code & 7]
    return -magnitude if code & 8 else magnitude


E4M3_VALUES: Floats = np.array([_e4m3_value(code) for code in range(256)], np.float32)
E8M0_VALUES: Floats = np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan], np.float32)
E2M1_VALUES: Floats = np.array([_e2m1_value(code) for code in range(16)], np.float32)


def decode_e4m3(codes: Bytes) -> Floats:
    """Values of E4M3 codes: uint8 [...] -> float32 [...]; codes 0x7F and 0xFF give NaN."""
    return E4M3_VALUES[codes]


def decode_e8m0(codes: Bytes) -> Floats:
    """Values of E8M0 codes: uint8 [...] -> float32 [...]; code 255 gives NaN."""
    return E8M0_VALUES[codes]


def decode_e2m1(packed: Bytes) -> Floats:
    """Values of packed E2M1 pairs: uint8 [..., n] -> float32 [..., 2 n], low nibble first."""
    pairs = np.stack((packed & 15, packed >> 4), axis=-1)
    return E2M1_VALUES[pairs.reshape(*packed.shape[:-1], -1)]


def encode_e4m3(values: Floats) -> Bytes:
    """E4M3 codes of representable values: float32 [...] -> uint8 [...].

    Raises ValueError when a value is not exactly an E4M3 number: nothing is rounded here.
    """
    return _encode(values, E4M3_VALUES[:0x7F], sign=0x80, name="E4M3")


def encode_e8m0(values: Floats) -> Bytes:
    """E8M0 codes of powers of two, 2**-127 to 2**127: float32 [...] -> uint8 [...].

    Raises ValueError for any other value.
    """
    return _encode(values, E8M0_VALUES[:255], sign=0, name="E8M0")


def encode_e2m1(values: Floats) -> Bytes:
    """Packed E2M1 codes of representable values: float32 [..., 2 n] -> uint8 [..., n].

    Raises ValueError when a value is not exactly an E2M1 number, or the last axis is odd.
    """
    if values.shape[-1] % 2:
        raise ValueError(f"E2M1 packs pairs; the last axis is {values.shape[-1]}")
    codes = _encode(values, E2M1_VALUES[:8], sign=8, name="E2M1")
    return np.asarray(codes[..., 0::2] | codes[..., 1::2] << 4, np.uint8)


def _encode(values: Floats, magnitudes: Floats, *, sign: int, name: str) -> Bytes:
    """Index of each magnitude in an ascending table, plus the sign bit (0: negatives refused)."""
    size = np.abs(values) if sign else values
    codes = np.searchsorted(magnitudes, size).clip(max=len(magnitudes) - 1)
    wrong = magnitudes[codes] != size
    if wrong.any():
        raise ValueError(f"{np.asarray(values)[wrong][0]!r} is not an {name} number")
    signs = np.signbit(values) * sign
    return np.asarray(codes | signs, np.uint8)


def decode_rows(weights: Bytes, scales: Bytes) -> Floats:
    """Values of Engram rows: E4M3 [n, 256] and E8M0 [n, 8] -> float32 [n, 256].

    One scale serves 32 consecutive values. A row of zero bytes (not owned here) decodes to zeros.
    """
    values = decode_e4m3(weights).reshape(*scales.shape, ROW_BLOCK)
    return (values * decode_e8m0(scales)[..., None]).reshape(weights.shape)


def fake_quant_fp8(values: Tensor) -> Tensor:
    """What a window key-value entry reads back: E4M3 over 32 channels, power-of-two scale.

    Tensor [..., channels], channels a multiple of 32; same shape and dtype. The largest magnitude
    counts as at least 1e-4 (the publisher's inference code).
    """
    import torch  # noqa: PLC0415 - the byte side of this module must not pay for it

    groups = _groups(values, 32)
    scale = _power_of_two_at_least(
        groups.abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1 / E4M3_MAX)
    )
    codes = (groups / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.to(values.dtype) * scale).view_as(values)


def fake_quant_fp4_e4m3(values: Tensor) -> Tensor:
    """What a compressed key-value entry reads back: E2M1 over 16 channels, E4M3 scale.

    Tensor [..., channels], channels a multiple of 16; same shape and dtype. The scale is at least
    the least E4M3 number, 2**-9, so that a group of zeros stays zeros.
    """
    import torch  # noqa: PLC0415

    groups = _groups(values, 16)
    wanted = groups.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0**-9) / E2M1_MAX
    scale = wanted.clamp_max(E4M3_MAX).to(torch.float8_e4m3fn).to(values.dtype)
    return (_round_e2m1(groups / scale) * scale).view_as(values)


def fake_quant_fp4_e8m0(values: Tensor) -> Tensor:
    """What an index query or key reads back: E2M1 over 32 channels, power-of-two scale.

    Tensor [..., channels], channels a multiple of 32; same shape and dtype.
    """
    groups = _groups(values, 32)
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0**-126)
    scale = _power_of_two_at_least(largest * (1 / E2M1_MAX))
    return (_round_e2m1(groups / scale) * scale).view_as(values)


def _groups(values: Tensor, size: int) -> Tensor:
    """[..., channels] as [..., channels / size, size]."""
    return values.reshape(*values.shape[:-1], -1, size)


def _power_of_two_at_least(values: Tensor) -> Tensor:
    """The least power of two not below each positive normal value, without a logarithm's rounding.

    On the bits: adding a mantissa of ones carries into the exponent unless the mantissa is zero.
    """
    bits, exponent, mantissa = _layout(values)
    return values.view(bits).add(mantissa).bitwise_and_(exponent).view(values.dtype)


def _layout(values: Tensor) -> tuple[dtype, int, int]:
    """The integer type over a float tensor's bits, and the masks of its exponent and mantissa."""
    import torch  # noqa: PLC0415

    if values.dtype == torch.float64:
        return torch.int64, 0x7FF << 52, (1 << 52) - 1
    return torch.int32, 0xFF << 23, (1 << 23) - 1


def _round_e2m1(values: Tensor) -> Tensor:
    """Nearest E2M1 number, ties to the even code, beyond 6 to 6.

    The grid's step is half the power of two at or below a value, and 0.5 below 1; in units of the
    step, ties to even is the rounding of torch.round.
    """
    size = values.abs().clamp_max_(E2M1_MAX)
    bits, exponent, _ = _layout(size)
    step = size.view(bits).bitwise_and(exponent).view(size.dtype).clamp_min_(1.0).mul_(0.5)
    return size.div_(step).round_().mul_(step).copysign_(values)
