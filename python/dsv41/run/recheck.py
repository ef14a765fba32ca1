"""What a rank looks at on its own machine before each round; every refusal says what mends it.

Needs no compiled module and no package: nodes run this from an archive.
"""

from __future__ import annotations

import hashlib
import re
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dsv41 import __version__
from dsv41.engines.container import ROWS
from dsv41.errors import EngineFailed, Unsafe
from dsv41.geometry import REAL_ENGRAM
from dsv41.plan import LOCAL, Plan, Rank
from dsv41.run import read_plan
from dsv41.switches import SWITCHES

GIB = 2**30
MEMINFO = Path("/proc/meminfo")
PAGE = 4096
# items of the ledger that are not the engine's: MemAvailable is what is left beside them
NOT_OURS = frozenset({"system", "reserve"})
SWAP_BELOW = 10 * GIB  # as doctor has it: with less room than this, loading needs swap (P06)
_ROW_FILE = re.compile(r"engram-l(\d{1,3})-r(\d{1,3})of(\d{1,3})-([\w-]{1,31})\.rows")
_KIB = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


def identity(plan: Plan, plan_file: Path | None) -> None:
    """Refuse another dsv41 (Unsafe D421), and a Plan file that changed (EngineFailed D421).

    The second ends the rank so that whoever starts it again takes the new Plan.
    """
    if plan.version is not None and plan.version != __version__:
        raise Unsafe(
            "D421",
            f"The Plan was made by dsv41 {plan.version}; this node has {__version__}.",
            fix=f"install dsv41 {plan.version} here, or make the Plan again with {__version__}",
        )
    if plan_file is None:
        return
    found = read_plan(plan_file).digest
    if found != plan.digest:
        raise EngineFailed(
            "D421",
            f"{plan_file} changed while the rank ran: expected {plan.digest}, found {found}.",
            fix="start the rank again, with the new Plan on every node",
        )


def tables(plan: Plan, rank: Rank) -> None:
    """Unsafe D421 unless every table on this machine has the digest that the Plan has for it."""
    sources = _sources(rank)
    for target, expected in plan.tables.items():
        path = sources.get(target)
        try:
            data = Path(path or "").read_bytes()
        except OSError as error:
            found = error.strerror or str(error)
        else:
            found = "sha256:" + hashlib.sha256(data).hexdigest()
        if found != expected:
            raise Unsafe(
                "D421",
                f"The table {path}: expected {expected}, found {found}.",
                fix="dsv41 serve, which sends the tables to every node",
            )


def keys(plan: Plan, rank: Rank) -> None:
    """Unsafe D420 when others than the owner can read the API keys that the head serves with."""
    if rank.rank or plan.api_key_file is None:
        return
    path = Path(plan.api_key_file)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise Unsafe(
            "D420",
            f"There is no key file at {path}: {error.strerror}.",
            fix="dsv41 serve sends it; or put it there with mode 0600",
        ) from error
    if mode & 0o077:
        raise Unsafe(
            "D420",
            f"{path} has mode {mode:04o}; expected 0600 or stricter.",
            fix=f"chmod 600 {path}",
        )


def rows(plan: Plan, rank: Rank, *, plan_file: Path | None) -> None:
    """Unsafe D423 unless this rank's row files are here, whole, and say that they are its own."""
    where = _rows(rank)
    if where is None:
        return
    folder, partition = where
    fix = f"dsv41 pack --plan {plan_file or 'PLAN'} --rank {rank.rank}"
    tp = len(plan.ranks)
    names = folder.glob(f"engram-l*-r{rank.rank}of{tp}-{partition}.rows")
    layers = {int(m[1]) for path in names if (m := _ROW_FILE.fullmatch(path.name))}
    wanted = layers if plan.engine == LOCAL and layers else set(REAL_ENGRAM.layer_ids)
    for layer in sorted(wanted):
        path = folder / f"engram-l{layer}-r{rank.rank}of{tp}-{partition}.rows"
        wrong = wrong_header(path, layer=layer, rank=rank.rank, tp=tp, partition=partition)
        if wrong:
            raise Unsafe("D423", f"{path}: {wrong}.", fix=fix)


