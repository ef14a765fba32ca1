"""The package locks of the engine images: their form, and that they hold together."""

from __future__ import annotations

import re
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dsv41 import engine_lock
from dsv41.errors import UsageError
from engine_locks import FOLDER, ROOT, copied, edit, newer, rename, wheel

LOCKS = engine_lock.read(FOLDER)
WHEELS = {engine: lock["wheels"] for engine, lock in LOCKS.wheels.items()}
VERSIONS = {engine: {w["name"]: w["version"] for w in all_} for engine, all_ in WHEELS.items()}
both = pytest.mark.parametrize("engine", engine_lock.ENGINES)


def test_the_committed_locks_hold_together() -> None:
    assert engine_lock.problems(LOCKS) == ()
    assert {e: len(found) for e, found in WHEELS.items()} == {"sglang": 210, "vllm": 198}


@both
def test_file_names_split_and_fit(engine: str) -> None:
    """By another reading than the module's: the five fields of a wheel's name (PEP 427)."""
    lock = LOCKS.wheels[engine]
    assert (lock["python"], lock["glibc"], lock["arch"]) == ("3.11", "2.36", "arm64")
    for one in WHEELS[engine]:
        stem, version, python, abi, platform = one["file"].removesuffix(".whl").split("-")
        assert re.sub(r"[-_.]+", "-", stem).lower() == one["name"]
        assert version == one["version"]
        pure = re.fullmatch(r"(py2\.)?py3(\d+)?", python)
        stable = re.fullmatch(r"cp3(\d+)", python)
        assert (abi == "none" and pure) or (abi in ("cp311", "abi3") and stable), one["file"]
        assert int((stable or pure)[1 if stable else 2] or 0) <= 11  # type: ignore[index]
        assert abi != "cp311" or python == "cp311"
        glibcs = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_aarch64", platform)]
        assert platform == "any" or "manylinux2014_aarch64" in platform or min(glibcs) <= 36
        assert "x86_64" not in platform


@both
def test_compiler_and_headers_are_of_one_cuda(engine: str) -> None:
    """FlashInfer compiles nothing where nvcc is newer than the headers (CCCL compares them)."""
    have = VERSIONS[engine]
    names = ("nvcc", "crt", "runtime", "nvrtc", "cccl", "cupti")
    cuda = [f"nvidia-cuda-{name}" for name in names] + ["nvidia-nvvm", "nvidia-nvjitlink"]
    assert {have[name].rsplit(".", 1)[0] for name in cuda} == {"13.0"}
    assert have["cuda-toolkit"].startswith("13.0.")
    assert have["cuda-python"] == have["cuda-bindings"] == "13.4.4"


@pytest.mark.parametrize(
    ("engine", "root", "pins"),
    [
        ("sglang", "sglang", ["torch==2.14.1", "transformers==5.19.0", "sglang-kernel==0.4.10"]),
        ("sglang", "sglang", ["nvidia-cutlass-dsl[cu13]==4.8.0", "flashinfer_python[cu13]==0.7.2"]),
        ("vllm", "vllm", ["torch==2.14.0", "flashinfer-python==0.7.2.post1", "xgrammar==0.2.8"]),
        ("vllm", "torch", ["nvidia-nccl-cu13==2.30.7", "triton~=3.8.0"]),
    ],
)
def test_pins_are_those_of_the_engines_metadata(engine: str, root: str, pins: list[str]) -> None:
    said = [line.partition(";")[0] for line in LOCKS.contents[engine]["requires"][root]]
    for pin in pins:
        wanted = Requirement(pin)
        assert pin in said
        assert wanted.specifier.contains(VERSIONS[engine][canonicalize_name(wanted.name)])


def test_what_sglang_requires_is_what_its_wheel_says() -> None:
    """The copy in the lock, against the metadata of the installed release."""
    found = list(
        ROOT.glob(".cache/engines/sglang-0.5.23/lib/python3*/site-packages/sglang-0.5.23.dist-info")
    )
    if not found:
        pytest.skip("SGLang is not installed; scripts/setup-engines.sh gets it")
    metadata = HeaderParser().parsestr((found[0] / "METADATA").read_text())
    assert metadata.get_all("Requires-Dist") == LOCKS.contents["sglang"]["requires"]["sglang"]


def test_known_collisions_are_ruled_and_no_others() -> None:
    twice = {e: {f["path"]: f["owners"] for f in c["twice"]} for e, c in LOCKS.contents.items()}
    backend = {"build_backend.py": ["flashinfer-python", "torch-c-dlpack-ext"]}
    assert twice["sglang"] == {"b12x/__init__.py": ["b12x", "flashinfer-python"], **backend}
    assert twice["vllm"] == backend
    assert LOCKS.rules == {"b12x/__init__.py": "b12x", "build_backend.py": None}


def test_every_pin_and_package_has_its_reason() -> None:
    for file in (*map(engine_lock.requirements_file, engine_lock.ENGINES), "debs.txt"):
        for line in (FOLDER / file).read_text().splitlines():
            plain = file == "debs.txt" and line in ("coreutils", "python3.11")
            assert not line or plain or re.search(r"# .{8,}", line), line


