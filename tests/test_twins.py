"""FP8 twins: exact for what was FP8 before, bounded for everything else, products in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.adapters import twins


def dequantized(seed: int, *, groups: int = 2, low: int = -20, high: int = 3) -> torch.Tensor:
    """A weight as an engine has it after loading: every e4m3 value times 2^low..2^high, in bf16."""
    made = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (groups, 64, 96), generator=made, dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0  # no NaN
    exponents = torch.randint(low, high + 1, (groups, 2, 3), generator=made)
    scales = torch.exp2(exponents.float()).repeat_interleave(32, 1).repeat_interleave(32, 2)
    return (codes.view(torch.float8_e4m3fn).float() * scales).to(torch.bfloat16)


@given(st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_what_was_fp8_comes_back_to_the_last_bit(seed: int) -> None:
    weight = dequantized(seed)
    found = twins.exact_twin(weight)
    assert found is not None
    assert torch.equal(found.whole().view(torch.int16), weight.view(torch.int16))
    assert found.bytes == weight.numel() + weight.numel() // 1024


def test_blocks_of_few_and_small_values_and_of_none() -> None:
    # the largest value decides the exponent, which may be smaller than the one it was written with
    for value in (0.0, -0.0, 2.0**-9, 448.0, 3 * 2.0**-100, 2.0**-126):
        weight = torch.zeros(1, 32, 32, dtype=torch.bfloat16)
        weight[0, 3, 5] = value
        assert twins.exact_twin(weight) is not None, value


def test_what_was_never_fp8_has_no_exact_twin() -> None:
    weight = dequantized(1)
    weight[1, 40, 50] = 1.0 + 2.0**-7  # eight bits of mantissa
    assert twins.exact_twin(weight) is None


@given(st.integers(0, 2**31), st.floats(-30, 30))
@settings(max_examples=30, deadline=None)
def test_the_bound_of_any_weight(seed: int, size: float) -> None:
    made = torch.Generator().manual_seed(seed)
    weight = (torch.randn(1, 64, 64, generator=made) * 2.0**size).to(torch.bfloat16)
    found = twins.twin(weight)
    scales = torch.exp2(found.exponents.float() - 127)
    steps = scales.repeat_interleave(32, 1).repeat_interleave(32, 2) * 2.0**-10
    off = (found.whole().float() - weight.float()).abs()
    assert (off <= torch.maximum(weight.float().abs() / 16, steps)).all()


def test_products() -> None:
    weight = dequantized(7, low=-8, high=-4)
    found = twins.exact_twin(weight)
    assert found is not None
    x = torch.randn(5, 2, 96).to(torch.bfloat16)
    exact = torch.einsum("tgd,grd->tgr", x.double(), weight.double())
    # one rounding to bf16, after sums in float32
    assert (twins.project(x, found).double() - exact).abs().max() <= exact.abs().max() * 2.0**-8


def test_a_weight_that_blocks_do_not_cover_is_refused() -> None:
    with pytest.raises(ValueError, match="32x32"):
        twins.twin(torch.zeros(1, 40, 64))
