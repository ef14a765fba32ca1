"""The redirection to b12x in the released engine's own linear.

FlashInfer is not on this machine: the two functions of it that the linear calls are replaced by
ones that compute in float32 and note the backend. They stand for the GPU's kernels alone.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hooked import hooked
from sglang.srt.layers.quantization import fp8_utils

from dsv41.adapters.sglang import mxfp8_b12x
from dsv41.errors import CheckFailed

REFUSED = (64, 256)  # N, K


class Kernel:
    """FlashInfer's `mm_mxfp8`: one shape raises with b12x, as the real one's own checks do."""

    def __init__(self) -> None:
        self.backends: list[str] = []
        self.error: Exception = ValueError("no tile for this problem")
        self.refuses = REFUSED

    def __call__(self, a: torch.Tensor, b: torch.Tensor, *_: Any, **given: Any) -> torch.Tensor:
        self.backends.append(given["backend"])
        if given["backend"] != "cutlass" and (b.shape[1], b.shape[0]) == self.refuses:
            raise self.error
        return (a.float() @ b.float()).to(given["out_dtype"])


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    monkeypatch.setattr(fp8_utils, "flashinfer_mm_mxfp8", found, raising=False)
    quantize = lambda x, **_: (x.to(torch.float8_e4m3fn), torch.zeros(1))  # noqa: E731
    monkeypatch.setattr(fp8_utils, "flashinfer_mxfp8_quantize", quantize, raising=False)
    for memory in ("_rejected", "_late", "_tried"):
        monkeypatch.setattr(mxfp8_b12x, memory, set())
    return found


@pytest.fixture
def on(kernel: Kernel) -> Iterator[Kernel]:
    mxfp8_b12x.asked.cache_clear()
    with hooked(mxfp8_b12x.ADAPTER, DSV41_MXFP8_BACKEND="b12x"):
        yield kernel
    mxfp8_b12x.asked.cache_clear()


def call(rows: int, n: int, k: int, backend: str = "cutlass") -> torch.Tensor:
    """As the engine's `dispatch_block_fp8_mxfp8_linear` makes the call."""
    linear: Callable[..., Any] = functools.partial(
        fp8_utils.flashinfer_mxfp8_blockscaled_linear, backend=backend
    )
    made = torch.Generator().manual_seed(rows)
    x = torch.randint(-4, 5, (rows, k), generator=made).bfloat16()
    weight = torch.randint(-4, 5, (n, k), generator=made).to(torch.float8_e4m3fn)
    out: torch.Tensor = linear(input=x, weight=weight, weight_scale=torch.zeros(1))
    assert torch.equal(out, (x.float() @ weight.float().T).bfloat16())
    return out


def test_the_engine_alone_asks_for_cutlass(kernel: Kernel) -> None:
    call(3, 64, 128)
    assert kernel.backends == ["cutlass"]


def test_a_fitting_shape_goes_to_b12x(on: Kernel) -> None:
    call(3, 64, 128)
    call(1, 32, 1280)
    assert on.backends == ["b12x", "b12x"]


def test_other_widths_and_other_backends_stay(on: Kernel) -> None:
    call(3, 64, 96)  # 96 is no multiple of 128
    call(3, 64, 128, backend="cute-dsl")
    assert on.backends == ["cutlass", "cute-dsl"]


def test_a_rejected_shape_is_remembered_and_said_once(
    on: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    for rows in (1, 2, 1, 4096):
        call(rows, *REFUSED)
    call(1, 64, 128)
    assert on.backends == ["b12x", "cutlass", "cutlass", "cutlass", "cutlass", "b12x"]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("MXFP8 backend 'b12x' rejected N=64 K=256")
    assert "no tile for this problem" in warnings[0]


def test_what_first_comes_inside_a_capture_is_not_tried(
    on: Kernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call(6, 64, 128)
    monkeypatch.setattr(mxfp8_b12x, "_capturing", lambda: True)
    call(6, 64, 128)  # tried before the capture
    call(12, 64, 128)
    call(24, 64, 128)
    call(6, *REFUSED)  # b12x would raise, and spoil the graph
    assert on.backends == ["b12x", "b12x", "cutlass", "cutlass", "cutlass"]
    assert caplog.text.count("was never tried with") == 2  # once a shape


def test_a_full_device_is_no_rejection(on: Kernel) -> None:
    on.error = torch.OutOfMemoryError("full")
    with pytest.raises(torch.OutOfMemoryError):
        call(6, *REFUSED)
    on.error = ValueError("no tile")
    call(6, *REFUSED)
    assert on.backends == ["b12x", "b12x", "cutlass"]


def test_a_shape_that_ran_does_not_change_its_kernel(on: Kernel) -> None:
    """Ranks and graphs must agree: an error of a kernel that has served is an error."""
    call(6, 64, 128)
    on.refuses = (64, 128)
    with pytest.raises(ValueError, match="no tile"):
        call(6, 64, 128)


def test_an_unknown_backend_is_refused_at_start() -> None:
    with (
        pytest.raises(CheckFailed, match="D152"),
        hooked(mxfp8_b12x.ADAPTER, DSV41_MXFP8_BACKEND="b12"),
    ):
        pass
