"""The parts of engine images that no package brings, and layers that must agree."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layer_sources
import stacked
from layers import content, members, written
from stub_library import MACHINES, NoFunctions, functions_of, machine_of, stub_library
from tar_layer import Bytes, Entry, Layer, Refused

TOOLS = Path(__file__).parent.parent / "nix" / "images" / "tools"
HERE = {"x86_64": "x86_64", "aarch64": "aarch64"}.get(os.uname().machine)
CROSS = "aarch64-linux-gnu-g++"
SOURCE = 'extern "C" int cuInit(unsigned); extern "C" int f() { return cuInit(0); }'


def run(*command: str) -> str:
    done = subprocess.run(command, check=True, text=True, capture_output=True)
    return done.stdout


# the forms in which cuda.h has a function, and what is none
HEADER = """\
#define CUDAAPI __stdcall
#define cuMemFree                           cuMemFree_v2
    #define cuMemcpy                        __CUDA_API_PTDS(cuMemcpy)
    #define cuStreamQuery                   __CUDA_API_PTSZ(cuStreamQuery)
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI
cuMemFree(CUdeviceptr dptr);
typedef CUresult (CUDAAPI *PFN_cuNone)(int);
"""
DRIVER = [
    *("cuInit", "cuMemFree", "cuMemFree_v2", "cuMemcpy", "cuMemcpy_ptds", "cuStreamQuery"),
    "cuStreamQuery_ptsz",
]


def test_a_stub_has_the_functions_that_a_header_declares(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "runtime.whl", "w") as archive:
        archive.writestr("include/cuda.h", HEADER)
        archive.writestr("include/none.h", "int cuInit(unsigned);")
    assert functions_of(tmp_path / "runtime.whl", "include/cuda.h") == DRIVER
    for header in ("include/none.h", "include/absent.h"):
        with pytest.raises(NoFunctions, match=f"^D187 runtime.whl has no {header} that declares"):
            functions_of(tmp_path / "runtime.whl", header)
    source = {"type": "stub library", "to": "lib/libcuda.so", "soname": "libcuda.so.1"}
    source |= {"wheel": str(tmp_path / "runtime.whl"), "header": "include/cuda.h"}
    entry = read({**source, "machine": "aarch64"}, tmp_path)["lib/libcuda.so"]
    written_ = b"".join(entry.data.chunks())
    assert written_ == stub_library("libcuda.so.1", DRIVER, machine="aarch64")
    assert written_ == stub_library("libcuda.so.1", DRIVER, machine="aarch64")


@pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils are not installed")
@pytest.mark.parametrize("machine", MACHINES)
def test_a_stub_is_a_shared_object_with_its_name(tmp_path: Path, machine: str) -> None:
    file = tmp_path / "libcuda.so"
    file.write_bytes(stub_library("libcuda.so.1", DRIVER, machine=machine))
    assert machine_of(file.read_bytes()) == MACHINES[machine]
    words = ("--file-header", "--segments", "--dynamic", "--dyn-syms", "--histogram")
    said = run("readelf", "--wide", *words, str(file))
    assert "DYN (Shared object file)" in said
    assert "Library soname: [libcuda.so.1]" in said
    found = [line.split() for line in said.splitlines() if " FUNC " in line]
    assert [row[-1] for row in found] == DRIVER
    assert {(row[2], *row[4:7]) for row in found} == {("8", "GLOBAL", "DEFAULT", "4")}
    assert "W E" not in said
    assert "100.0%" in said  # every symbol is in a chain of the hash table


@pytest.mark.parametrize(
    ("compiler", "machine"), [("g++", HERE), (CROSS, "aarch64")], ids=["host", "cross"]
)
def test_a_linker_that_drops_what_is_not_called_keeps_it(
    tmp_path: Path, compiler: str, machine: str | None
) -> None:
    if shutil.which(compiler) is None or machine is None:
        pytest.skip(f"{compiler} is not installed")
    (tmp_path / "a.cpp").write_text(SOURCE)
    made = str(tmp_path / "a.so")
    words = ["-shared", "-fPIC", "-Wl,--as-needed", f"-L{tmp_path}", "-lcuda"]
    for functions, named in ((DRIVER, True), ([], False)):
        stub = stub_library("libcuda.so.1", functions, machine=machine)
        (tmp_path / "libcuda.so").write_bytes(stub)
        run(compiler, str(tmp_path / "a.cpp"), "-o", made, *words)
        said = run("readelf", "--wide", "--dynamic", made)
        assert ("Shared library: [libcuda.so.1]" in said) is named


@pytest.mark.skipif(HERE != "x86_64", reason="the loader of this machine takes no x86-64")
def test_the_loader_finds_every_function_of_a_stub_and_each_says_so(tmp_path: Path) -> None:
    """34 is CUDA_ERROR_STUB_LIBRARY; by the hash table, of which no more is asked than that."""
    names = [*DRIVER, *(f"cuMade{at}" for at in range(600))]
    (tmp_path / "libcuda.so").write_bytes(stub_library("libcuda.so.1", names, machine="x86_64"))
    library = ctypes.CDLL(str(tmp_path / "libcuda.so"))
    assert {getattr(library, name)() for name in names} == {34}
    assert not hasattr(library, "cuMade600")


def read(source: dict[str, Any], tmp_path: Path) -> dict[str, Entry]:
    return {e.path: e for e in layer_sources.read(source, scratch=tmp_path)}


def test_a_library_of_another_machine_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    source = {"type": "copy", "to": "lib/n", "path": str(file), "owner": "nccl"}
    file.write_bytes(stub_library("libnccl.so.2", [], machine="x86_64"))
    says = "^D184 lib/n of nccl is no library for aarch64: .* has machine 62, expected 183"
    with pytest.raises(Refused, match=says):
        read({**source, "machine": "aarch64"}, tmp_path)
    found = read({**source, "machine": "x86_64"}, tmp_path)
    assert b"".join(found["lib/n"].data.chunks()) == file.read_bytes()
    file.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(Refused, match="has machine None"):
        read({**source, "machine": "aarch64"}, tmp_path)


# names that unzip would follow out of the folder, beside harmless ones
PARTS = st.sampled_from(["a", "b.py", "pkg", "..", ".", ".wh.x", "\u00e9", "c.so"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


def wheel(folder: Path, files: dict[str, tuple[bytes, int]], *, spoil: str = "") -> dict[str, Any]:
    lines = ["p-1.dist-info/RECORD,,"]
    with zipfile.ZipFile(folder / "stored", "w") as archive:
        for path, (data, mode) in files.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = mode << 16
            archive.writestr(member, data)
            right = hashlib.sha256(data + b"x" * (path == spoil)).digest()
            digest = base64.urlsafe_b64encode(right).rstrip(b"=").decode()
            lines.append(f"{path},sha256={digest},{len(data)}")
        archive.writestr("p-1.dist-info/RECORD", "".join(f"{line}\n" for line in lines))
    place = {"prefix": "opt", "site": "opt/site", "file": "p-1-py3-none-any.whl"}
    return {"type": "wheel", "path": str(folder / "stored"), **place}


FILES = st.dictionaries(
    NAMES, st.tuples(st.binary(max_size=600), st.integers(0, 0o7777)), min_size=1, max_size=5
)


@settings(deadline=None, max_examples=40)
@given(FILES, st.booleans())
def test_a_wheel_is_taken_whole_or_refused(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, tuple[bytes, int]], spoilt: bool
) -> None:
    folder = tmp_path_factory.mktemp("wheel")
    source = wheel(folder, files, spoil=next(iter(files)) if spoilt else "")
    parts = [part for name in files for part in name.split("/")]
    unsafe = bool({"..", "."} & set(parts)) or any(n.split("/")[-1] == ".wh.x" for n in files)
    below = any(other.startswith(f"{name}/") for name in files for other in files)
    layer_sources_of = layer_sources.read(source, scratch=folder)
    if unsafe or below or spoilt:
        with pytest.raises(Refused, match=r"^D18[47] "):
            written(*layer_sources_of)
        return
    data = written(*layer_sources_of)
    assert data == written(*layer_sources.read(source, scratch=folder))
    found = {m.name: m for m in members(data) if m.isreg()}
    for name, (text, mode) in files.items():
        assert content(data, f"opt/site/{name}") == text
        assert found[f"opt/site/{name}"].mode == (0o755 if mode & 0o111 else 0o644)


def test_a_record_that_is_wrong_can_be_amended_and_no_other(tmp_path: Path) -> None:
    source = wheel(tmp_path, {"a": (b"1", 0), "b": (b"2", 0)}, spoil="a")
    right = hashlib.sha256(b"1").hexdigest()
    data = written(*layer_sources.read({**source, "amended": {"a": right}}, scratch=tmp_path))
    assert content(data, "opt/site/a") == b"1"
    for name, digest, says in (
        ("a", "0" * 64, "its RECORD says 0000"),
        ("b", hashlib.sha256(b"2").hexdigest(), "needs no other hash of b"),
        ("c", right, "needs no other hash of c"),
    ):
        amended = {"a": right, name: digest}
        with pytest.raises(Refused, match=f"^D187 .*{says}"):
            written(*layer_sources.read({**source, "amended": amended}, scratch=tmp_path))


def test_a_part_of_a_wheel_is_taken_or_missed(tmp_path: Path) -> None:
    source = wheel(tmp_path, {"a": (b"1", 0), "b": (b"2", 0)})
    assert list(read({**source, "only": ["opt/site/b"]}, tmp_path)) == ["opt/site/b"]
    with pytest.raises(Refused, match=r"^D184 p-1-.* does not have all of opt/site/c"):
        read({**source, "only": ["opt/site/c"]}, tmp_path)


DIR = "folder 755"


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([("a", {"d": DIR, "d/x": "file"}, []), ("b", {"d": DIR, "d/y": "file"}, [])], ""),
        ([("a", {"x": "file"}, []), ("b", {"x": "file"}, [])], "x is a file of the layer a and"),
        ([("a", {"x": "file"}, []), ("b", {"x": DIR}, [])], "x is a file of the layer a and a fol"),
        ([("a", {"x": DIR}, []), ("b", {"x": "folder 1777"}, [])], "and a folder 1777 of b"),
        ([("a", {"x": "file"}, []), ("b", {"x": "file"}, ["x"])], ""),
        ([("a", {"y": "file"}, []), ("b", {"x": "file"}, ["x"])], "which no layer has below it"),
        ([("a", {"x": DIR}, []), ("b", {"x": "file"}, ["x"])], "b replaces x, which a has"),
        ([("a", {"x": "file"}, []), ("b", {}, ["x"])], "b does not have x, which it would"),
        (
            [(n, {"x": "file"}, ["x"] if n != "a" else []) for n in "abc"],
            "c replaces x, which a, b have below it",
        ),
    ],
)
def test_layers_cover_only_what_they_say(layers: Any, says: str) -> None:
    given_ = [(name, paths.items(), replaces) for name, paths, replaces in layers]
    if says:
        with pytest.raises(Refused, match=f"^D184 .*{says}"):
            stacked.check(given_)
    else:
        stacked.check(given_)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sets(st.sampled_from(["a", "b", "d/a", "d/b", "e/f/g"])), max_size=4))
def test_layers_agree_if_no_file_is_in_two(parts: list[set[str]]) -> None:
    layers = []
    for at, names in enumerate(parts):
        layer = Layer()
        for name in names:
            layer.add(Entry(path=name, kind="file", owner="o", data=Bytes(content=b"")))
        out = io.BytesIO()
        layer.write(out)
        layers.append((str(at), list(_headers(out.getvalue())), ()))
    twice = sum(len(names) for names in parts) != len(set().union(*parts))
    if twice:
        with pytest.raises(Refused, match="is a file of the layer"):
            stacked.check(layers)
    else:
        stacked.check(layers)


def _headers(data: bytes) -> list[tuple[str, str]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(m.name, f"folder {m.mode:o}" if m.isdir() else "file") for m in archive]


def test_a_measured_layer_is_the_written_one(tmp_path: Path) -> None:
    spec = {"sources": [wheel(tmp_path, {"a": (b"1" * 5000, 0o755)})]}
    (tmp_path / "spec").write_text(json.dumps(spec))
    for words, out in (((), "tar"), (("--measure",), "json")):
        files = [str(tmp_path / "spec"), str(tmp_path / out)]
        run(sys.executable, str(TOOLS / "build_layer.py"), *words, *files)
    data = (tmp_path / "tar").read_bytes()
    assert json.loads((tmp_path / "json").read_text()) == {
        "diff_id": f"sha256:{hashlib.sha256(data).hexdigest()}",
        "size": len(data),
    }
