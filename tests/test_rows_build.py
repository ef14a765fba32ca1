"""The library compiled by one command, into a cache; `make test-csrc` compiles all of it so."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dsv41 import rows
from dsv41.errors import Error
from dsv41.geometry import Shard
from dsv41.rows import build
from rowsfix import LIBRARY, SMALL, write_checkpoint
from rowstool import CSRC

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_MODULE = """
import sys, pathlib
sys.modules["dsv41_rows"] = None
from dsv41 import rows
print(rows.inspect(pathlib.Path(sys.argv[1])).layer, rows.core.extension().path)
"""


def small_sources(folder: Path, value: str) -> Path:
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "include").mkdir(exist_ok=True)
    (folder / "include" / "value.h").write_text(f"#define VALUE {value}\n")
    for name in ("one", "two"):
        seen = 'extern "C" __attribute__((visibility("default")))'
        text = f'#include "value.h"\n{seen} int {name}() {{ return VALUE; }}\n'
        (folder / "src" / f"{name}.cpp").write_text(text)
    return folder


def test_the_header_names_the_command() -> None:
    said = (CSRC / "include" / "dsv41_rows.h").read_text()
    assert f"{' '.join(build.COMMAND)} -Iinclude src/*.cpp -o libdsv41_rows.so" in said


def test_it_is_compiled_once_for_the_same_sources(tmp_path: Path) -> None:
    sources, cache = small_sources(tmp_path / "csrc", "41"), tmp_path / "cache"
    made = build.library(sources=sources, cache=cache)
    inode = made.stat().st_ino
    assert ctypes.CDLL(str(made)).two() == 41
    assert build.library(sources=sources, cache=cache).stat().st_ino == inode
    small_sources(sources, "42")
    assert ctypes.CDLL(str(build.library(sources=sources, cache=cache))).one() == 42
    assert len(list(cache.iterdir())) == 2


def test_what_the_compiler_says_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = small_sources(tmp_path / "csrc", "no_such_name")
    with pytest.raises(Error, match="no_such_name"):
        build.library(sources=sources, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    with pytest.raises(Error, match="has no sources"):
        build.library(sources=tmp_path / "absent", cache=tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Error, match="cannot be started"):
        build.library(sources=sources, cache=tmp_path / "cache")


def test_without_the_module_rows_takes_the_library_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write_checkpoint(tmp_path / "checkpoint")
    shard = Shard(rank=0, tp=1)
    path = rows.pack(
        checkpoint=made.path, out=tmp_path, engram=SMALL, partition="strided", shard=shard
    )[0]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached = build.cached_path()
    assert cached.parent == tmp_path / "dsv41"
    cached.parent.mkdir()
    shutil.copy(LIBRARY, cached)
    command = [sys.executable, "-c", WITHOUT_MODULE, str(path)]
    done = subprocess.run(command, env=dict(os.environ), check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", str(cached)]


def test_the_library_needs_no_python() -> None:
    done = subprocess.run(
        ["readelf", "--dynamic", str(LIBRARY)], check=True, capture_output=True, text=True
    )
    needed = [
        line.split("[")[1].rstrip("]") for line in done.stdout.splitlines() if "NEEDED" in line
    ]
    allowed = ("libstdc++", "libgcc_s", "libc.", "libm.", "libpthread", "ld-linux")
    assert needed
    assert all(name.startswith(allowed) for name in needed)
