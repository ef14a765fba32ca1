"""Make the source trees of the recipe's images: `python sources.py SPEC.json OUT`.

The facts are those of MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks at 519a3988 (its sources.manifest
and Dockerfile.canary-roce), which built the images that its figures were measured on:

- sglang/python: the branch's tree, the RoCEnante patch on it, made fit for four ranks, and the
  SM120 kernel file that splits pages.
- b12x/: b12x as frozen for RoCEnante; roce_ring beside it has exactly nine files.
- b12x_next/: b12x main under a name of its own, so that both can be imported by one process.

Whatever does not fit ends the build with one line.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PYNCCL = "sglang/srt/distributed/device_communicators/pynccl.py"
FLASH_MLA = "sglang/kernels/ops/attention/flash_mla_sm120.py"

EITHER_VARIANT = """\
import importlib

            variant = "roce_ring" if os.environ.get("DSV41_ROCE_RING") == "1" else "roce"
            roce = importlib.import_module(f"b12x.comm.{variant}")
"""
# RoCEnante's patch is for eight ranks with two ports. What four ranks need: the switch that the
# recipe sets, either size of group, one port or more, the size cap by environment, and the variant
# for rings. Each text stands exactly once in the patched file.
FOR_FOUR_RANKS = (
    (
        'os.environ.get("SGLANG8_ROCE_ALLREDUCE", "0") == "1"',
        '"1" in map(os.environ.get, ("SGLANG8_ROCE_ALLREDUCE", "SGLANG_ROCE_ALLREDUCE"))',
    ),
    ("self.world_size != 8 ", "self.world_size not in (4, 8) "),
    ("from b12x.comm import roce\n", EITHER_VARIANT),
    (
        "max_size=512 * 1024",
        'max_size=int(os.environ.get("SGLANG_ROCE_MAX_SIZE") or 512 * 1024)',
    ),
    ("len(self.roce.hca_names) != 2:", "not self.roce.hca_names:"),
)

# the renaming of b12x main; `b12x-...` are names of other things
WORD = re.compile(r"\bb12x\b(?!-)")
KNOB = re.compile(r"\bB12X_(?!NEXT_)")
RENAMED = {".py", ".c", ".cpp", ".h"}


class Refused(Exception):
    """What was fetched is not what these steps are written for."""


def main(spec: Mapping[str, Any], out: Path) -> None:
    """Make the three trees."""
    sglang(spec["sglang"], out / "sglang")
    b12x(spec["b12x"], out / "b12x")
    b12x_next(spec["b12x_next"], out / "b12x_next")


def sglang(spec: Mapping[str, str], out: Path) -> None:
    """The branch's python tree with RoCEnante."""
    python = out / "python"
    copy(Path(spec["tree"]) / "python", python)
    demand(out, f"python/{PYNCCL}", f"python/{FLASH_MLA}")
    # the patch was made for another revision of the branch: up to three lines of context may differ
    apply(spec["patch"], out, strip=1, fuzz=3)
    edit(python / PYNCCL, FOR_FOUR_RANKS)
    shutil.copyfile(spec["flash_mla"], python / FLASH_MLA)
    (out / "REF").write_text(spec["commit"] + "\n")


def edit(path: Path, edits: Iterable[tuple[str, str]]) -> None:
    """Replace texts that must stand in a Python file exactly once."""
    text = path.read_text()
    for old, new in edits:
        if text.count(old) != 1:
            raise Refused(f"{path.name} has {old.strip()!r} {text.count(old)} times, expected once")
        text = text.replace(old, new)
    compile(text, path.name, "exec")
    path.write_text(text)


def b12x(spec: Mapping[str, Any], out: Path) -> None:
    """The frozen b12x with the gather of unequal columns and the variant for rings."""
    out.mkdir(parents=True)
    unpack = ["tar", "-xf", spec["archive"], "-C", str(out), "--no-same-owner"]
    run([*unpack, "--no-same-permissions"], out, says="the archive of b12x cannot be unpacked")
    demand(out, "LICENSE", "b12x/comm/roce")
    for other in out.iterdir():
        if other.name not in ("LICENSE", "b12x"):
            raise Refused(f"the archive of b12x has {other.name}, which is not known")
    apply(spec["patch"], out, strip=1)
    if len(spec["ring"]) != 9:
        raise Refused(f"roce_ring has {len(spec['ring'])} files, expected 9")
    comm = out / "b12x" / "comm"
    ring = comm / "roce_ring"
    ring.mkdir()
    for name, fetched in spec["ring"].items():
        (ring / name).write_bytes(Path(fetched).read_bytes().replace(b"\r\n", b"\n"))
    apply(spec["ring_patch"], comm, strip=1)
    tidy(out)
    if len(list(ring.iterdir())) != 9:
        raise Refused("the patch of roce_ring adds or removes files")


def b12x_next(spec: Mapping[str, Any], out: Path) -> None:
    """b12x main as the package b12x_next, patched."""
    source = Path(spec["tree"])
    demand(source, "b12x", "LICENSE")
    package = out / "b12x_next"
    copy(source / "b12x", package)
    shutil.copyfile(source / "LICENSE", out / "LICENSE")
    for path in sources_of(package):
        text = path.read_bytes().decode()
        path.write_bytes(KNOB.sub("B12X_NEXT_", WORD.sub("b12x_next", text)).encode())
    for patch in spec["patches"]:
        apply(patch, out, strip=0)
    # left out of the images that were measured
    shutil.rmtree(package / "sequence" / "engram", ignore_errors=True)
    left = [
        p.name for p in sources_of(package) if WORD.search(t := p.read_text()) or KNOB.search(t)
    ]
    if left:
        raise Refused(f"b12x is not renamed everywhere: {', '.join(sorted(left))}")
    together = b"".join(Path(patch).read_bytes() for patch in spec["patches"])
    (package / "SOURCE_COMMIT").write_text(spec["commit"] + "\n")
    (package / "SOURCE_PATCH").write_text(hashlib.sha256(together).hexdigest()[:16] + "\n")


def sources_of(package: Path) -> list[Path]:
    """The files of a package in which names stand."""
    return [path for path in package.rglob("*") if path.is_file() and path.suffix in RENAMED]


def demand(folder: Path, *names: str) -> None:
    """Refuse a tree without these."""
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise Refused(f"{folder} has no {', '.join(missing)}")


def copy(source: Path, target: Path) -> None:
    """Copy a tree, writable, without bytecode."""
    demand(source)
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o200)


def apply(patch: str, folder: Path, *, strip: int, fuzz: int = 2) -> None:
    """Apply a patch, all of it or none."""
    command = [
        "patch",
        "--batch",
        "--forward",
        "--no-backup-if-mismatch",
        f"-p{strip}",
        f"-F{fuzz}",
    ]
    run([*command, "-i", patch], folder, says=f"{Path(patch).name} does not apply")


def run(command: list[str], folder: Path, *, says: str) -> None:
    """Run a program, and refuse with its own words when it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{says}: {' '.join((done.stdout + done.stderr).split())}")


def tidy(folder: Path) -> None:
    """Remove bytecode that an archive brought along."""
    for path in list(folder.rglob("__pycache__")):
        shutil.rmtree(path)


if __name__ == "__main__":
    try:
        main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    except Refused as refused:
        sys.exit(f"sources: {refused}")
