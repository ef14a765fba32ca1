"""Engram rows on disk: pack them from a checkpoint, verify, inspect and open them.

The work is done by the `dsv41_rows` extension (csrc/), whose header
`csrc/include/dsv41_rows/row_store.hpp` describes the file format. Here is what surrounds it: where
the tensors of a checkpoint are, how files are called, and which error says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed
from dsv41.geometry import partition as cut
from dsv41.rows.checkpoint import DOWNLOAD_RECORD, INDEX, geometry_of, revision_of, source_file
from dsv41.rows.core import PACK_AGAIN, extension, row_errors, table_errors, use_library
from dsv41.rows.files import Header, Problem, Source, Verification, file_name, for_path
from dsv41.rows.imports import PackedShard, import_shard, read_packed
from dsv41.rows.ownership import check_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dsv41_rows import RowStore

    from dsv41.geometry import Engram, Shard

__all__ = [
    "DOWNLOAD_RECORD",
    "INDEX",
    "Header",
    "PackedShard",
    "Problem",
    "Source",
    "Verification",
    "check_partition",
    "file_name",
    "geometry_of",
    "import_shard",
    "inspect",
    "open_shard",
    "pack",
    "read_packed",
    "revision_of",
    "source_file",
    "use_library",
    "verify",
]


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
    sources = {layer: source_file(checkpoint, layer=layer) for layer in engram.layer_ids}
    for layer, source in sources.items():  # all of them before hours of work on the first
        with table_errors():
            extension().source(str(source), layer)
    out.mkdir(parents=True, exist_ok=True)
    commit = revision_of(checkpoint) if revision is None else revision
    targets = []
    for layer, source in sources.items():
        rows = cut(partition, engram=engram, layer_id=layer, tp=shard.tp)
        target = out / file_name(layer=layer, rank=shard.rank, tp=shard.tp, partition=partition)
        with row_errors():
            extension().pack(
                source=str(source),
                target=str(target),
                layer=layer,
                rank=shard.rank,
                tp=shard.tp,
                partition=partition,
                total_rows=rows.total_rows,
                ranges=[(part.lo, part.hi, part.base) for part in rows.ranges(shard.rank)],
                revision=commit,
                progress=for_path(progress, target),
            )
        targets.append(target)
    return targets


def verify(
    paths: Iterable[Path], *, progress: Callable[[Path, int, int], object] | None = None
) -> list[Verification]:
    """Check every byte of row files; a damaged file is a result, not an exception.

    Raises:
        Error: D025, when a file cannot be read at all.
    """
    found = []
    for path in paths:
        with row_errors():
            result = extension().verify(str(path), progress=for_path(progress, path))
        problems = tuple(Problem(**problem) for problem in result.pop("problems"))
        found.append(Verification(path=str(path), problems=problems, **result))
    return found


def inspect(path: Path) -> Header:
    """Read the header of a row file, complete or not.

    Raises:
        CheckFailed: D022-D024, when it is no row file, cut short or damaged.
    """
    with row_errors():
        found = extension().inspect(str(path))
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
    cache_bytes: int = 0,
    revision: str | None = None,
) -> dict[int, RowStore]:
    """Open the row files of one rank and hold them to the checkpoint.

    Args:
        rows_dir: folder of the row files.
        engram: geometry of the tables.
        partition: name of the partition.
        shard: rank and number of ranks.
        checkpoint: folder of the checkpoint that the rows must come from.
        engine: "uring", "aio", "pread", or "auto" for the first of them that works here.
        cache_bytes: memory for rows, per layer; 0 for none.
        revision: where given, the file must have recorded the same.

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
            raise CheckFailed("D029", f"{path} is not there.", fix=PACK_AGAIN)
        with table_errors():
            source = extension().source(str(source_file(checkpoint, layer=layer)), layer)
        with row_errors():
            stores[layer] = extension().RowStore.open(
                str(path),
                engine=engine,
                cache_bytes=cache_bytes,
                order_bounds=_order_bounds(engram, layer),
                layer=layer,
                rank=shard.rank,
                tp=shard.tp,
                partition=partition,
                source_digest=source["digest"],
                revision=revision,
            )
    return stores


def _order_bounds(engram: Engram, layer: int) -> list[int]:
    """First rows of the n-gram orders after the lowest: columns are order-major."""
    return list(engram.offsets(layer)[engram.heads :: engram.heads])
