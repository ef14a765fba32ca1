"""The package locks of the images, and what our own layer is made of."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.tags import Tag, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

import lock_packages

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "nix" / "images"
LOCAL = IMAGES / "local"
ARCHES = ("amd64", "arm64")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
HEX = re.compile(r"[0-9a-f]{64}")


def lock(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def wheels() -> list[Path]:
    return [
        *(LOCAL / f"wheels-{arch}.json" for arch in ARCHES),
        IMAGES / "recipe/wheels-arm64.json",
    ]


@pytest.mark.parametrize("file", wheels(), ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_every_locked_wheel_fits_its_image(file: Path) -> None:
    found = lock(file)
    machine, minor = MACHINES[found["arch"]], int(found["python"].split(".")[1])
    newest = int(found["glibc"].split(".")[1])
    platforms = [f"manylinux_2_{glibc}_{machine}" for glibc in range(newest, 16, -1)]
    platforms += [f"manylinux2014_{machine}"]
    fits = set(cpython_tags((3, minor), platforms=platforms))
    fits |= {tag for p in ("py3", f"py3{minor}", "py2") for tag in _pure(p, platforms)}
    for entry in found["wheels"]:
        name, version, _, tags = parse_wheel_filename(entry["file"])
        assert name == canonicalize_name(entry["name"])
        assert str(version) == entry["version"]
        assert tags & fits, entry["file"]
        assert HEX.fullmatch(entry["sha256"])
        assert entry["size"] > 0


def _pure(python: str, platforms: list[str]) -> set[Tag]:
    return {Tag(python, "none", platform) for platform in [*platforms, "any"]}


@pytest.mark.parametrize("arch", ARCHES)
def test_the_local_image_has_what_the_local_extra_wants(arch: str) -> None:
    found = {e["name"]: e["version"] for e in lock(LOCAL / f"wheels-{arch}.json")["wheels"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["optional-dependencies"]["local"]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(found[canonicalize_name(wanted.name)])
    # the versions that the tests run with
    poetry = tomllib.loads((ROOT / "poetry.lock").read_text())["package"]
    locked = {package["name"]: package["version"] for package in poetry}
    assert {n: v for n, v in found.items() if n in locked} == {
        n: v for n, v in locked.items() if n in found
    }
    assert not [name for name in found if name.startswith(("nvidia", "cuda", "triton"))]


def test_torch_is_the_one_for_cpus() -> None:
    found = {
        arch: next(e for e in lock(LOCAL / f"wheels-{arch}.json")["wheels"] if e["name"] == "torch")
        for arch in ARCHES
    }
    assert found["amd64"]["version"] == "2.13.0+cpu"
    assert found["arm64"]["version"] == "2.10.0"


def test_the_recipe_has_its_two_wheels() -> None:
    found = {e["name"]: e["version"] for e in lock(IMAGES / "recipe/wheels-arm64.json")["wheels"]}
    assert found == {"sglang-kernel": "0.4.7", "sgl-deep-gemm": "0.2.0"}


@pytest.mark.parametrize("arch", ARCHES)
def test_debian_packages_are_named_by_file_and_hash(arch: str) -> None:
    found = lock(LOCAL / f"debs-{arch}.json")
    assert (found["suite"], found["arch"]) == ("bookworm", arch)
    assert re.fullmatch(r"20\d{6}T\d{6}Z", found["snapshot"])
    names = [package["name"] for package in found["packages"]]
    assert names == sorted(set(names))
    assert set((LOCAL / "debs.txt").read_text().split()) <= set(names)
    for package in found["packages"]:
        version = package["version"].partition(":")[2] or package["version"]
        file = package["file"]
        assert file.startswith("pool/main/")
        assert re.fullmatch(
            rf"{re.escape(package['name'])}_{re.escape(version)}_({arch}|all)\.deb",
            file.rpartition("/")[2],
        )
        assert HEX.fullmatch(package["sha256"])
        assert package["size"] > 0


def test_both_machines_have_the_same_debian_packages() -> None:
    """Up to what is named after the machine."""

    def names(arch: str) -> set[str]:
        found = {p["name"] for p in lock(LOCAL / f"debs-{arch}.json")["packages"]}
        return {re.sub(r"-(x86-64|aarch64)-linux-gnu", "", name) for name in found}

    # sanitizers and libquadmath exist on some machines alone
    assert {n for n in names("amd64") ^ names("arm64") if not n.startswith("lib")} == set()


def test_no_lock_names_an_address() -> None:
    for file in IMAGES.rglob("*.json"):
        assert "://" not in file.read_text(), file


def test_every_locked_layer_is_listed() -> None:
    listed = lock(LOCAL / "layers.json")
    assert set(listed) == set(ARCHES)
    assert all(set(layers) == {"root", "torch", "python"} for layers in listed.values())
    kernels = lock(IMAGES / "recipe" / "layers.json")
    assert set(kernels) == {"kernels"}
    for entry in (*listed["amd64"].values(), *listed["arm64"].values(), *kernels.values()):
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", entry["diff_id"])
        assert entry["size"] % 512 == 0


def test_a_locked_deb_is_read_from_what_apt_shows() -> None:
    shown = (
        "Package: libgmp10\nArchitecture: arm64\nVersion: 2:6.2.1+dfsg1-1.1\n"
        "Filename: pool/main/g/gmp/libgmp10_6.2.1+dfsg1-1.1_arm64.deb\nSize: 9\n"
        "Description: multi\n more: words\nSHA256: 00ff\n"
    )
    assert lock_packages._deb(shown) == {
        "name": "libgmp10",
        "version": "2:6.2.1+dfsg1-1.1",
        "file": "pool/main/g/gmp/libgmp10_6.2.1+dfsg1-1.1_arm64.deb",
        "sha256": "00ff",
        "size": 9,
    }


# our own layer


def inside() -> set[str]:
    """Modules that nix/images/ours.nix puts into images."""
    text = (IMAGES / "ours.nix").read_text()
    (block,) = re.findall(r"python/dsv41/\$\{name\}\"\) \[(.*?)\]", text, re.DOTALL)
    package = ROOT / "python" / "dsv41"
    found = set()
    for name in re.findall(r'"([^"]+)"', block):
        path = package / name
        assert path.exists(), name
        files = [path] if path.is_file() else path.rglob("*.py")
        for file in files:
            if file.suffix == ".py":
                dotted = ".".join(("dsv41", *file.relative_to(package).with_suffix("").parts))
                found.add(dotted.removesuffix(".__init__"))
    return found


def imported(module: str) -> set[str]:
    """Every module of dsv41 that a module names, at its top or in a function."""
    parts = module.split(".")[1:]
    path = (ROOT / "python" / "dsv41").joinpath(*parts)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("dsv41.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dsv41":
            base = str(node.module)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                at = ROOT.joinpath("python", *inner.split("."))
                found.add(inner if at.is_dir() or at.with_suffix(".py").exists() else base)
    return found


def test_our_layer_has_all_that_it_imports_and_nothing_of_the_operator() -> None:
    modules = inside()
    assert {"dsv41.local.rank", "dsv41.adapters.table", "dsv41.rows.build"} <= modules
    missing = {(m, i) for m in modules for i in imported(m) if i not in modules}
    assert not missing
    tops = {module.split(".")[1] for module in modules if "." in module}
    assert not tops & {"plan", "pins", "profile", "profiles", "digests", "cli", "run", "fleet"}
