"""Random values that are the same bytes on every machine.

A tensor's bytes come from the raw stream of numpy's Philox counter-based generator (NEP 19 keeps
raw streams of bit generators stable), keyed by the tensor's name. Each random byte picks one of 256
entries of a table, and every entry is a small integer times a power of two, exact in the tensor's
format: no rounding, no library's notion of a normal distribution, no order of generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsv41.local import codec

if TYPE_CHECKING:
    import numpy.typing as npt

Dtype = Literal["F8_E4M3", "F8_E8M0", "I8", "BF16", "F32"]

ITEM_BYTES: dict[Dtype, int] = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """What values a tensor takes.

    kind: `odd15` odd integers -15..15 in E4M3; `e4m3` any E4M3 code but NaN; `nibbles` any two E2M1
    codes; `powers` E8M0 2**(exponent + {-1, 0, 1}); `codes` E8M0 codes 116..123, those of the
    released Engram tables; `odd255` odd integers -255..255 times 2**exponent; `near_one` 1 + n/128
    with n in -15..15.
    """

    kind: Literal["odd15", "e4m3", "nibbles", "powers", "codes", "odd255", "near_one"]
    exponent: int = 0


def table(grid: Grid, dtype: Dtype) -> npt.NDArray[np.uint8]:
    """List the 256 possible elements as little-endian bytes: uint8 [256, item bytes]."""
    byte = np.arange(256, dtype=np.int64)
    codes: npt.NDArray[Any]
    match grid.kind:
        case "odd15":
            codes = codec.encode_e4m3((2 * (byte % 16) - 15).astype(np.float32))
        case "e4m3":
            codes = np.where(byte & 0x7F == 0x7F, byte - 1, byte)
        case "powers":
            codes = 127 + grid.exponent + byte % 3 - 1
        case "codes":
            codes = 116 + byte % 8
        case "nibbles":
            codes = byte
        case _:
            return _floats(_values(grid, byte), dtype)
    return codes.astype(np.uint8)[:, None]


def _values(grid: Grid, byte: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    if grid.kind == "near_one":
        return 1.0 + (byte % 31 - 15) / 128.0
    if grid.kind == "odd255":
        return (2.0 * byte - 255.0) * 2.0**grid.exponent
    raise ValueError(f"{grid.kind} is no grid of floats")


def _floats(values: npt.NDArray[np.float64], dtype: Dtype) -> npt.NDArray[np.uint8]:
    """Bytes of exactly representable values; an odd integer up to 255 fits the 8 bits of BF16."""
    words = values.astype("<f4").view("<u4")
    if dtype == "F32":
        return words.view(np.uint8).reshape(-1, 4)
    if dtype != "BF16" or (words & 0xFFFF).any():
        raise ValueError(f"values do not fit {dtype} exactly")
    return (words >> 16).astype("<u2").view(np.uint8).reshape(-1, 2)


def stream(name: str, count: int) -> npt.NDArray[np.uint8]:
    """Draw the first `count` random bytes of a name."""
    key = int.from_bytes(sha256(name.encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(-(-count // 8))
    return np.asarray(words).astype("<u8", copy=False).view(np.uint8)[:count]


def draw(name: str, *, count: int, grid: Grid, dtype: Dtype) -> bytes | memoryview:
    """Draw the bytes of a whole tensor of `count` elements."""
    entries = table(grid, dtype)
    if entries.shape[1] == 1:
        return stream(name, count).tobytes().translate(entries.tobytes())
    words = entries.view(f"<u{entries.shape[1]}")[:, 0]
    return words[stream(name, count)].data.cast("B")
