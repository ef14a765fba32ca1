"""Engram rows on disk: pack them from a checkpoint, verify, inspect and open them.

The work is done by the `dsv41_rows` extension (csrc/), whose header
`csrc/include/dsv41_rows/row_store.hpp` describes the file format. Here is what surrounds it: where
the tensors of a checkpoint are, how files are called, and which error says what to do.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed, Error, UsageError
from dsv41.geometry import partition as cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import ModuleType

    from dsv41_rows import RowStore

    from dsv41.geometry import Engram, Shard

INDEX = "model.safetensors.index.json"
# What `hf download --local-dir` leaves beside each file: commit, etag and time, one a line.
DOWNLOAD_RECORD = f".cache/huggingface/download/{INDEX}.metadata"

_PACK_AGAIN = "run `dsv41 pack` for this rank and checkpoint"
# Kind of a RowsError -> the error that a person sees.
_ERRORS: dict[str, tuple[type[Error], str, str]] = {
    "argument": (UsageError, "D020", "correct the value that the message names"),
    "mismatch": (CheckFailed, "D021", f"{_PACK_AGAIN}, or point at the right folder"),
    "malformed": (CheckFailed, "D022", "check the path; `dsv41 rows import` reads upstream shards"),
    "truncated": (CheckFailed, "D023", _PACK_AGAIN),
    "unfinished": (CheckFailed, "D023", _PACK_AGAIN),
    "corrupt": (CheckFailed, "D024", f"check the drive, then {_PACK_AGAIN}"),
    "io": (Error, "D025", "check path, permissions and the kernel log"),
    "space": (Error, "D026", "free space or choose another folder, then run `dsv41 pack` again"),
    "busy": (Error, "D027", "wait for the other packer, or end it first"),
    "range": (UsageError, "D020", "correct the row id that the message names"),
    "unsupported": (UsageError, "D031", "use --row-engine auto"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The table that a row file was packed from.

    `digest` is the SHA-256 over header hash, sample hash, sizes and offsets; `revision` may be
    empty.
    """

    file: str
    revision: str
    rows: int
    file_bytes: int
    weight_offset: int
    scale_offset: int
    header_sha256: str
    sample_sha256: str
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Header page of a row file; `ranges` holds (lo, hi, base) triples of rows."""

    version: int
    layer: int
    rank: int
    tp: int
    partition: str
    total_rows: int
    local_rows: int
    page_count: int
    file_bytes: int
    complete: bool
    packer: str
    ranges: tuple[tuple[int, int, int], ...]
    source: Source
    data_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One finding of `verify`; page and row are -1 where they do not apply, row is a global id."""

    page: int
    row: int
    says: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What `verify` found in one file; `problems` are the first 20 of `problem_count`."""

    path: str
    ok: bool
    pages: int
    rows: int
    problem_count: int
    problems: tuple[Problem, ...]


def file_name(*, layer: int, rank: int, tp: int, partition: str) -> str:
    """Make the name of the row file of one layer and rank."""
    return f"engram-l{layer}-r{rank}of{tp}-{partition}.rows"


def source_file(checkpoint: Path, *, layer: int) -> Path:
    """Find the safetensors file that holds weight and scale of a layer's table.

    Raises:
        CheckFailed: D028, when the index does not lead to one file with both.
    """
    index = checkpoint / INDEX
    names = [f"layers.{layer}.engram.embed.{part}" for part in ("weight", "scale")]
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {str(weight_map[name]) for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_table(f"{index} does not lead to {names[0]} and .scale: {error!r}.") from error
    if len(files) != 1:
        raise _no_table(
            f"{index}: expected weight and scale in one file, found {', '.join(sorted(files))}."
        )
    return checkpoint / files.pop()


def revision_of(checkpoint: Path) -> str:
    """Read the commit of a checkpoint as its download recorded it, empty when nothing did."""
    record = checkpoint / DOWNLOAD_RECORD
    if record.is_file():
        return (record.read_text(encoding="utf-8").splitlines() or [""])[0].strip()
    resolved = checkpoint.resolve()
    return resolved.name if resolved.parent.name == "snapshots" else ""


def pack(
    *,
    checkpoint: Path,
    out: Path,
    engram: Engram,
    partition: str,
    shard: Shard,
    revision: str | None = None,
    progress: Callable[[Path, int, int], object] | None = None,
) -> list[Path]:
    """Write the row files of one rank, one per Engram layer.

    A file appears under its name when it is complete; one that is there already, complete and of
    the same checkpoint and geometry, is kept.

    Args:
        checkpoint: folder with the index and the safetensors files.
        out: folder of the row files, made when absent.
        engram: geometry of the tables.
        partition: name of the partition.
        shard: rank and number of ranks.
        revision: recorded in the file; by default what the download recorded.
        progress: called with the path, the bytes done and the bytes in all.

    Returns:
        The paths, in the order of the layers.

    Raises:
        Error: D020-D028, naming expected and found.
    """
    out.mkdir(parents=True, exist_ok=True)
    done = []
    for layer in engram.layer_ids:
        rows = cut(partition, engram=engram, layer_id=layer, tp=shard.tp)
        name = file_name(layer=layer, rank=shard.rank, tp=shard.tp, partition=partition)
        target = out / name
        source = source_file(checkpoint, layer=layer)
        with _table_errors():
            _extension().source(str(source), layer)
        with _row_errors():
            _extension().pack(
                source=str(source),
                target=str(target),
                layer=layer,
                rank=shard.rank,
                tp=shard.tp,
                partition=partition,
                total_rows=rows.total_rows,
                ranges=[(part.lo, part.hi, part.base) for part in rows.ranges(shard.rank)],
                revision=revision_of(checkpoint) if revision is None else revision,
                progress=_for_path(progress, target),
            )
        done.append(target)
    return done


def verify(
    paths: Iterable[Path], *, progress: Callable[[Path, int, int], object] | None = None
) -> list[Verification]:
    """Check every byte of row files; a damaged file is a result, not an exception.

    Raises:
        Error: D025, when a file cannot be read at all.
    """
    found = []
    for path in paths:
        with _row_errors():
            result = _extension().verify(str(path), progress=_for_path(progress, path))
        problems = tuple(Problem(**problem) for problem in result.pop("problems"))
        found.append(Verification(path=str(path), problems=problems, **result))
    return found


def inspect(path: Path) -> Header:
    """Read the header of a row file, complete or not.

    Raises:
        CheckFailed: D022-D024, when it is no row file, cut short or damaged.
    """
    with _row_errors():
        found = _extension().inspect(str(path))
    source = Source(**found.pop("source"))
    ranges = tuple((lo, hi, base) for lo, hi, base in found.pop("ranges"))
    return Header(source=source, ranges=ranges, **found)


def open_shard(
    *,
    rows_dir: Path,
    engram: Engram,
    partition: str,
    shard: Shard,
    checkpoint: Path,
    engine: str = "auto",
    threads: int = 0,
    revision: str | None = None,
) -> dict[int, RowStore]:
    """Open the row files of one rank and hold them to the checkpoint.

    Returns:
        The store of each Engram layer. Its `lookup` raises `dsv41_rows.RowsError`.

    Raises:
        CheckFailed: D021-D024 or D029, when a file is not exactly the one wanted.
        UsageError: D031, when the engine asked for cannot work here.
    """
    stores = {}
    for layer in engram.layer_ids:
        name = file_name(layer=layer, rank=shard.rank, tp=shard.tp, partition=partition)
        path = rows_dir / name
        if not path.exists():
            raise CheckFailed("D029", f"{path} is not there.", fix=_PACK_AGAIN)
        with _table_errors():
            source = _extension().source(str(source_file(checkpoint, layer=layer)), layer)
        with _row_errors():
            stores[layer] = _extension().RowStore.open(
                str(path),
                engine=engine,
                threads=threads,
                layer=layer,
                rank=shard.rank,
                tp=shard.tp,
                partition=partition,
                source_digest=source["digest"],
                revision=revision,
            )
    return stores


def _extension() -> ModuleType:
    try:
        import dsv41_rows  # noqa: PLC0415  the operator's machine need not have it
    except ImportError as error:
        raise Error("D030", f"dsv41_rows cannot be imported: {error}.", fix="make setup") from error
    return dsv41_rows


def _for_path(
    progress: Callable[[Path, int, int], object] | None, path: Path
) -> Callable[[int, int], object] | None:
    return None if progress is None else lambda done, total: progress(path, done, total)


def _no_table(says: str) -> CheckFailed:
    return CheckFailed("D028", says, fix="check that the download of the checkpoint is complete")


@contextmanager
def _table_errors() -> Iterator[None]:
    """Turn what is wrong with a safetensors file into D028."""
    with _row_errors():
        try:
            yield
        except _extension().RowsError as error:
            if error.kind in {"malformed", "truncated"}:
                raise _no_table(f"{error}.") from error
            raise


@contextmanager
def _row_errors() -> Iterator[None]:
    try:
        yield
    except _extension().RowsError as error:
        kind, code, fix = _ERRORS.get(error.kind, (Error, "D025", "see the message"))
        raise kind(code, f"{error}.", fix=fix) from error
