"""The package locks of the engine images, in nix/images/engine, and what they must be.

A lock is JSON without addresses: of wheels `python`, `glibc`, `arch`, `until` (nothing uploaded
later was looked at) and per wheel `name`, `version`, `file`, `sha256` (hex), `size` (bytes); of
Debian packages `suite`, `arch`, `snapshot` and the same fields, `file` being the path in the
archive. `contents-ENGINE.json` is what nix/images/tools/wheel_contents.py read of those wheels.
Tags, names and requirements are those of the Python Packaging User Guide's specifications, judged
by `packaging`, which the development environment has.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from dsv41.errors import UsageError

FOLDER = Path("nix/images/engine")
ENGINES = ("sglang", "vllm")
DEBS, DEB_NAMES, COLLISIONS = "debs-arm64.json", "debs.txt", "collisions.json"
MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}

# versions that are CUDA's own, so that compiler and headers can be compared by them
_CUDA = re.compile(
    r"nvidia-(cuda-(cccl|crt|cupti|nvcc|nvrtc|profiler-api|runtime)|nv(vm|jitlink|tx))"
)
_CUDA_PYTHON = ("cuda-bindings", "cuda-python")
_HEX = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_FIELDS = {"name": str, "version": str, "file": str, "sha256": str, "size": int}


def wheels_file(engine: str) -> str:
    """The name of an engine's wheel lock."""
    return f"wheels-{engine}-arm64.json"


def contents_file(engine: str) -> str:
    """The name of what was read of those wheels."""
    return f"contents-{engine}.json"


def requirements_file(engine: str) -> str:
    """The name of the list that the lock is resolved from."""
    return f"requirements-{engine}.txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What is wrong with a lock: its code, the file, one sentence."""

    code: str
    lock: str
    says: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Locks:
    """Everything of the folder, parsed. Keys of `wheels`, `contents` and `listed` are engines.

    `listed` holds the requirement lines, `names` the Debian packages asked for, `rules` a path that
    several wheels bring -> the distribution that has it, or None: left out.
    """

    wheels: Mapping[str, Mapping[str, Any]]
    contents: Mapping[str, Mapping[str, Any]]
    listed: Mapping[str, tuple[Requirement, ...]]
    debs: Mapping[str, Any]
    names: tuple[str, ...]
    rules: Mapping[str, str | None]


def read(folder: Path) -> Locks:
    """The locks of a folder.

    Raises UsageError D195 when a file is not there or has another form than the module says.
    """
    return Locks(
        wheels={e: _lock(folder / wheels_file(e), "wheels") for e in ENGINES},
        contents={e: _json(folder / contents_file(e)) for e in ENGINES},
        listed={e: tuple(map(Requirement, _lines(folder / requirements_file(e)))) for e in ENGINES},
        debs=_lock(folder / DEBS, "packages"),
        names=tuple(_lines(folder / DEB_NAMES)),
        rules=_json(folder / COLLISIONS),
    )


def _lines(file: Path) -> list[str]:
    """A list's entries, without the reasons behind them."""
    lines = (line.partition("#")[0].strip() for line in _text(file).splitlines())
    return [line for line in lines if line]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise _malformed(file.name, f"cannot be read ({error.strerror})") from error


