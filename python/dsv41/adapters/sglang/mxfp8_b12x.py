"""Dense MXFP8 layers on FlashInfer's b12x kernels, shape by shape.

What: SGLang's MXFP8 linear asks FlashInfer for backend `cutlass`; this asks for `b12x` instead
where K is a multiple of 128. Both take the same operands. A weight shape (N, K) that b12x rejects
is remembered and served by CUTLASS, with one warning. A number of rows is first tried outside of
graph capture, where an exception would spoil the graph: the engine runs every graph's shape eagerly
before it captures it, and a shape that comes first inside a capture is captured with CUTLASS.

Why: The engine's own flag cannot name this backend. Needs
`--fp8-gemm-backend flashinfer_cutlass`, without which dense layers stay on Triton and this is
never called, and a FlashInfer that has the backend (0.7.2 does: SM120 and SM121, CUDA 13).

Effect: not measured here. MiaAI-Lab's recipes have it on for three and four Sparks; its dense
products are 17 of the 82 ms in their account of a step.

Off: DSV41_MXFP8_BACKEND=off (or 0, cutlass). `cudnn` is the recipe's other choice.

Obsolete when: `--fp8-gemm-backend` can name b12x.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from dsv41 import switches
from dsv41.adapters.adapter import OFF_WORDS, Adapter, Hook
from dsv41.errors import CheckFailed

log = logging.getLogger(__name__)
STOCK = "cutlass"
MULTIPLES = {"b12x": 128, "cudnn": 32}  # what K must be a multiple of; 32 is MXFP8's own block

Shape = tuple[int, int]
_rejected: set[Shape] = set()
_late: set[Shape] = set()
_tried: set[tuple[int, int, int]] = set()  # (M, N, K) that the backend has served in this process


def linear(
    original: Callable[..., Any],
    input: Any,  # noqa: A002 - the engine's name, and it calls by name
    weight: Any,
    *args: object,
    **kwargs: object,
) -> Any:
    """Serve one linear, input [..., K], weight [N, K], with the backend that is asked for."""
    backend, stock = asked(), kwargs.get("backend", STOCK) == STOCK
    shape: Shape = (weight.shape[0], weight.shape[1])
    if not stock or backend == STOCK or shape in _rejected or shape[1] % MULTIPLES[backend]:
        return original(input, weight, *args, **kwargs)
    tried = (input.numel() // shape[1], *shape)
    if tried not in _tried and _capturing():
        _warn_late(backend, tried)
        return original(input, weight, *args, **kwargs)
    try:
        output = original(input, weight, *args, **{**kwargs, "backend": backend})
    except Exception as error:
        if tried in _tried or _is_memory(error):
            raise  # no rejection: it has run this very shape, or the device is full
        _reject(backend, shape, error)
        return original(input, weight, *args, **kwargs)
    _tried.add(tried)
    return output


def backend_of(environ: Mapping[str, str]) -> str:
    """The backend that is asked for, `cutlass` for none; D152 for a word that is no backend."""
    word = switches.read_word(environ, "mxfp8_backend").lower()
    if word in (*OFF_WORDS, STOCK):
        return STOCK
    if word not in MULTIPLES:
        raise CheckFailed(
            "D152",
            f"The MXFP8 backend is {word!r}; expected one of {', '.join(MULTIPLES)} or off.",
            fix="set DSV41_MXFP8_BACKEND=b12x",
        )
    return word


@functools.cache
def asked() -> str:
    """The same of this process, whose environment does not change while it serves."""
    return backend_of(os.environ)


def check(environ: Mapping[str, str]) -> None:
    """The backend is a known one."""
    backend_of(environ)


def _reject(backend: str, shape: Shape, error: Exception) -> None:
    """Remember and say it once; operators and tools look for the words up to K."""
    _rejected.add(shape)
    log.warning(
        "MXFP8 backend %r rejected N=%d K=%d, CUTLASS serves this shape: %s", backend, *shape, error
    )


def _is_memory(error: Exception) -> bool:
    import torch  # noqa: PLC0415 - only where the adapter is on

    return isinstance(error, torch.OutOfMemoryError)


def _capturing() -> bool:
    import torch  # noqa: PLC0415 - as above

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _warn_late(backend: str, tried: tuple[int, int, int]) -> None:
    if tried[1:] not in _late:
        _late.add(tried[1:])
        log.warning(
            "MXFP8 backend %r was never tried with M=%d N=%d K=%d before a graph was captured;"
            " that graph has CUTLASS.",
            backend,
            *tried,
        )


ADAPTER = Adapter(
    name="mxfp8_b12x",
    switch="mxfp8_backend",
    engines=("sglang",),
    trees=("sglang-0.5.23", "sglang-branch", "sglang-base"),
    hooks=(
        Hook(
            target="sglang.srt.layers.quantization.fp8_utils.flashinfer_mxfp8_blockscaled_linear",
            kind="around",
            call=linear,
            takes=("input", "weight", "weight_scale", "backend"),
        ),
    ),
    check=check,
)
