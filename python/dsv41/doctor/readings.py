"""The texts of the simple probes as values; NoEvidence when nothing in them can be read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsv41.doctor.check import Case, NoEvidence

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {"k": KIB, "m": MIB, "g": GIB}
_MEMINFO = re.compile(r"^([A-Za-z_()0-9]{1,40}):\s+(\d{1,15})(?: kB)?\s*$", re.MULTILINE)
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s?([KMGkmg])i?[Bb]\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """/proc/meminfo in bytes; None for a line that is not there."""

    total: int
    free: int
    available: int
    cma_total: int | None
    cma_free: int | None
    swap_total: int | None


def memory(case: Case) -> Memory:
    """The memory of a node."""
    found = {name: int(value) * KIB for name, value in _MEMINFO.findall(case.text("meminfo"))}
    try:
        total, free, available = (found[name] for name in ("MemTotal", "MemFree", "MemAvailable"))
    except KeyError as missing:
        raise NoEvidence(f"meminfo has no line {missing.args[0]}") from missing
    return Memory(
        total=total,
        free=free,
        available=available,
        cma_total=found.get("CmaTotal"),
        cma_free=found.get("CmaFree"),
        swap_total=found.get("SwapTotal"),
    )


def gib(number: float) -> str:
    """A number of bytes as people read it."""
    return f"{number / GIB:.1f} GiB"


def sizes(text: str) -> list[int]:
    """The sizes with a unit in a text, in bytes (binary units)."""
    return [int(float(n) * _UNITS[unit.lower()]) for n, unit in _SIZE.findall(text)]


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """uname: system, kernel release with its first two numbers, machine."""

    system: str
    release: str
    version: tuple[int, int]
    machine: str


def system(case: Case) -> System:
    """What `uname -srm` says."""
    words = case.text("uname").split()
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", words[1]) if len(words) > 2 else None
    if numbers is None:
        raise NoEvidence("uname has not system, release and machine")
    version = (int(numbers[1]), int(numbers[2]))
    return System(system=words[0], release=words[1], version=version, machine=words[-1])


def swap_bytes(case: Case) -> int:
    """The swap that is on, in bytes: /proc/swaps has one line a device after its header."""
    rows = [line.split() for line in case.text("swaps").splitlines()[1:]]
    return sum(int(row[2]) * KIB for row in rows if len(row) > 2 and _is_number(row[2]))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One process that has the GPU; bytes None where nvidia-smi cannot say."""

    pid: int
    name: str
    bytes: int | None


def gpu_processes(case: Case) -> tuple[Process, ...]:
    """The rows of compute-apps: pid, name and memory, or pid and memory."""
    found = []
    for line in case.text("compute-apps").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if not _is_number(fields[0]):
            continue
        used = sizes(fields[-1])
        name = ",".join(fields[1:-1]) if len(fields) > 2 else "a process without a name"
        found.append(Process(pid=int(fields[0]), name=name, bytes=used[0] if used else None))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSystem:
    """One line of df, in bytes."""

    source: str
    kind: str
    size: int
    available: int
    target: str


def file_systems(case: Case) -> tuple[FileSystem, ...]:
    """The file systems of the model and the rows folder, in this order."""
    found = []
    for line in case.text("disk").splitlines():
        words = line.split()
        if len(words) < 5 or not (_is_number(words[2]) and _is_number(words[3])):
            continue
        source, kind, size, available, target = *words[:4], " ".join(words[4:])
        found.append(
            FileSystem(
                source=source, kind=kind, size=int(size), available=int(available), target=target
            )
        )
    if not found:
        raise NoEvidence("disk has no line of df")
    return tuple(found)


def file_system_of(case: Case, folder: str) -> FileSystem:
    """The file system that holds a folder: the longest mount point above it, else by place."""
    found = file_systems(case)
    above = [fs for fs in found if _is_above(fs.target, folder)]
    if above:
        return max(above, key=lambda fs: len(fs.target))
    return found[0] if folder == case.node.model_dir else found[-1]


def _is_above(target: str, folder: str) -> bool:
    return folder == target or folder.startswith(target.rstrip("/") + "/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One file of a listing: bytes, and kind (file, link, broken-link, incomplete)."""

    size: int
    kind: str


def listing(case: Case, probe: str) -> dict[str, Entry]:
    """The files of a folder by their names below it; lines that are none are left out."""
    found = {}
    for line in case.text(probe).splitlines():
        fields = line.split("\t")
        if len(fields) == 3 and _is_number(fields[1].strip()):
            found[fields[0]] = Entry(size=int(fields[1]), kind=fields[2].strip())
    return found


def pairs(case: Case, probe: str) -> dict[str, str]:
    """The lines `name<TAB>value` of a probe; an empty value is left out."""
    rows = (line.partition("\t") for line in case.text(probe).splitlines())
    return {name: value.strip() for name, tab, value in rows if tab and value.strip()}
