"""The stub of a library that only the machine it will run on has, written without a compiler.

Linkers ask for it where a program is linked with such a library: `-lcuda` with libcuda.so.1 of the
driver. It has the functions' names, because a linker that is told --as-needed, as Debian's g++
tells it, leaves a library out that defines nothing of what is called. Each function answers 34,
CUDA_ERROR_STUB_LIBRARY. Format: System V ABI, generic part, chapters 4 and 5; the machine's number
by its own supplement.

    python stub_library.py WHEEL HEADER SONAME MACHINE OUT

writes the one of the functions that a header of a wheel declares.
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

MACHINES = {"aarch64": 183, "x86_64": 62}  # e_machine
# a function's code: mov w0, #34; ret, and mov eax, 34; ret, filled with nop
_CODE = {"aarch64": "40048052c0035fd6", "x86_64": "b822000000c39090"}
PAGE = 0x10000  # the largest page of arm64, which a segment must be aligned to
_HEADER, _PROGRAM, _SECTION, _SYMBOL = 64, 56, 64, 24  # sizes of 64-bit records
_SECTIONS = (".hash", ".dynsym", ".dynstr", ".text", ".dynamic", ".shstrtab")
_NAMES = b"\0" + b"".join(name.encode() + b"\0" for name in _SECTIONS)
_GLOBAL_FUNCTION = 1 << 4 | 2  # STB_GLOBAL, STT_FUNC

# cuda.h: `CUresult CUDAAPI cuInit(`, and `#define cuMemFree cuMemFree_v2` where a name became
# another; `#define cuMemcpy __CUDA_API_PTDS(cuMemcpy)` is cuMemcpy_ptds in a program whose default
# stream is one per thread
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_DEFINED = re.compile(
    r"(?m)^\s*#\s*define\s+cu[A-Z]\w*[ \t]+(?:__CUDA_API_(PTDS|PTSZ)\()?(cu[A-Z]\w*)"
)


class NoFunctions(Exception):
    """A header that is not there or declares no function."""


def functions_of(wheel: Path, header: str) -> list[str]:
    """The names under which a program may ask the driver for what a header of a wheel declares.

    Raises:
        NoFunctions: D187, the wheel has no such header, or it has another form than cuda.h has.
    """
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(header).decode() if header in archive.namelist() else ""
    names = set(_DECLARED.findall(text))
    for per_thread, name in _DEFINED.findall(text):
        names |= {name, f"{name}_{per_thread.lower()}"} if per_thread else {name}
    if not names:
        raise NoFunctions(
            f"D187 {wheel.name} has no {header} that declares functions; expected CUDAAPI cuX(."
        )
    return sorted(names)


def stub_library(soname: str, functions: Sequence[str], *, machine: str) -> bytes:
    """The bytes of it for a machine of `MACHINES`, little-endian, 64-bit."""
    code = bytes.fromhex(_CODE[machine])
    strings = b"".join(name.encode() + b"\0" for name in ("", soname, *functions))
    hashes = _hash_table(functions)
    at_hash = _HEADER + 3 * _PROGRAM
    at_symbols = _up(at_hash + len(hashes))
    at_strings = at_symbols + _SYMBOL * (1 + len(functions))
    at_code = _up(at_strings + len(strings))
    at_dynamic = at_code + len(code)
    symbols = _symbols(functions, 2 + len(soname), at=at_code, size=len(code))
    dynamic = _tags(at_hash, at_symbols, at_strings, size=len(strings))
    at_names = at_dynamic + len(dynamic)
    at_sections = _up(at_names + len(_NAMES))
    sections = b"".join(
        (
            bytes(_SECTION),
            _section(".hash", 5, at_hash, len(hashes), links=(2, 0), entry=4),
            # 1: the first symbol that is not local
            _section(".dynsym", 11, at_symbols, len(symbols), links=(3, 1), entry=_SYMBOL),
            _section(".dynstr", 3, at_strings, len(strings)),
            _section(".text", 1, at_code, len(code), flags=6, align=8),
            _section(".dynamic", 6, at_dynamic, len(dynamic), links=(3, 0), entry=16),
            _section(".shstrtab", 3, at_names, len(_NAMES), flags=0),
        )
    )
    parts = {
        0: _header(MACHINES[machine], at_sections),
        # all that the loader reads; the dynamic section in it; no executable stack
        _HEADER: _program(1, 0, at_names, flags=5, align=PAGE)
        + _program(2, at_dynamic, len(dynamic), flags=4, align=8)
        + _program(0x6474E551, 0, 0, flags=6, align=16),
        at_hash: hashes,
        at_symbols: symbols,
        at_strings: strings,
        at_code: code,
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


def _hash(name: str) -> int:
    """The hash of a name that chapter 5 defines."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _hash_table(functions: Sequence[str]) -> bytes:
    """Buckets and chains of the symbols, of which the first is the one that is always there."""
    buckets, chains = [0] * max(1, len(functions) // 2), [0] * (1 + len(functions))
    for index, name in enumerate(functions, start=1):
        bucket = _hash(name) % len(buckets)
        chains[index], buckets[bucket] = buckets[bucket], index
    words = (len(buckets), len(chains), *buckets, *chains)
    return struct.pack(f"<{len(words)}I", *words)


def _symbols(functions: Sequence[str], name_at: int, *, at: int, size: int) -> bytes:
    """The symbol table; all functions are the one at `at`, in .text."""
    table = bytes(_SYMBOL)
    text = 1 + _SECTIONS.index(".text")
    for name in functions:
        table += struct.pack("<IBBHQQ", name_at, _GLOBAL_FUNCTION, 0, text, at, size)
        name_at += len(name) + 1
    return table


def _tags(hashes: int, symbols: int, strings: int, *, size: int) -> bytes:
    """The dynamic section: SONAME, HASH, STRTAB, SYMTAB, STRSZ, SYMENT, NULL."""
    tags = ((14, 1), (4, hashes), (5, strings), (6, symbols), (10, size), (11, _SYMBOL), (0, 0))
    return b"".join(struct.pack("<2Q", *pair) for pair in tags)


def _header(machine: int, sections: int) -> bytes:
    """A shared object (ET_DYN) with three program headers and its sections, the last of names."""
    return struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 0),
        *(3, machine, 1, 0, _HEADER, sections, 0),
        *(_HEADER, _PROGRAM, 3, _SECTION, 1 + len(_SECTIONS), len(_SECTIONS)),
    )


def _section(
    name: str,
    kind: int,
    at: int,
    size: int,
    *,
    links: tuple[int, int] = (0, 0),
    entry: int = 0,
    flags: int = 2,
    align: int = 1,
) -> bytes:
    """A section header; `links` are sh_link and sh_info, a table has entries of `entry` bytes.

    Flags: 2 it is loaded (SHF_ALLOC), 4 it is code; what is not loaded has no address.
    """
    where = _NAMES.index(b"\0" + name.encode() + b"\0") + 1
    address, align = at if flags else 0, 8 if entry else align
    return struct.pack("<IIQQQQIIQQ", where, kind, flags, address, at, size, *links, align, entry)


def _program(kind: int, at: int, size: int, *, flags: int, align: int) -> bytes:
    """A program header; flags: 4 it is read, 2 written, 1 run."""
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)


def main() -> None:
    """Write one."""
    wheel, header, soname, machine, out = sys.argv[1:]
    made = stub_library(soname, functions_of(Path(wheel), header), machine=machine)
    Path(out).write_bytes(made)


if __name__ == "__main__":
    main()
