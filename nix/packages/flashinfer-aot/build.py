"""Compile FlashInfer's modules for a Spark on another machine: `python build.py SPEC.json OUT`.

SPEC has `host` and `target`, lists of wheels: nvcc with its parts for this machine, and what an
image of arm64 has of CUDA, FlashInfer and tvm-ffi; `stub`, the libcuda.so that its linker finds;
`compiler`, a g++ that makes arm64 code;
`ninja`, module -> the build.ninja that FlashInfer itself wrote for it in the image; `glibc`, the
newest one that the image has; `jobs`. OUT gets a folder NAME/NAME.so each, the form in which
FlashInfer looks for modules that were built ahead (flashinfer/jit/env.py, FLASHINFER_AOT_DIR).

All runs in the working folder with relative paths, so that no path of the machine gets into a file.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

# where the image has them, and FlashInfer's build folder as the ninja files name it
IMAGE_SITE = "/opt/dsv41/lib/python3.11/site-packages"
IMAGE_JIT = re.compile(r"/cache/flashinfer/\.cache/flashinfer/[^/\s]+/[^/\s]+/cached_ops")
CUDA = "nvidia/cu13"
NEEDED = ("flashinfer/data/", "tvm_ffi/", f"{CUDA}/include/", f"{CUDA}/lib/libcudart")
TARGET = "sm_121a"
ARM64 = 183  # e_machine EM_AARCH64


class Refused(Exception):
    """A module that must not get into an image."""


def unpack(wheels: list[str], folder: Path, *, only: tuple[str, ...] = ("",)) -> None:
    """Members of wheels whose names begin so; zip's execute bits are kept."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not member.filename.startswith(only) or member.is_dir():
                    continue
                place = Path(archive.extract(member, folder))
                place.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)


def prepare(spec: dict[str, Any]) -> None:
    """./host with the compiler of CUDA, ./site with what an image has, each with its fix-ups."""
    unpack(spec["host"], Path("host"))
    unpack(spec["target"], Path("site"), only=NEEDED)
    tools, image = Path("host", CUDA), Path("site", CUDA)
    for folder in (tools / "bin", tools / "nvvm" / "bin"):
        for program in [path for path in folder.iterdir() if path.is_file()]:
            program.chmod(0o755)
    (image / "lib64").symlink_to("lib")
    (image / "lib" / "libcudart.so").symlink_to("libcudart.so.13")
    stubs = image / "lib" / "stubs"
    stubs.mkdir()
    shutil.copyfile(spec["stub"], stubs / "libcuda.so")
    # nvcc finds headers and libraries of another machine there (-target-dir)
    other = tools / "targets" / "sbsa-linux"
    other.mkdir(parents=True)
    for name in ("include", "lib"):
        (other / name).symlink_to(Path("../../../../..") / image / name)


def on_this_machine(ninja: str, spec: dict[str, Any]) -> str:
    """An image's build.ninja with the compilers of this machine, and relative paths."""
    text = IMAGE_JIT.sub("made", ninja).replace(IMAGE_SITE, "site")
    # Python's headers: no module includes them, and those of this machine are of another one
    text = re.sub(r"(?m)^ *-isystem /usr/include/python\S* \$\n", "", text)
    nvcc = f"host/{CUDA}/bin/nvcc -ccbin {spec['compiler']} -target-dir sbsa-linux"
    text = re.sub(r"(?m)^nvcc = .*$", f"nvcc = {nvcc}", text)
    text = re.sub(r"(?m)^cxx = .*$", f"cxx = {spec['compiler']}", text)
    if left := re.findall(r"(?m)(?<![\w.])/(?:opt|cache)/\S*", text):
        raise Refused(f"the ninja file names {left[0]}, which only the image has")
    return text


def check(library: Path, *, cuobjdump: Path) -> None:
    """Of arm64, with code of the one GPU and no other; Refused otherwise."""
    machine = int.from_bytes(library.read_bytes()[18:20], "little")
    if machine != ARM64:
        raise Refused(f"{library.name} is of machine {machine}, expected {ARM64}")
    said = subprocess.run(
        [cuobjdump, "-lelf", "-lptx", library], capture_output=True, text=True, check=True
    ).stdout
    files = re.findall(r"(?:ELF|PTX) file +\d+: (\S+)", said)
    others = [name for name in files if f".{TARGET}." not in name]
    if others or not files:
        raise Refused(f"{library.name} has {others or 'no device code'}; expected {TARGET} alone")


def build(spec: dict[str, Any], out: Path) -> None:
    """All modules, one after the other."""
    prepare(spec)
    cuobjdump = Path("host", CUDA, "bin", "cuobjdump")
    for name, ninja in spec["ninja"].items():
        file = Path(f"{name}.ninja")
        file.write_text(on_this_machine(Path(ninja).read_text(), spec))
        command = ["ninja", "-f", str(file), "-j", str(spec["jobs"])]
        subprocess.run(command, check=True)
        library = Path("made", name, f"{name}.so")
        subprocess.run([spec["strip"], "--strip-unneeded", library], check=True)
        check(library, cuobjdump=cuobjdump)
        (out / name).mkdir(parents=True)
        shutil.copyfile(library, out / name / library.name)
        (out / name / library.name).chmod(0o644)


def main() -> int:
    """Do it."""
    spec, out = map(Path, sys.argv[1:])
    try:
        build(json.loads(spec.read_text()), out)
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
