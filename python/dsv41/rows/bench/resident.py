"""What lies in memory: pages of a file in the page cache, and this process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap

_PART = 1 << 30  # bytes asked about at a time


def resident_pages(seen: mmap.mmap) -> int:
    """Pages of a mapped file in the page cache, by mincore(2)."""
    import numpy as np  # noqa: PLC0415 - the command itself needs none

    libc = ctypes.CDLL(None, use_errno=True)
    base, size, total = np.frombuffer(seen, np.uint8).ctypes.data, len(seen), 0
    for at in range(0, size, _PART):
        part = min(_PART, size - at)
        flags = np.zeros(-(-part // 4096), np.uint8)
        address, out = ctypes.c_void_p(base + at), ctypes.c_void_p(flags.ctypes.data)
        if libc.mincore(address, ctypes.c_size_t(part), out):
            raise OSError(ctypes.get_errno(), "mincore")
        total += int((flags & 1).sum())
    return total


def resident_bytes() -> int:
    """Memory of this process (RSS)."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
