"""How much of some files the system keeps in memory."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from pathlib import Path


def cached(files: list[Path]) -> int:
    """Bytes of these files in the page cache (mincore: one byte a page)."""
    libc, pages = ctypes.CDLL(None), 0
    for file in files:
        size = file.stat().st_size
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), size) as mapped:
            told = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), told) == 0
            pages += sum(page & 1 for page in told)
            gc.collect()  # what was made from the buffer would keep it from closing
    return pages * mmap.PAGESIZE


def forget(files: list[Path]) -> None:
    """Take files that are on disk out of the page cache."""
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
