"""Scales that nobody wrote, and the released engine's encoder: refused before, encoded after."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hooked import hooked
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
from sglang.srt.layers.quantization.fp8_utils import block_fp8_scale_to_mxfp8_e8m0

from dsv41.adapters.sglang import scale_repair
from dsv41.errors import CheckFailed

ROWS, COLUMNS = 96, 64  # three blocks by two; the last row of blocks is padding
BAD = {
    "zero": 0.0,
    "denormal": 1e-42,
    "no power of two": 0.75,
    "negative": -1.0,
    "what the engine fills in": torch.finfo(torch.float32).min,
    "nan": float("nan"),
    "infinite": float("inf"),
}


class Method(Fp8LinearMethod):  # type: ignore[misc]
    """The engine's, without a GPU: it hands the encoded scales over instead of swizzling them."""

    def __init__(self) -> None:
        self.weight_block_size = [32, 32]
        self.encoded: list[torch.Tensor] = []

    def _process_mxfp8_linear_weight_scale(
        self, layer: Any, scale_u8: torch.Tensor | None = None
    ) -> None:
        assert layer is not None
        assert scale_u8 is not None
        self.encoded.append(scale_u8)


def linear(bad: float, *, weight: float = -0.0) -> Any:
    """A layer whose blocks of rows 64 to 95 are padding, with a scale that nobody wrote."""
    values = torch.randint(1, 8, (ROWS, COLUMNS), generator=torch.Generator().manual_seed(4))
    values = values.float()
    values[64:] = weight
    scales = torch.full((3, 2), 2.0**-5)
    scales[2] = bad
    return SimpleNamespace(
        weight=torch.nn.Parameter(values.to(torch.float8_e4m3fn), requires_grad=False),
        weight_scale_inv=torch.nn.Parameter(scales, requires_grad=False),
    )


def prepared(layer: Any) -> Method:
    method = Method()
    method._prepare_block_fp8_as_mxfp8(layer)
    return method


@pytest.fixture
def repaired() -> Iterator[None]:
    with hooked(scale_repair.ADAPTER, DSV41_SCALE_REPAIR="1"):
        yield


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_alone_the_engine_leaves_the_layer_on_triton(bad: float) -> None:
    layer = linear(bad)
    if bad == float("inf"):  # all ones in its exponent: encoded, and no number afterwards
        assert prepared(layer).encoded[0].max() == 255
        return
    with pytest.raises(ValueError, match="cannot encode as e8m0"):
        block_fp8_scale_to_mxfp8_e8m0(layer.weight_scale_inv, (ROWS, COLUMNS), [32, 32])
    assert prepared(layer).encoded == []
    assert layer.block_fp8_mxfp8_ready is False


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_repaired_layer_is_encoded(bad: float) -> None:
    layer = linear(bad)
    parameter, place = layer.weight_scale_inv, layer.weight_scale_inv.data_ptr()
    (encoded,) = prepared(layer).encoded
    assert layer.block_fp8_mxfp8_ready is True
    assert encoded.shape == (ROWS, COLUMNS // 32)
    assert (encoded[:64] == 122).all()  # 2**-5, as loaded
    assert (encoded[64:] == 127).all()  # 1.0
    assert layer.weight_scale_inv is parameter
    assert parameter.data_ptr() == place
    assert (parameter[2] == 1).all()


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_scale_on_a_weight_ends_the_load(bad: float) -> None:
    layer = linear(bad)
    bytes_of = layer.weight.data.view(torch.uint8)
    bytes_of[95, 63] = 1  # the smallest value there is, at the very end of the padding
    with pytest.raises(CheckFailed, match=r"block \(2, 1\)") as error:
        prepared(layer)
    assert error.value.code == "D045"


@pytest.mark.usefixtures("repaired")
def test_good_scales_are_not_touched() -> None:
    layer = linear(4.0, weight=3.0)
    before = layer.weight_scale_inv.clone()
    assert torch.equal(prepared(layer).encoded[0][64:], torch.full((32, 2), 129).to(torch.uint8))
    assert torch.equal(layer.weight_scale_inv, before)


@pytest.mark.usefixtures("repaired")
def test_a_layer_that_the_engine_does_not_encode_is_left_alone() -> None:
    layer = linear(0.0)
    layer.keep_plain_weight_layout = True
    assert prepared(layer).encoded == []
    assert not layer.weight_scale_inv[2].any()
