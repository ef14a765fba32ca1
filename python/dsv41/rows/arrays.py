"""Memory of a lookup's arrays for C, checked and never converted."""

from __future__ import annotations

from ctypes import c_int64, c_uint8
from typing import Any

WEIGHT_BYTES, SCALE_BYTES = 256, 8


def lookup_memory(ids: Any, weights: Any, scales: Any) -> tuple[int, tuple[Any, Any, Any]]:
    """Number of ids, and ctypes arrays over the memory of the three arrays.

    The ids are copied, the outputs are held as they are. Any object with the buffer protocol will
    do: ids int64 [n], weights uint8 [n, 256], scales uint8 [n, 8], C-contiguous, the last two
    writable.

    Raises:
        TypeError: no buffer, or items of another type.
        ValueError: another shape, not contiguous, not writable.
    """
    view = _view("ids", ids, formats="lq", writable=False)
    count = view.shape[0] if view.shape else 0
    _expect_shape("ids", view, (count,))
    copied = (c_int64 * count).from_buffer_copy(view.cast("B")) if count else None
    outputs = (("weights", weights, WEIGHT_BYTES), ("scales", scales, SCALE_BYTES))
    held = [_output(name, array, count, width) for name, array, width in outputs]
    return count, (copied, held[0], held[1])


def _view(name: str, array: Any, *, formats: str, writable: bool) -> memoryview:
    try:
        view = memoryview(array)
    except TypeError as error:
        raise TypeError(f"{name}: expected an array with the buffer protocol") from error
    if view.format not in set(formats):
        raise TypeError(f"{name}: expected items of format {formats}, found {view.format}")
    if not view.c_contiguous or (writable and view.readonly):
        kind = "a writable, " if writable else "a "
        raise ValueError(f"{name}: expected {kind}C-contiguous array")
    return view


def _expect_shape(name: str, view: memoryview, shape: tuple[int, ...]) -> None:
    if view.shape != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}, found {list(view.shape or ())}")


def _output(name: str, array: Any, count: int, width: int) -> Any:
    view = _view(name, array, formats="B", writable=True)
    _expect_shape(name, view, (count, width))
    return (c_uint8 * (count * width)).from_buffer(view.cast("B")) if count else None
