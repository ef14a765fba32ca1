"""Row files from packed shards of other projects, so that their owners need not pack again.

Two forms are around: the dense shard of the SGLang recipe (`engram-l1-r0of3.bin`) and the sparse
file with a manifest of the vLLM cycle (`engram-l1-packed.bin`). docs/reference/row-file.md
describes both.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed
from dsv41.geometry import column_owners
from dsv41.geometry import partition as cut
from dsv41.rows.checkpoint import revision_of, source_file
from dsv41.rows.core import extension, row_errors
from dsv41.rows.files import file_name, for_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from dsv41.geometry import Engram

# Written as an integer, little-endian: on the disk it reads DSV1EN41, whatever comments call it.
DENSE_MAGIC = 0x31344E4531565344
DENSE_HEADER = 4096
ROW_BYTES = 264
_DENSE_NAME = re.compile(r"engram-l(\d+)-r(\d+)of(\d+)\.bin")
_MODES = {"balanced": "strided", "contiguous": "contiguous-columns"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedShard:
    """What a packed shard says of itself; row r lies at `data_begin + (r - first_row) * 264`."""

    path: Path
    layer: int
    rank: int
    tp: int
    partition: str
    total_rows: int
    data_begin: int
    first_row: int
    end_row: int


def read_packed(path: Path, *, engram: Engram) -> PackedShard:
    """Read the header or the manifest of a packed shard and hold it to the geometry.

    Raises:
        CheckFailed: D033, naming expected and found.
    """
    manifest = path.with_name(path.name + ".json")
    return _sparse(path, manifest, engram) if manifest.exists() else _dense(path, engram)


def import_shard(
    path: Path,
    *,
    out: Path,
    engram: Engram,
    checkpoint: Path | None,
    progress: Callable[[Path, int, int], object] | None = None,
) -> Path:
    """Write the row file of one packed shard.

    Args:
        path: the shard.
        out: folder of the row file, made when absent.
        engram: geometry of the tables.
        checkpoint: every row is compared with it, and the row file is bound to it; None leaves
            the file unbound: it opens only where no checkpoint is asked for.
        progress: as for `pack`.

    Raises:
        CheckFailed: D033 for a shard that is not what it must be, D021 for a row that differs from
            the checkpoint, D023 for a shard with holes or cut short.
        Error: D025-D028, as `pack`.
    """
    shard = read_packed(path, engram=engram)
    rows = cut(shard.partition, engram=engram, layer_id=shard.layer, tp=shard.tp)
    ranges = [(part.lo, part.hi, part.base) for part in rows.ranges(shard.rank)]
    out.mkdir(parents=True, exist_ok=True)
    target = out / file_name(
        layer=shard.layer, rank=shard.rank, tp=shard.tp, partition=shard.partition
    )
    with row_errors():
        extension().pack(
            source=str(source_file(checkpoint, layer=shard.layer)) if checkpoint else "",
            target=str(target),
            layer=shard.layer,
            rank=shard.rank,
            tp=shard.tp,
            partition=shard.partition,
            total_rows=shard.total_rows,
            ranges=ranges,
            revision=revision_of(checkpoint) if checkpoint else "",
            progress=for_path(progress, target),
            records=(str(path), shard.data_begin, shard.first_row, shard.end_row),
        )
    return target


def _dense(path: Path, engram: Engram) -> PackedShard:
    with path.open("rb") as file:
        head = file.read(48)
    _expect(path, "bytes of header", 48, len(head))
    magic, layer, lo, hi, total, row_bytes = struct.unpack("<6Q", head)
    _expect(path, "magic", hex(DENSE_MAGIC), hex(magic))
    named = _DENSE_NAME.fullmatch(path.name)
    if named is None:
        raise _wrong(path, f"expected a name like engram-l{layer}-r0of3.bin, found {path.name}")
    name_layer, rank, tp = map(int, named.groups())
    _expect(path, "layer by its name", name_layer, layer)
    if layer not in engram.layer_ids or not rank < tp:
        raise _wrong(path, f"expected a rank below {tp} of a layer of {engram.layer_ids}")
    _expect(path, "rows of the table", engram.rows(layer), total)
    _expect(path, "bytes of a row", ROW_BYTES, row_bytes)
    _expect(path, "first row", total * rank // tp, lo)
    _expect(path, "end row", total * (rank + 1) // tp, hi)
    _expect(path, "bytes", DENSE_HEADER + (hi - lo) * ROW_BYTES, path.stat().st_size)
    return PackedShard(
        path=path,
        layer=layer,
        rank=rank,
        tp=tp,
        partition="contiguous-rows",
        total_rows=total,
        data_begin=DENSE_HEADER,
        first_row=lo,
        end_row=hi,
    )


def _sparse(path: Path, manifest: Path, engram: Engram) -> PackedShard:
    said = _manifest(manifest)
    layer, rank, tp = said["layer"], said["rank"], said["tp"]
    if layer not in engram.layer_ids or not 0 <= rank < tp:
        raise _wrong(manifest, f"expected a rank below {tp} of a layer of {engram.layer_ids}")
    _expect(manifest, "rows", engram.rows(layer), said["rows"])
    _expect(manifest, "row_bytes", ROW_BYTES, said["row_bytes"])
    _expect(path, "bytes", said["rows"] * ROW_BYTES, path.stat().st_size)
    if said["mode"] not in _MODES:
        raise _wrong(manifest, f"expected mode {' or '.join(_MODES)}, found {said['mode']}")
    name = _MODES[said["mode"]]
    owners = column_owners(name, engram=engram, tp=tp)
    columns = [column for column, owner in enumerate(owners) if owner == rank]
    _expect(manifest, "cols", columns, list(said["cols"]))
    for part in cut(name, engram=engram, layer_id=layer, tp=tp).ranges(rank):
        if not any(lo <= part.lo and part.hi <= hi for lo, hi in _merged(said["ranges"])):
            raise _wrong(manifest, f"rows {part.lo} to {part.hi} are in none of its ranges")
    return PackedShard(
        path=path,
        layer=layer,
        rank=rank,
        tp=tp,
        partition=name,
        total_rows=said["rows"],
        data_begin=0,
        first_row=0,
        end_row=said["rows"],
    )


def _manifest(path: Path) -> dict[str, Any]:
    numbers = ("layer", "rank", "tp", "rows", "row_bytes")
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        good = all(type(said[name]) is int for name in numbers)
        good = good and all(len(pair) == 2 for pair in said["ranges"])
        good = good and isinstance(said["mode"], str) and isinstance(said["cols"], list)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _wrong(path, f"expected a manifest, found {error!r}") from error
    if not good:
        raise _wrong(path, f"expected whole numbers for {', '.join(numbers)} and pairs for ranges")
    return said


def _merged(ranges: list[list[int]]) -> list[tuple[int, int]]:
    """Touching ranges as one: a manifest lists columns, a partition merges neighbors."""
    merged: list[tuple[int, int]] = []
    for lo, hi in sorted((lo, hi) for lo, hi in ranges):
        if merged and lo <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
        else:
            merged.append((lo, hi))
    return merged


def _expect(path: Path, what: str, expected: object, found: object) -> None:
    if expected != found:
        raise _wrong(path, f"expected {what} {expected}, found {found}")


def _wrong(path: Path, says: str) -> CheckFailed:
    return CheckFailed(
        "D033", f"{path}: {says}.", fix="check the file, or pack from the checkpoint"
    )
