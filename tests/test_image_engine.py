"""The engine image in an arm64 process without a network and without a GPU (make test-image).

It fetches 4.2 GB, needs 25 GB of disk and takes the better part of an hour on two cores, so it is
no part of `make test`. What it saw goes to the file that DSV41_RECEIPT names, a JSON document.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv41 import foreground, rows
from dsv41.adapters import adapter
from dsv41.adapters.table import SGLANG
from emulated import SITE, Unpacked, fetched, only
from emulated_engine import Asking, in_the_image, needed, opened, ranks
from nix_images import ROOT
from planned import profile_with
from rowsfix import OWNED, RIGHT, pack_all, write_checkpoint

KERNELS = ROOT / "nix" / "packages" / "flashinfer-aot"
PROFILES = ("tp3", "tp4", "tp4-ring")
IMPORTS = [
    *("torch", "torchvision", "torchaudio", "triton", "transformers", "xgrammar", "quack"),
    *("humming", "tilelang", "cutlass", "tvm_ffi", "nccl", "flashinfer", "deepseek_recipe"),
    *("b12x", "b12x.comm.roce", "b12x.sequence.engram", "sgl_kernel", "flash_mla", "deep_gemm"),
    *("sglang", "sglang.srt.layers.engram", "sglang.srt.models.deepseek_v4"),
    *("sglang.srt.models.deepseek_v4_dspark", "sglang.srt.managers.scheduler"),
    *("sglang.srt.entrypoints.openai.serving_chat", "sglang.srt.server_args"),
    "sglang.launch_server",
]
VERSIONS = ["sglang", "torch", "triton", "flashinfer-python", "b12x", "sglang-kernel", "dsv41"]
SM120 = "sglang.srt.layers.deep_gemm_wrapper.configurer._sm120_deep_gemm_apis_available"

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module", autouse=True)
def _asked(request: pytest.FixtureRequest) -> None:
    if "emulated" not in str(request.config.getoption("-m")):
        pytest.skip("fetches 4.2 GB and takes up to an hour: make test-image")


@pytest.fixture(scope="module")
def receipt() -> Iterator[dict[str, Any]]:
    """What is written down at the end, whatever became of the tests."""
    found: dict[str, Any] = {
        "schema": "dsv41.image/1",
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    yield found
    place = Path(os.environ.get("DSV41_RECEIPT", ROOT / ".cache" / "image.json"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder on the disk, for /tmp may be memory; one that DSV41_SCRATCH names is kept."""
    kept = os.environ.get("DSV41_SCRATCH")
    folder = Path(kept or ROOT / ".cache" / f"image-{os.getpid()}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    if not kept:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image(scratch: Path, receipt: dict[str, Any]) -> Unpacked:
    began = time.monotonic()
    given = os.environ.get("DSV41_LAYOUT")  # an OCI layout that is there already
    layout = Path(given) if given else fetched("image-tp3")
    built = time.monotonic()
    found, says = opened(layout, scratch)
    receipt["image"] = {"built_seconds": round(built - began, 1), **says}
    return found


@pytest.fixture(scope="module")
def asking(image: Unpacked, scratch: Path) -> Asking:
    return Asking(image, scratch)


@pytest.fixture(scope="module")
def engine(asking: Asking, receipt: dict[str, Any]) -> dict[str, Any]:
    """One process for all that needs no adapter, for importing takes minutes."""
    argvs = [list(rank.argv[3:]) for name in PROFILES for rank in ranks(name)]
    question: dict[str, Any] = {
        "machine": None,
        "versions": VERSIONS,
        "imports": IMPORTS,
        "torch": None,
    }
    question |= {"called": [SM120], "command_lines": argvs}
    found = asking.ask("engine.py", question)
    kept = {name: found[name] for name in ("machine", "versions", "imports", "torch", "called")}
    lines = {key: value for key, value in found["command_lines"].items() if key != "found"}
    receipt["engine"] = {**kept, "command_lines": {**lines, "asked": len(argvs)}}
    return found


def test_it_is_an_arm64_process_of_the_image(engine: dict[str, Any]) -> None:
    found = engine["machine"]["found"]
    assert (found["machine"], found["libc"]) == ("aarch64", "glibc 2.36")
    lock = json.loads((ROOT / "nix/images/engine/wheels-sglang-arm64.json").read_text())
    locked = {wheel["name"]: wheel["version"] for wheel in lock["wheels"]}
    ours = {"dsv41": __import__("dsv41").__version__}
    assert engine["versions"]["found"] == {name: {**locked, **ours}[name] for name in VERSIONS}


def test_all_modules_of_the_engine_import(engine: dict[str, Any]) -> None:
    found = engine["imports"]["found"]
    assert list(found) == IMPORTS
    failed = {name: one["problem"] for name, one in found.items() if "problem" in one}
    assert not failed


def test_torch_computes_and_is_built_for_the_cuda_of_the_lock(engine: dict[str, Any]) -> None:
    found = engine["torch"]["found"]
    assert (found["product"], found["cuda"], found["devices"]) == (6.0, "13.0", 0)
    assert "sm_120" in found["arch"]


def test_deep_gemm_has_the_kernels_that_sglang_asks_of_an_sm120(engine: dict[str, Any]) -> None:
    assert engine["called"]["found"] == {SM120: "True"}


def test_its_parser_reads_every_rank_of_every_profile(engine: dict[str, Any]) -> None:
    parsed = engine["command_lines"]["found"]
    asked = [(name, rank) for name in PROFILES for rank in ranks(name)]
    assert len(parsed) == len(asked) == 3 + 4 + 4
    for read, (name, rank) in zip(parsed, asked, strict=True):
        size = profile_with(name)["tp"]
        assert (read["tp_size"], read["nnodes"], read["node_rank"]) == (size, size, rank.rank)
        assert read["context_length"] == profile_with(name)["context"]


@pytest.mark.parametrize("name", ["tp3", "tp4"])
def test_every_hook_of_a_profile_is_put_in_by_the_engines_own_loader(
    asking: Asking, receipt: dict[str, Any], name: str
) -> None:
    head = ranks(name)[0]
    binds = in_the_image(head, asking.scratch)
    found = asking.ask("engine.py", {"preflight": "sglang", "hooks": None}, *binds, env=head.env)
    receipt.setdefault("hooks", {})[name] = found
    assert found["preflight"].get("found") == "ok", found["preflight"]
    hooks = found["hooks"]["found"]
    wanted = [one for one in SGLANG if adapter.is_on(one, head.env)]
    assert len(wanted) >= 5
    assert hooks["on"] == [one.name for one in wanted]
    assert hooks["before"] == []
    targets = {h.target for one in wanted for h in one.hooks if not h.optional}
    assert targets <= set(hooks["patched"])
    assert hooks["from"].startswith("/opt/dsv41/src/python/")


def test_the_preflight_of_rank_exec_passes(asking: Asking, receipt: dict[str, Any]) -> None:
    """The very words, variables and mounts that `rank exec` gives to the container."""
    rank = foreground.preflight(ranks("tp3")[0], "sglang")
    began = time.monotonic()
    asking.run(*rank.argv, env=rank.env, binds=in_the_image(rank, asking.scratch))
    receipt["preflight_seconds"] = round(time.monotonic() - began, 1)


def test_a_preflight_that_misses_something_says_no(asking: Asking) -> None:
    rank = foreground.preflight(ranks("tp3")[0], "sglang")
    env = {**rank.env, "SGLANG_PLUGINS": "another"}
    with pytest.raises(AssertionError, match=r"SGLANG_PLUGINS is 'another'"):
        asking.run(*rank.argv, env=env, binds=in_the_image(rank, asking.scratch))


def test_its_compiler_builds_the_row_store_which_reads_rows(
    asking: Asking, receipt: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    folder = pack_all(checkpoint, tmp_path / "rows", ["weighted"])
    ids = [OWNED.to_global(1, local) for local in (5, 99, 5, 229, 0, 17)]
    path = f"/rows/{rows.file_name(**RIGHT)}"
    question = {"path": path, "given": {**RIGHT, "engine": "pread"}, "ids": ids}
    found = asking.ask("rows.py", question, f"{folder}:/rows:ro")
    pairs = zip(checkpoint.weights[1][ids], checkpoint.scales[1][ids], strict=True)
    assert found["rows"] == [w.tobytes().hex() + s.tobytes().hex() for w, s in pairs]
    assert found["library"].startswith("7f454c46")
    assert found["library"].endswith("b700")  # EM_AARCH64
    receipt["row_store"] = {"compiled_seconds": found["compiled"], "rows": len(ids)}


KERNEL = "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\n"
MAIN = 'extern "C" int cuInit(unsigned); extern "C" int both() { return cuInit(0); }\n'


def test_its_compiler_of_cuda_makes_a_kernel_for_the_spark(
    asking: Asking, receipt: dict[str, Any]
) -> None:
    """For sm_121a, linked as FlashInfer links: from lib64 and the stubs beside it."""
    (asking.scratch / "cache" / "k.cu").write_text(KERNEL + MAIN)
    home = asking.image.env["CUDA_HOME"]
    words = [
        "cd /cache",
        "nvcc -gencode=arch=compute_121a,code=sm_121a -Xcompiler -fPIC -c k.cu -o k.o",
        f"c++ -shared k.o -L{home}/lib64 -L{home}/lib64/stubs -lcudart -lcuda -o k.so",
    ]
    began = time.monotonic()
    asking.run("/bin/sh", "-c", " && ".join(words), env={})
    receipt["nvcc_seconds"] = round(time.monotonic() - began, 1)
    assert "libcudart.so.13" in needed(asking.scratch / "cache" / "k.so")


def test_a_library_that_calls_the_driver_names_it(asking: Asking) -> None:
    """The library above calls cuInit. Debian's g++ names a library for what it defines alone."""
    assert "libcuda.so.1" in needed(asking.scratch / "cache" / "k.so")


def test_modules_built_ahead_are_flashinfers_own_and_load_without_a_compiler(
    asking: Asking, receipt: dict[str, Any]
) -> None:
    """Those of the layer `aot`, each by the build file that FlashInfer writes today."""
    listed = json.loads((KERNELS / "modules.json").read_text())["modules"]
    generators = {one["name"]: one["generator"] for one in listed if one["built"]}
    inside = f"{SITE}/flashinfer/data/aot"
    folder = only("aot", fetched("image-tp3.ahead"), asking.scratch / "aot") / inside
    assert sorted(path.name for path in folder.iterdir()) == sorted(generators)
    place = f"{folder}:/{inside}:ro"
    env = {"FLASHINFER_CUDA_ARCH_LIST": "12.1a"}
    question = {"ninja_files": generators, "kernels": generators}
    found = asking.ask("engine.py", question, place, env=env)
    receipt["kernels"] = found["kernels"]
    written = {name: (KERNELS / f"{name}.ninja").read_text() for name in generators}
    assert found["ninja_files"].get("found") == written
    assert {n: one["loaded"] for n, one in found["kernels"]["found"].items()} == dict.fromkeys(
        generators, True
    )
    receipt["kernels"]["bytes"] = {
        name: (folder / name / f"{name}.so").stat().st_size for name in generators
    }