def wrong_header(path: Path, *, layer: int, rank: int, tp: int, partition: str) -> str:
    """What is wrong with a row file as its first page and its size show it; empty when nothing.

    Layout: docs/reference/row-file.md.
    """
    try:
        with path.open("rb") as file:
            page, size = file.read(PAGE), file.seek(0, 2)
    except OSError as error:
        return error.strerror or str(error)
    return _wrong_page(page) or _wrong_content(page, size, layer, rank, tp, partition)


def _wrong_page(page: bytes) -> str:
    if len(page) < PAGE or page[:8] != b"DSV41ROW":
        return "expected a row file of version 1, found something else"
    version, crc = *struct.unpack_from("<I", page, 8), *struct.unpack_from("<I", page, 4092)
    if version != 1 or crc32c(page[:4092]) != crc:
        return "its header page is damaged or of another version than 1"
    return ""


def _wrong_content(page: bytes, size: int, *expected: int | str) -> str:
    pages, flags = struct.unpack_from("<QI", page, 64)
    partition = page[80:112].split(b"\0")[0].decode("ascii", "replace")
    found = (*struct.unpack_from("<3I", page, 16), partition)
    if not flags & 1:
        return "it is not finished"
    if size != PAGE * (1 + pages):
        return f"expected {PAGE * (1 + pages)} bytes, found {size}"
    if found != expected:
        return f"expected layer, rank, ranks, partition {_named(expected)}, found {_named(found)}"
    return ""


def crc32c(data: bytes) -> int:
    """The Castagnoli CRC of RFC 3720; for one page, so a bit at a time is fast enough (10 ms)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes of this machine: available to programs, and of swap."""

    available: int
    swap: int


def memory_here(meminfo: Path = MEMINFO) -> Memory:
    """What the kernel says now."""
    found = {name: int(kib) * 1024 for name, kib in _KIB.findall(meminfo.read_text())}
    return Memory(available=found.get("MemAvailable", 0), swap=found.get("SwapTotal", 0))


def needed(rank: Rank) -> int:
    """Bytes that the Plan's ledger gives to the engine; 0 without a ledger."""
    return sum(item.bytes for item in rank.ledger if item.item not in NOT_OURS)


def memory(rank: Rank, found: Memory, say: Callable[[str], None]) -> None:
    """EngineFailed D425 when the ledger does not fit; a word where swap would be missed."""
    need = needed(rank)
    if found.available < need:
        raise EngineFailed(
            "D425",
            f"{found.available / GIB:.1f} GiB are available, {need / GIB:.1f} GiB are needed.",
            fix="ps -eo rss,pid,comm --sort=-rss | head, then end what is not needed",
        )
    if need and not found.swap and found.available - need < SWAP_BELOW:
        room = (found.available - need) / GIB
        say(f"swap is off and {room:.1f} GiB are left: loading can meet the out-of-memory killer")


def _rows(rank: Rank) -> tuple[Path, str] | None:
    """Folder and partition of the rows of a rank; None where the Plan names none."""
    partition = rank.env.get(SWITCHES["engram_partition"].env) or _flag(rank, "--partition")
    folder = _sources(rank).get(ROWS) or (None if rank.container else _flag(rank, "--rows"))
    return (Path(folder), partition) if folder and partition else None


def _flag(rank: Rank, name: str) -> str | None:
    words = iter(rank.argv)
    return next((next(words, None) for word in words if word == name), None)


def _sources(rank: Rank) -> dict[str, str]:
    """Target -> source of the rank's mounts."""
    pairs = (mount.split(":") for mount in rank.mounts)
    return {target: source for source, target, *_ in pairs}


def _named(whole: tuple[object, ...]) -> str:
    return ", ".join(map(str, whole))


def before_round(
    plan: Plan, rank: Rank, *, plan_file: Path | None
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The checks of files, each with what it looks at, in the order of what they cost."""
    yield "the Plan", lambda: identity(plan, plan_file)
    yield "the key file", lambda: keys(plan, rank)
    yield "the tables", lambda: tables(plan, rank)
    yield "the rows", lambda: rows(plan, rank, plan_file=plan_file)
