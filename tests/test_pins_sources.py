"""Package `sources`: its builder on synthetic trees, and what it refuses."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BUILDER = ROOT / "nix" / "packages" / "sources.py"
SYNTHETIC = ROOT / "tests" / "nix" / "synthetic_sources.py"
NEXT = ("compact-n64-m64", "prequant-input", "barrier-zero", "det-triton-planner")
Spec = dict[str, Any]


def write_synthetic(folder: Path) -> None:
    subprocess.run([sys.executable, str(SYNTHETIC), str(folder)], check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trees, and their specification beside them."""
    folder = tmp_path_factory.mktemp("sources")
    write_synthetic(folder / "fetched")
    spec = specification(folder / "fetched")
    done = build(spec, folder / "out")
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "out"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    write_synthetic(tmp_path / "fetched")
    return specification(tmp_path / "fetched")


def specification(fetched: Path) -> Spec:
    """As nix/packages/sources.nix writes it."""
    recipe, rocenante = fetched / "recipe", fetched / "rocenante"
    return {
        "sglang": {
            "tree": f"{fetched}/sglang",
            "commit": "a1" * 20,
            "patch": f"{rocenante}/sglang-rocenante.patch",
            "flash_mla": f"{rocenante}/flash_mla_sm120.py",
        },
        "b12x": {
            "archive": f"{rocenante}/b12x-source.tar.gz",
            "patch": f"{recipe}/roce-columns-gather.patch",
            "ring": {path.name: str(path) for path in (fetched / "roce_ring").iterdir()},
            "ring_patch": f"{recipe}/roce_ring.patch",
        },
        "b12x_next": {
            "tree": f"{fetched}/b12x",
            "commit": "b2" * 20,
            "patches": [f"{recipe}/b12x_next-{name}.patch" for name in NEXT],
        },
    }


def build(spec: Spec, out: Path) -> subprocess.CompletedProcess[str]:
    file = out.with_suffix(".json")
    file.write_text(json.dumps(spec))
    command = [sys.executable, str(BUILDER), str(file), str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_trees_are_what_the_images_take(built: Path) -> None:
    made = files(built)
    assert {name.split("/")[0] for name in made} == {"sglang", "b12x", "b12x_next"}
    assert not [name for name in made if name.endswith((".orig", ".rej", ".pyc"))]
    assert not [name for name in made if "left" in name]
    assert made["sglang/REF"].decode() == "a1" * 20 + "\n"
    kernel = "sglang/python/sglang/kernels/ops/attention/flash_mla_sm120.py"
    assert made[kernel] == b"stock = False\n"
    ring = [name for name in made if name.startswith("b12x/b12x/comm/roce_ring/")]
    assert len(ring) == 9
    assert not [name for name in ring if b"\r" in made[name]]
    assert b"roce_ring" in made["b12x/b12x/comm/roce_ring/api.py"]
    assert b"columns=None" in made["b12x/b12x/comm/roce/roce_oneshot.py"]
    assert {"b12x/LICENSE", "b12x_next/LICENSE"} <= made.keys()


def test_b12x_main_is_renamed_and_says_what_it_is(built: Path) -> None:
    made = files(built / "b12x_next" / "b12x_next")
    assert made["__init__.py"] == b"from b12x_next.moe import tune  # of b12x-kernels\n"
    assert made["native.c"] == b'static const char *cache = "B12X_NEXT_CACHE";\n'
    assert made["moe.py"].count(b" = 1\n") == 4
    assert made["SOURCE_COMMIT"].decode() == "b2" * 20 + "\n"
    spec = specification(built.parent / "fetched")
    patches = b"".join(Path(patch).read_bytes() for patch in spec["b12x_next"]["patches"])
    assert made["SOURCE_PATCH"].decode() == hashlib.sha256(patches).hexdigest()[:16] + "\n"
    assert not [name for name in made if name.startswith("sequence/engram")]


@pytest.mark.parametrize(
    ("environment", "world", "says"),
    [
        ({}, 4, "None"),
        ({"SGLANG_ROCE_ALLREDUCE": "0"}, 4, "None"),
        ({"SGLANG_ROCE_ALLREDUCE": "1"}, 4, "b12x.comm.roce 524288"),
        ({"SGLANG8_ROCE_ALLREDUCE": "1"}, 8, "b12x.comm.roce 524288"),
        ({"SGLANG_ROCE_ALLREDUCE": "1", "SGLANG_ROCE_MAX_SIZE": "1024"}, 4, "b12x.comm.roce 1024"),
        ({"SGLANG_ROCE_ALLREDUCE": "1", "DSV41_ROCE_RING": "1"}, 4, "b12x.comm.roce_ring 524288"),
        ({"SGLANG_ROCE_ALLREDUCE": "1"}, 3, "eight ranks"),
    ],
)
def test_the_overlay_serves_four_ranks(
    built: Path, environment: dict[str, str], world: int, says: str
) -> None:
    """The patched file is run, with both variants of RoCEnante beside it."""
    code = (
        "from sglang.srt.distributed.device_communicators.pynccl import PyNcclCommunicator\n"
        f"roce = PyNcclCommunicator({world}).roce\n"
        "print(roce and f'{roce.variant} {roce.max_size}')\n"
    )
    search = f"{built}/sglang/python:{built}/b12x"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": search, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert says in done.stdout + done.stderr


def no_text(spec: Spec) -> None:
    patch = Path(spec["sglang"]["patch"])
    patch.write_text(patch.read_text().replace("!= 2", "!= 1"))


def other_branch(spec: Spec) -> None:
    path = "python/sglang/srt/distributed/device_communicators/pynccl.py"
    Path(spec["sglang"]["tree"], path).write_text("")


def no_kernel(spec: Spec) -> None:
    path = "python/sglang/kernels/ops/attention/flash_mla_sm120.py"
    Path(spec["sglang"]["tree"], path).unlink()


def eight_files(spec: Spec) -> None:
    del spec["b12x"]["ring"]["api.py"]


def ten_files(spec: Spec) -> None:
    patch = Path(spec["b12x"]["ring_patch"])
    more = "--- /dev/null\n+++ b/roce_ring/more.py\n@@ -0,0 +1 @@\n+more = True\n"
    patch.write_text(patch.read_text() + more)


def no_archive(spec: Spec) -> None:
    Path(spec["b12x"]["archive"]).write_bytes(b"nothing")


def twice(spec: Spec) -> None:
    spec["b12x_next"]["patches"].append(spec["b12x_next"]["patches"][0])


def not_renamed(spec: Spec) -> None:
    patch = Path(spec["b12x_next"]["patches"][3])
    patch.write_text(patch.read_text().replace("+planner = 1", "+planner = 'b12x.plan'"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (no_text, "pynccl.py has 'len(self.roce.hca_names) != 2:' 0 times, expected once"),
        (other_branch, "sglang-rocenante.patch does not apply"),
        (no_kernel, "has no python/sglang/kernels/ops/attention/flash_mla_sm120.py"),
        (eight_files, "roce_ring has 8 files, expected 9"),
        (ten_files, "the patch of roce_ring adds or removes files"),
        (no_archive, "the archive of b12x cannot be unpacked"),
        (twice, "b12x_next-compact-n64-m64.patch does not apply"),
        (not_renamed, "b12x is not renamed everywhere: moe.py"),
    ],
)
def test_what_does_not_fit_ends_the_build(
    spec: Spec, tmp_path: Path, change: Callable[[Spec], None], says: str
) -> None:
    change(spec)
    done = build(spec, tmp_path / "out")
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
