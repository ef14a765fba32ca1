"""A shared object that holds nothing but its name, written without a compiler.

Linkers ask for it where a program is linked with a library that only the machine it will run on
has: `-lcuda` with libcuda.so.1 of the driver. It defines no symbol, so it is of use for linking
alone, and only with `-shared`. Format: System V ABI, generic part, chapters 4 and 5; the machine's
number by its own supplement.
"""

from __future__ import annotations

import struct

MACHINES = {"aarch64": 183, "x86_64": 62}  # e_machine
PAGE = 0x10000  # the largest page of arm64, which a segment must be aligned to
_HEADER, _PROGRAM, _SECTION, _SYMBOL = 64, 56, 64, 24  # sizes of 64-bit records
_HASH = struct.pack("<4I", 1, 1, 0, 0)  # one bucket, one chain, for the symbol that is always there
_NAMES = b"\0.hash\0.dynsym\0.dynstr\0.dynamic\0.shstrtab\0"


def empty_library(soname: str, *, machine: str) -> bytes:
    """The bytes of it for a machine of `MACHINES`, little-endian, 64-bit."""
    strings = b"\0" + soname.encode() + b"\0"
    at_hash = _HEADER + 3 * _PROGRAM
    at_symbols = at_hash + len(_HASH)
    at_strings = at_symbols + _SYMBOL
    at_dynamic = _up(at_strings + len(strings))
    dynamic = _tags(at_hash, at_symbols, at_strings, size=len(strings))
    at_names = at_dynamic + len(dynamic)
    at_sections = _up(at_names + len(_NAMES))
    sections = b"".join(
        (
            bytes(_SECTION),
            _section(".hash", 5, at_hash, len(_HASH), links=(2, 0), entry=4),
            _section(".dynsym", 11, at_symbols, _SYMBOL, links=(3, 1), entry=_SYMBOL),
            _section(".dynstr", 3, at_strings, len(strings)),
            _section(".dynamic", 6, at_dynamic, len(dynamic), links=(3, 0), entry=16),
            _section(".shstrtab", 3, at_names, len(_NAMES), loaded=False),
        )
    )
    parts = {
        0: _header(MACHINES[machine], at_sections),
        # all that the loader reads; the dynamic section in it; no executable stack
        _HEADER: _program(1, 0, at_names, align=PAGE)
        + _program(2, at_dynamic, len(dynamic), align=8)
        + _program(0x6474E551, 0, 0, align=16),
        at_hash: _HASH,
        at_strings: strings,
        at_dynamic: dynamic,
        at_names: _NAMES,
        at_sections: sections,
    }
    whole = bytearray(at_sections + len(sections))
    for at, data in parts.items():
        whole[at : at + len(data)] = data
    return bytes(whole)


def machine_of(start: bytes) -> int | None:
    """The machine's number of a 64-bit little-endian ELF file, by its first 20 bytes."""
    if start[:6] != b"\x7fELF\x02\x01":
        return None
    number: int = struct.unpack_from("<H", start, 18)[0]
    return number


def _up(at: int) -> int:
    return -(-at // 8) * 8


def _tags(hashes: int, symbols: int, strings: int, *, size: int) -> bytes:
    """The dynamic section: SONAME, HASH, STRTAB, SYMTAB, STRSZ, SYMENT, NULL."""
    tags = ((14, 1), (4, hashes), (5, strings), (6, symbols), (10, size), (11, _SYMBOL), (0, 0))
    return b"".join(struct.pack("<2Q", *pair) for pair in tags)


def _header(machine: int, sections: int) -> bytes:
    """A shared object (ET_DYN) with three program headers and six sections, the last of names."""
    return struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 0),
        *(3, machine, 1, 0, _HEADER, sections, 0),
        *(_HEADER, _PROGRAM, 3, _SECTION, 6, 5),
    )


def _section(
    name: str,
    kind: int,
    at: int,
    size: int,
    *,
    links: tuple[int, int] = (0, 0),
    entry: int = 0,
    loaded: bool = True,
) -> bytes:
    """A section header; `links` are sh_link and sh_info, a table has entries of `entry` bytes."""
    flags, address = (2, at) if loaded else (0, 0)  # SHF_ALLOC
    where = _NAMES.index(b"\0" + name.encode() + b"\0") + 1
    align = 8 if entry else 1
    return struct.pack("<IIQQQQIIQQ", where, kind, flags, address, at, size, *links, align, entry)


def _program(kind: int, at: int, size: int, *, align: int) -> bytes:
    """A program header; what is loaded is read alone, the stack is written too."""
    flags = 4 if size else 6
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)
