"""Write small stand-ins of what package `sources` fetches: `python synthetic_sources.py DIR`.

Trees `sglang` and `b12x`, and a file for each component of sources.manifest, under its name. The
lines are ours; only the texts that the builder looks for are those of the real files.
"""

from __future__ import annotations

import difflib
import io
import sys
import tarfile
from pathlib import Path

RING = (
    "__init__",
    "_allgather_cute",
    "_cute_intrinsics",
    "_oneshot_cute",
    "_path_config",
    "_proxy",
)
RING_FILES = (*(f"{name}.py" for name in RING), "_roce_proxy.c", "api.py", "roce_oneshot.py")
PYNCCL = "python/sglang/srt/distributed/device_communicators/pynccl.py"

STOCK = """\
import os


class PyNcclCommunicator:
    def __init__(self, world_size):
        self.world_size = world_size
        self.roce = None
"""
WITH_ROCE = """\
        if os.environ.get("SGLANG8_ROCE_ALLREDUCE", "0") == "1":
            if self.world_size != 8 or world_size < 0:
                raise RuntimeError("eight ranks")
            from b12x.comm import roce

            self.roce = roce.AllReduce(
                max_size=512 * 1024, max_gather_bytes=0,
            )
            if len(self.roce.hca_names) != 2:
                raise RuntimeError("two ports")
"""
ROCE = """\
class AllReduce:
    hca_names = ("port",)

    def __init__(self, max_size, max_gather_bytes):
        self.max_size, self.variant = max_size, __name__
"""


def diff(name: str, before: str, after: str, *, prefix: tuple[str, str] = ("a/", "b/")) -> str:
    """A unified diff."""
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, prefix[0] + name, prefix[1] + name))


def write(path: Path, text: str) -> None:
    """Write a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def sglang(out: Path) -> None:
    """The branch's tree, and the patch that was made for another revision of it."""
    write(out / "sglang" / PYNCCL, "# a line that the patch does not know\n" + STOCK)
    write(out / "sglang/python/sglang/__init__.py", "")
    write(out / "sglang/python/sglang/kernels/ops/attention/flash_mla_sm120.py", "stock = True\n")
    write(out / "sglang/docs/left-out.md", "")
    patch = diff(PYNCCL, STOCK, STOCK + WITH_ROCE)
    write(out / "rocenante/sglang-rocenante.patch", patch)
    write(out / "rocenante/flash_mla_sm120.py", "stock = False\n")


def frozen(out: Path) -> None:
    """The archive of b12x for RoCEnante, and the nine files, some with CRLF."""
    with tarfile.open(out / "rocenante/b12x-source.tar.gz", "w:gz") as archive:
        files = {
            "LICENSE": "Apache-2.0\n",
            "b12x/__init__.py": "",
            "b12x/__pycache__/__init__.cpython-312.pyc": "",
            "b12x/comm/__init__.py": "",
            "b12x/comm/roce/__init__.py": ROCE,
            "b12x/comm/roce/roce_oneshot.py": "def all_gather(x):\n    return x\n",
        }
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    before = files["b12x/comm/roce/roce_oneshot.py"]
    after = before.replace("(x)", "(x, columns=None)")
    patch = diff("b12x/comm/roce/roce_oneshot.py", before, after)
    write(out / "recipe/roce-columns-gather.patch", patch)
    for name in RING_FILES:
        text = {"__init__.py": ROCE, "api.py": "API = 'b12x.comm.roce'\n"}.get(name, "# empty\n")
        end = "\r\n" if name in ("__init__.py", "api.py") else "\n"
        write(out / "roce_ring" / name, text.replace("\n", end))
    renamed = "API = 'b12x.comm.roce_ring'\n"
    patch = diff("roce_ring/api.py", "API = 'b12x.comm.roce'\n", renamed)
    write(out / "recipe/roce_ring.patch", patch)


def main_line(out: Path) -> None:
    """b12x main, and four patches of the renamed package, in the form of `patch -p0`."""
    write(out / "b12x/LICENSE", "Apache-2.0\n")
    write(out / "b12x/tests/left_out.py", "")
    write(out / "b12x/b12x/__init__.py", "from b12x.moe import tune  # of b12x-kernels\n")
    write(out / "b12x/b12x/__pycache__/x.pyc", "")
    write(out / "b12x/b12x/sequence/engram/__init__.py", "")
    write(out / "b12x/b12x/native.c", 'static const char *cache = "B12X_CACHE";\n')
    text = "KNOB = 'B12X_TUNE'\ncompact = 0\nprequant = 0\nbarrier = 0\nplanner = 0\n"
    write(out / "b12x/b12x/moe.py", text)
    text = text.replace("B12X_", "B12X_NEXT_")
    names = ("compact-n64-m64", "prequant-input", "barrier-zero", "det-triton-planner")
    for name, word in zip(names, ("compact", "prequant", "barrier", "planner"), strict=True):
        after = text.replace(f"{word} = 0", f"{word} = 1")
        patch = diff("b12x_next/moe.py", text, after, prefix=("", ""))
        write(out / f"recipe/b12x_next-{name}.patch", patch)
        text = after


def main(out: Path) -> None:
    """Write everything."""
    (out / "rocenante").mkdir(parents=True)
    sglang(out)
    frozen(out)
    main_line(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
