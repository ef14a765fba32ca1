"""The structures of `csrc/include/dsv41_rows.h`, field by field, for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from typing import ClassVar

ABI = 1
OK, TIMEOUT, INTERRUPTED = 0, 14, 15

# int progress(void* user, uint64_t done_bytes, uint64_t total_bytes)
Progress = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_uint64, c_uint64)


class Options(ctypes.Structure):
    """What to open and how."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("layer", c_uint32),
        ("rank", c_uint32),
        ("tp", c_uint32),
        ("partition", c_char_p),
        ("source_digest", c_char_p),
        ("revision", c_char_p),
        ("engine", c_char_p),
        ("threads", c_uint32),
        ("depth", c_uint32),
        ("cache_bytes", c_uint64),
        ("order_bounds", POINTER(c_uint64)),
        ("order_bound_count", c_uint32),
        ("production", c_uint32),
    ]


class Work(ctypes.Structure):
    """One lookup."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("id_bytes", c_uint32),
        ("store", c_void_p),
        ("ids", c_void_p),
        ("count", c_uint64),
        ("weights", POINTER(c_uint8)),
        ("scales", POINTER(c_uint8)),
        ("flag", POINTER(c_uint32)),
        ("status", c_int32),
        ("reserved", c_uint32),
        ("generation", c_uint64),
        ("ticket", c_void_p),
    ]


class PackOptions(ctypes.Structure):
    """What to pack."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("layer", c_uint32),
        ("rank", c_uint32),
        ("tp", c_uint32),
        ("source", c_char_p),
        ("target", c_char_p),
        ("partition", c_char_p),
        ("revision", c_char_p),
        ("records_path", c_char_p),
        ("records_data_begin", c_uint64),
        ("records_first_row", c_uint64),
        ("records_end_row", c_uint64),
        ("total_rows", c_uint64),
        ("ranges", POINTER(c_uint64)),
        ("range_count", c_uint32),
        ("made", c_uint32),
        ("chunk_pages", c_uint64),
        ("journal_chunks", c_uint64),
        ("progress", Progress),
        ("user", c_void_p),
    ]