def _json(file: Path) -> dict[str, Any]:
    text = _text(file)
    if "://" in text:
        raise _malformed(file.name, "names an address; a lock has none")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _malformed(file.name, f"is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise _malformed(file.name, f"is a {type(found).__name__}, not an object")
    return found


def _lock(file: Path, kind: str) -> dict[str, Any]:
    found = _json(file)
    keys = {
        "wheels": ("python", "glibc", "arch", "until"),
        "packages": ("suite", "arch", "snapshot"),
    }
    if set(found) != {*keys[kind], kind} or not isinstance(found[kind], list):
        raise _malformed(file.name, f"has {sorted(found)}, not {[*keys[kind], kind]}")
    if found["arch"] not in MACHINES:
        raise _malformed(file.name, f"is for {found['arch']!r}, not one of {list(MACHINES)}")
    if kind == "wheels" and not _TIME.fullmatch(str(found["until"])):
        raise _malformed(file.name, f"is of {found['until']!r}, not YYYY-MM-DDTHH:MM:SSZ")
    for entry in found[kind]:
        _check_entry(file.name, entry)
    names = [entry["name"] for entry in found[kind]]
    if names != sorted(set(names)):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise _malformed(file.name, f"has {twice} twice" if twice else "is not sorted by name")
    return found


def _check_entry(lock: str, entry: Any) -> None:
    if not isinstance(entry, dict) or {k: type(v) for k, v in entry.items()} != _FIELDS:
        raise _malformed(lock, f"has {entry!r}, not the fields {list(_FIELDS)}")
    if not _HEX.fullmatch(entry["sha256"]) or entry["size"] <= 0:
        raise _malformed(lock, f"has no SHA-256 of 64 hex digits or no size of {entry['name']}")


def _malformed(lock: str, says: str) -> UsageError:
    return UsageError(
        "D195", f"{lock} {says}.", fix="take the committed one, or: dsv41 lock-engine"
    )


def problems(locks: Locks) -> tuple[Problem, ...]:
    """All that is wrong, by lock: D196 what does not fit the image, D197 what does not agree."""
    return (
        *(p for engine in ENGINES for p in _of_wheels(engine, locks)),
        *_of_debs(locks),
        *_of_roots(locks),
    )


def _of_wheels(engine: str, locks: Locks) -> Iterator[Problem]:
    lock, where = locks.wheels[engine], wheels_file(engine)
    fits = tags(lock["python"], lock["glibc"], MACHINES[lock["arch"]])
    for entry in lock["wheels"]:
        for says in _misfit(entry, fits):
            yield Problem(code="D196", lock=where, says=says)
    versions = {entry["name"]: entry["version"] for entry in lock["wheels"]}
    said = locks.contents[engine]
    says_all = (
        *_unmet("the requirement list", locks.listed[engine], versions, lock),
        *(
            says
            for root, lines in said["requires"].items()
            for says in _unmet(
                f"{root} {versions.get(root)}", map(Requirement, lines), versions, lock
            )
        ),
        *_cuda(versions, said["requires"].get("torch", [])),
        *_unruled(said["twice"], locks.rules),
    )
    yield from (Problem(code="D197", lock=where, says=says) for says in says_all)


@functools.cache
def tags(python: str, glibc: str, machine: str) -> frozenset[Tag]:
    """All wheel tags that a Python of a machine takes, whose libc is glibc of this version."""
    minor, newest = int(python.split(".")[1]), int(glibc.split(".")[1])
    # manylinux2014 is 2_17, the oldest glibc that any aarch64 wheel is for (PEP 599)
    platforms = [f"manylinux_2_{one}_{machine}" for one in range(newest, 16, -1)]
    platforms.append(f"manylinux2014_{machine}")
    version = (3, minor)
    own = cpython_tags(version, platforms=platforms)
    return frozenset(own) | frozenset(compatible_tags(version, f"cp3{minor}", platforms))


def _misfit(entry: Mapping[str, Any], fits: frozenset[Tag]) -> Iterator[str]:
    file = entry["file"]
    try:
        name, version, _, found = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        yield f"{error}"
        return
    if (name, str(version)) != (canonicalize_name(entry["name"]), entry["version"]):
        yield f"{file} is listed as {entry['name']} {entry['version']}"
    if not found & fits:
        yield f"{file} does not fit: none of its tags is one of the image's"


def _unmet(
    who: str, wanted: Any, versions: Mapping[str, str], lock: Mapping[str, Any]
) -> Iterator[str]:
    """What `who` requires in the image and the lock has not."""
    image = {
        "python_version": lock["python"],
        "python_full_version": f"{lock['python']}.0",
        "platform_machine": MACHINES[lock["arch"]],
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    for one in wanted:
        if one.marker is not None and not one.marker.evaluate(image):
            continue
        have = versions.get(canonicalize_name(one.name))
        if have is None or not one.specifier.contains(have, prereleases=True):
            yield f"{who} requires {one.name}{one.specifier}, and the lock has {have}"


def _cuda(versions: Mapping[str, str], torch: list[str]) -> Iterator[str]:
    """CUDA of compiler, headers and run time: of the minor version that torch was built for."""
    wanted = (Requirement(line) for line in torch)
    pins = [str(one.specifier)[2:] for one in wanted if one.name == "cuda-toolkit"]
    if len(pins) != 1:
        yield "torch does not say which cuda-toolkit it was built for"
        return
    minor = _minor(pins[0])
    for name, version in versions.items():
        if _CUDA.fullmatch(name) and _minor(version) != minor:
            yield f"{name} {version} is not of CUDA {minor}, which torch was built for"
        if name in _CUDA_PYTHON and version.split(".")[0] != minor.split(".")[0]:
            yield f"{name} {version} binds another CUDA than torch's {minor}"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _unruled(twice: Any, rules: Mapping[str, str | None]) -> Iterator[str]:
    for found in twice:
        path, owners = found["path"], found["owners"]
        if path not in rules:
            yield f"{path} comes from {' and '.join(owners)}, and {COLLISIONS} has no rule for it"
        elif rules[path] not in (None, *owners):
            yield f"{COLLISIONS} gives {path} to {rules[path]}, not to one of {', '.join(owners)}"


def _of_debs(locks: Locks) -> Iterator[Problem]:
    arch, packages = locks.debs["arch"], locks.debs["packages"]
    for package in packages:
        version = package["version"].partition(":")[2] or package["version"]
        file = rf"pool/main/.+/{re.escape(package['name'])}_{re.escape(version)}_({arch}|all)\.deb"
        if not re.fullmatch(file, package["file"]):
            says = (
                f"{package['file']} is listed as {package['name']} {package['version']} for {arch}"
            )
            yield Problem(code="D196", lock=DEBS, says=says)
    for name in sorted(set(locks.names) - {package["name"] for package in packages}):
        yield Problem(
            code="D197", lock=DEBS, says=f"{DEB_NAMES} asks for {name}, which is not locked"
        )


def _of_roots(locks: Locks) -> Iterator[Problem]:
    """One root carries all images: its architecture, Python and glibc are those of the wheels."""
    debs = {package["name"]: package["version"] for package in locks.debs["packages"]}
    for engine, lock in locks.wheels.items():
        python, glibc = f"python{lock['python']}", debs.get("libc6", "").split("-")[0]
        if lock["arch"] != locks.debs["arch"] or python not in debs or glibc != lock["glibc"]:
            root = f"{locks.debs['arch']} with glibc {glibc or 'none'}"
            says = f"is for {lock['arch']}, {python} and glibc {lock['glibc']}; the root is {root}"
            yield Problem(code="D196", lock=wheels_file(engine), says=says)
