"""Compile `libdsv41_rows.so` once, where no extension is installed.

The image of an engine carries csrc/ and a compiler; the library goes into a cache, keyed by the
bytes of the sources and the command, so that it is built again exactly when they change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from dsv41.errors import Error

# The one command of csrc/include/dsv41_rows.h.
COMMAND = ("g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
SOURCES = Path(__file__).parents[3] / "csrc"
# Its types stay apart from the unnamed namespaces of the others, as in CMakeLists.txt.
ALONE = "c_abi.cpp"


def default_cache() -> Path:
    """Folder of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsv41"


def library(*, sources: Path = SOURCES, cache: Path | None = None) -> Path:
    """Compile the library, unless the cache has it; its path.

    Raises:
        Error: D030, when there are no sources, no compiler, or it fails.
    """
    units = sorted((sources / "src").glob("*.cpp"))
    if not units:
        raise _cannot(f"{sources} has no sources of the row store.")
    target = cached_path(sources=sources, cache=cache)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _compile(units, sources / "include", target)
    return target


def cached_path(*, sources: Path = SOURCES, cache: Path | None = None) -> Path:
    """Where the library of these sources is, or will be."""
    folder = default_cache() if cache is None else cache
    return folder / f"libdsv41_rows-{_key(sources)}.so"


def _key(sources: Path) -> str:
    digest = hashlib.sha256("\0".join(COMMAND).encode())
    for path in sorted(p for p in sources.rglob("*") if p.suffix in {".cpp", ".hpp", ".h"}):
        if path.relative_to(sources).parts[0] in {"src", "include"}:
            digest.update(path.relative_to(sources).as_posix().encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def without_crc(folder: Path, *, sources: Path = SOURCES) -> Path:
    """Compile a library that checks no row, to measure what the check costs.

    Raises:
        Error: D030, when there are no sources, no compiler, or it fails.
    """
    return variant(folder / "without-crc.so", "-DDSV41_ROWS_WITHOUT_CRC", sources=sources)


def variant(target: Path, *defines: str, sources: Path = SOURCES) -> Path:
    """Compile a library with some constants set otherwise, to measure them; gives `target`.

    Raises:
        Error: D030, when there are no sources, no compiler, or it fails.
    """
    units = sorted((sources / "src").glob("*.cpp"))
    _compile(units, sources / "include", target, *defines)
    return target


def _compile(units: list[Path], include: Path, target: Path, *more: str) -> None:
    """One unit of nearly all sources: 14 s of a core, against 38 s one by one."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made, whole = Path(folder) / target.name, Path(folder) / "whole.cpp"
        together = [f'#include "{path.absolute()}"\n' for path in units if path.name != ALONE]
        whole.write_text("".join(together))
        alone = [str(path) for path in units if path.name == ALONE]
        command = [*COMMAND, *more, f"-I{include}", str(whole), *alone, "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise _cannot(f"{COMMAND[0]} cannot be started: {error}.") from error
        if done.returncode:
            raise _cannot(f"{COMMAND[0]} failed: {done.stderr.strip()[-2000:]}")
        made.replace(target)


def _cannot(says: str) -> Error:
    return Error("D030", says, fix="install g++, or run `make setup`")