def test_the_root_has_what_is_compiled_against() -> None:
    names = {package["name"] for package in LOCKS.debs["packages"]}
    assert {
        "g++-12",
        "libpython3.11-dev",
        "libibverbs-dev",
        "ibverbs-providers",
        "libc-bin",
    } <= names
    assert not [name for name in names if "x86" in name]


def test_no_file_of_the_folder_names_an_address() -> None:
    assert not [f for f in FOLDER.iterdir() if "://" in f.read_text()]


# what is refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied(tmp_path)


FORM: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda lock: wheel(lock, "torch").update(sha256="0" * 63), "64 hex digits"),
    (lambda lock: wheel(lock, "torch").update(size=0), "no size of torch"),
    (lambda lock: wheel(lock, "torch").update(url="torch"), "not the fields"),
    (lambda lock: wheel(lock, "torch").update(file="https://example.invalid/torch"), "an address"),
    (lambda lock: lock["wheels"].append(lock["wheels"][-1]), "['zstandard'] twice"),
    (lambda lock: lock["wheels"].reverse(), "not sorted"),
    (lambda lock: lock.update(until="yesterday"), "'yesterday'"),
    (lambda lock: lock.pop("glibc"), "'glibc'"),
    (lambda lock: lock.update(arch="riscv64"), "'riscv64'"),
]


@pytest.mark.parametrize(("change", "says"), FORM, ids=[says for _, says in FORM])
def test_a_lock_of_another_form_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    edit(folder / "wheels-sglang-arm64.json", change)
    with pytest.raises(UsageError, match=r"^D195 wheels-sglang-arm64\.json ") as refused:
        engine_lock.read(folder)
    assert says in str(refused.value)


MISFITS: list[tuple[Callable[[dict[str, Any]], object], str, str]] = [
    (lambda w: rename(w, "torch", "aarch64", "x86_64"), "D196", "x86_64.whl does not fit"),
    (lambda w: rename(w, "torch", "cp311-", "cp312-"), "D196", "28_aarch64.whl does not fit"),
    (lambda w: rename(w, "torch", "2_28", "2_39"), "D196", "39_aarch64.whl does not fit"),
    (lambda w: rename(w, "torch", "torch-2.14.1", "torch-2.14.0"), "D196", "as torch 2.14.1"),
    (lambda w: rename(w, "torch", ".whl", ".zip"), "D196", "Invalid wheel filename"),
    (lambda w: newer(w, "nvidia-cuda-nvcc", "13.5.37"), "D197", "13.5.37 is not of CUDA 13.0"),
    (lambda w: newer(w, "cuda-python", "12.6.2.post1"), "D197", "binds another CUDA"),
    (lambda w: newer(w, "transformers", "5.20.2"), "D197", "requires transformers==5.19.0"),
    (lambda w: w["wheels"].remove(wheel(w, "xgrammar")), "D197", "==0.2.7, and the lock has None"),
    (lambda w: newer(w, "b12x", "1.5.2"), "D197", "the requirement list requires b12x==1.5.1"),
    (lambda w: w.update(glibc="2.39"), "D196", "the root is arm64 with glibc 2.36"),
]


@pytest.mark.parametrize(("change", "code", "says"), MISFITS, ids=[says for _, _, says in MISFITS])
def test_what_does_not_fit_or_agree_is_found(
    folder: Path, change: Callable[[dict[str, Any]], object], code: str, says: str
) -> None:
    edit(folder / "wheels-sglang-arm64.json", change)
    found = engine_lock.problems(engine_lock.read(folder))
    assert [p for p in found if p.code == code and says in p.says], found
    assert {p.lock for p in found} == {"wheels-sglang-arm64.json"}


def test_a_new_collision_needs_a_rule(folder: Path) -> None:
    new = {"path": "six.py", "owners": ["six", "seven"]}
    edit(folder / "contents-vllm.json", lambda contents: contents["twice"].append(new))
    edit(folder / "collisions.json", lambda rules: rules.update({"b12x/__init__.py": "torch"}))
    found = [p.says for p in engine_lock.problems(engine_lock.read(folder))]
    assert found == [
        "collisions.json gives b12x/__init__.py to torch, not to one of b12x, flashinfer-python",
        "six.py comes from six and seven, and collisions.json has no rule for it",
    ]


def test_a_deb_of_another_name_and_one_that_is_missing_are_found(folder: Path) -> None:
    def damage(lock: dict[str, Any]) -> None:
        lock["packages"][0]["file"] = lock["packages"][0]["file"].replace("_arm64", "_amd64")
        lock["packages"][0]["file"] = lock["packages"][0]["file"].replace("_all", "_amd64")
        lock["packages"] = [p for p in lock["packages"] if p["name"] != "libnuma1"]

    edit(folder / "debs-arm64.json", damage)
    found = engine_lock.problems(engine_lock.read(folder))
    assert [(p.code, p.lock) for p in found] == [
        ("D196", "debs-arm64.json"),
        ("D197", "debs-arm64.json"),
    ]
    assert "asks for libnuma1" in found[1].says
