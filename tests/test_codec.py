"""Number formats: every code against torch's own types and against arithmetic written apart."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.local.model import codec

ALL = np.arange(256, dtype=np.uint8)
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def e4m3_by_the_book(code: int) -> Fraction:
    sign = -1 if code >= 128 else 1
    exponent, mantissa = (code % 128) // 8, code % 8
    if exponent == 0:
        return sign * Fraction(mantissa, 8) * Fraction(1, 2**6)
    return sign * (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)


def test_every_e4m3_code() -> None:
    values = codec.decode_e4m3(ALL)
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(values, theirs)
    assert np.signbit(values[0x80])
    assert np.isnan(values[[0x7F, 0xFF]]).all()
    for code in set(range(256)) - {0x7F, 0xFF}:
        assert Fraction(float(values[code])) == e4m3_by_the_book(code)
    assert values[0x7E] == 448


def test_every_e8m0_code() -> None:
    values = codec.decode_e8m0(ALL)
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(values, theirs)
    assert [Fraction(float(v)) for v in values[:255]] == [
        Fraction(2) ** (c - 127) for c in range(255)
    ]
    assert np.isnan(values[255])


def test_every_pair_of_e2m1_codes() -> None:
    values = codec.decode_e2m1(ALL[:, None])
    for code in range(256):
        low, high = code & 15, code >> 4
        for value, nibble in zip(values[code], (low, high), strict=True):
            assert abs(value) == E2M1[nibble % 8]
            assert np.signbit(value) == (nibble >= 8)


def test_encoding_is_the_inverse() -> None:
    finite = ALL[(ALL & 0x7F) != 0x7F]
    np.testing.assert_array_equal(codec.encode_e4m3(codec.decode_e4m3(finite)), finite)
    np.testing.assert_array_equal(codec.encode_e8m0(codec.decode_e8m0(ALL[:255])), ALL[:255])
    packed = ALL.reshape(16, 16)
    np.testing.assert_array_equal(codec.encode_e2m1(codec.decode_e2m1(packed)), packed)


@pytest.mark.parametrize(
    ("encode", "values"),
    [
        (codec.encode_e4m3, [17.0]),
        (codec.encode_e4m3, [480.0]),
        (codec.encode_e4m3, [float("nan")]),
        (codec.encode_e8m0, [3.0]),
        (codec.encode_e8m0, [-2.0]),
        (codec.encode_e8m0, [0.0]),
        (codec.encode_e2m1, [5.0, 1.0]),
        (codec.encode_e2m1, [1.0]),
    ],
)
def test_nothing_is_rounded_when_encoding(encode: Any, values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"is not an|packs pairs"):
        encode(np.array(values, np.float32))


def test_a_row_is_decoded_by_its_eight_scales() -> None:
    weights = np.full((2, 256), 0x38, np.uint8)  # 1.0
    weights[1] = 0xBC  # -1.5
    scales = np.stack([np.arange(116, 124), np.full(8, 127)]).astype(np.uint8)
    rows = codec.decode_rows(weights, scales)
    np.testing.assert_array_equal(rows[0], np.repeat(2.0 ** np.arange(-11.0, -3.0), 32))
    np.testing.assert_array_equal(rows[1], np.full(256, -1.5))
    zero = codec.decode_rows(np.zeros((1, 256), np.uint8), np.zeros((1, 8), np.uint8))
    assert not zero.any()


def nearest(values: np.ndarray, grid: list[float]) -> Any:
    """Nearest magnitudes of an ascending grid, in float64; a tie goes to the even place."""
    distance = np.abs(np.array(grid) - np.abs(values)[:, None])
    best = distance == distance.min(1, keepdims=True)
    even = np.arange(len(grid)) % 2 == 0
    return np.array(grid)[np.where((best & even).any(1), (best & even).argmax(1), best.argmax(1))]


def test_e2m1_rounds_to_nearest_even() -> None:
    for n in range(193):
        value = n / 32  # 0 to 6 in sixteenths of the finest step: every tie is met
        group = torch.tensor([[value, -value, 6.0] + [0.0] * 13]) * 2**-3
        got = codec.fake_quant_fp4_e4m3(group)[0, :2] * 2**3
        wanted = float(nearest(np.array([value]), E2M1)[0])
        assert got.tolist() == [wanted, -wanted]


FLOATS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=32, max_size=32)


def scale_of(values: np.ndarray, *, least: float, limit: float) -> float:
    """The least power of two, times which `limit` reaches the largest value."""
    largest, scale = max(float(np.abs(values).max()), least), 2.0**-140
    while scale * limit < largest:
        scale *= 2
    return scale


@settings(max_examples=60, deadline=None)
@given(FLOATS)
def test_fp8_entries_are_the_nearest_on_their_grid(listed: list[float]) -> None:
    values = np.array(listed)
    scale = scale_of(values, least=1e-4, limit=448)
    got = codec.fake_quant_fp8(torch.tensor(listed)).numpy()
    grid = [float(v) for v in codec.E4M3_VALUES[:0x7F]]
    np.testing.assert_array_equal(np.abs(got), nearest(values / scale, grid) * scale)


@settings(max_examples=60, deadline=None)
@given(FLOATS)
def test_index_entries_are_the_nearest_on_their_grid(listed: list[float]) -> None:
    values = np.array(listed)
    scale = scale_of(values, least=6 * 2.0**-126, limit=6)
    got = codec.fake_quant_fp4_e8m0(torch.tensor(listed)).numpy()
    np.testing.assert_array_equal(np.abs(got), nearest(values / scale, E2M1) * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "quant", [codec.fake_quant_fp8, codec.fake_quant_fp4_e4m3, codec.fake_quant_fp4_e8m0]
)
def test_entries_keep_shape_dtype_zeros_and_themselves(quant: Any, dtype: torch.dtype) -> None:
    values = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(1), dtype=dtype)
    values[0] = 0
    values[1, 0] *= 1e6
    once = quant(values)
    assert once.shape == values.shape
    assert once.dtype == dtype
    assert not once[0].any()
    assert (once[2] - values[2]).abs().max() < 1
    if quant is not codec.fake_quant_fp4_e4m3:  # its scale is rounded, so the largest may move
        assert torch.equal(quant(once), once)


def test_the_byte_side_imports_no_torch() -> None:
    modules = "dsv41.local.fixture.checkpoint, dsv41.adapters.shard"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
