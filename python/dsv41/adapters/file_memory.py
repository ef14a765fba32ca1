"""A piece of a file as memory, of which some pages are read early and the rest when looked at.

The file is mapped, privately. Over the pages that are wanted lies memory of the process's own, into
which they are read. So every byte is the file's wherever one looks; what was read early decides
only how fast. `/proc/self/pagemap` tells afterwards which pages came by a page fault (bits 61 and
63: Documentation/admin-guide/mm/pagemap.rst of Linux).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv41.errors import EngineFailed

PAGE = mmap.PAGESIZE
# MAP_FIXED and MAP_NORESERVE of Linux on x86-64 and arm64, which Python 3.11's mmap does not name.
# Without the second a mapped table of 98 GB is refused as more than there is memory.
FIXED, UNRESERVED = 0x10, 0x4000
ENTRIES = 1 << 16  # of the page map, looked at in one go
FAILED = ctypes.c_void_p(-1).value
_FILE_PAGE = (1 << 63) | (1 << 61)  # of a pagemap entry: present, and of a file


class Memory:
    """`size` bytes of a file from `start` on; unmapped when nobody holds `bytes` any more.

    on_release is then called with the bytes of memory that it gives back and the bytes that were
    read by page faults (None where the kernel does not tell).
    """

    def __init__(
        self, descriptor: int, *, start: int, size: int, on_release: Callable[..., object]
    ) -> None:
        self.offset = start - start % PAGE  # in the file, of the first page
        self.delta = start % PAGE
        self.length = self.delta + size
        access = mmap.PROT_READ | mmap.PROT_WRITE
        kind = mmap.MAP_PRIVATE | UNRESERVED
        self.base = _map(None, self.length, access, kind, descriptor, self.offset)
        # a page fault brings its page alone: nothing is read ahead of a look
        _libc().madvise(self.base, self.length, mmap.MADV_RANDOM)
        self.bytes: Any = (ctypes.c_char * size).from_address(self.base + self.delta)
        self._taken = [0]
        release = weakref.finalize(
            self.bytes, _release, self.base, self.length, self._taken, on_release
        )
        release.atexit = False  # the process's end gives everything back

    def room(self, first: int, last: int) -> tuple[int, int, int]:
        """Memory for the bytes `first` to `last`: its address, length and offset in the file.

        Whole pages, so that a file can be read past the page cache.
        """
        low = (self.delta + first) // PAGE * PAGE
        high = -(-(self.delta + last) // PAGE) * PAGE
        access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        _map(self.base + low, high - low, access, kind | FIXED, -1, 0)
        self._taken[0] += high - low
        return self.base + low, high - low, self.offset + low


def read_into(
    descriptor: int, path: Path, *, address: int, length: int, offset: int, least: int
) -> int:
    """Read `length` bytes of a file to an address, at least `least` of them; the bytes read.

    Raises EngineFailed D486 when the file cannot be read or ends before.
    """
    target = memoryview((ctypes.c_char * length).from_address(address)).cast("B")
    got = 0
    while got < least:
        try:
            count = os.preadv(descriptor, [target[got:]], offset + got)
        except OSError as error:
            raise unreadable(path, f"at byte {offset + got}: {error.strerror}") from error
        if got + count < least:
            count -= count % PAGE  # goes on at a page, as reading past the page cache must
        if count <= 0:
            raise unreadable(path, f"it ends before byte {offset + least}")
        got += count
    return got


def unreadable(path: Path, says: str) -> EngineFailed:
    """D486 for a file."""
    fix = "look at the drive or the share (dmesg), or set DSV41_FAST_LOAD=0"
    return EngineFailed("D486", f"{path} cannot be read: {says}.", fix=fix)


def _release(base: int, length: int, taken: list[int], on_release: Callable[..., object]) -> None:
    faulted = _faulted(base, length) if taken[0] < length else 0
    _libc().munmap(base, length)
    on_release(taken[0], faulted)


def _faulted(base: int, length: int) -> int | None:
    """Bytes of these pages that came from the file by a page fault."""
    descriptor = _pagemap()
    if descriptor is None:
        return None
    first, last = base // PAGE, -(-(base + length) // PAGE)
    pages = 0
    for start in range(first, last, ENTRIES):
        entries = os.pread(descriptor, min(ENTRIES, last - start) * 8, start * 8)
        if entries.count(0) < len(entries):
            found = memoryview(entries).cast("Q")
            pages += sum(entry & _FILE_PAGE == _FILE_PAGE for entry in found)
    return pages * PAGE


@functools.cache
def _pagemap() -> int | None:
    try:
        return os.open("/proc/self/pagemap", os.O_RDONLY)
    except OSError:
        return None


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = pointer
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_int64]
    library.munmap.argtypes = [pointer, size]
    library.madvise.argtypes = [pointer, size, number]
    return library


def _map(address: int | None, length: int, *how: int) -> int:
    found = _libc().mmap(address, length, *how)
    if found == FAILED:
        raise MemoryError(f"mmap of {length} bytes: {os.strerror(ctypes.get_errno())}")
    return int(found)
