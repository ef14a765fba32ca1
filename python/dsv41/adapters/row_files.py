"""Row files as an engine's adapter needs them: opened and held to the model, and read a second way.

`open_rows` opens the file of one layer and rank through the C library and refuses any other.
`SecondReader` reads the same rows without that library, for the check mode.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41 import switches
from dsv41.errors import CheckFailed
from dsv41.geometry import partition
from dsv41.rows import build, core
from dsv41.rows.abi import RowsError
from dsv41.rows.checkpoint import INDEX, geometry_of, source_file
from dsv41.rows.files import file_name

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.geometry import Engram
    from dsv41.rows.abi import Library, RowStore

log = logging.getLogger(__name__)
LAYERS = 2  # Engram layers of the released model, where no config.json says otherwise
# Page of the row file, csrc/include/dsv41_rows/row_store.hpp.
PAGE, PER_PAGE, SCALES_AT, WEIGHT, SCALE = 4096, 15, 3840, 256, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """One open row file; `ranges` holds (lo, hi, base) triples of rows, as its header does."""

    library: Library
    store: RowStore
    path: Path
    ranges: tuple[tuple[int, int, int], ...]
    source: Mapping[str, Any] | None
    source_path: Path | None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what a lookup raises into the error of its kind, with the file's name."""
        with core.row_errors():
            try:
                yield
            except RowsError as error:
                raise RowsError(f"{self.path}: {error}", error.kind) from error


def open_rows(
    *,
    layer: int,
    rank: int,
    tp: int,
    total_rows: int,
    checkpoint: Path | None,
    production: bool,
    environ: Mapping[str, str],
    least_cache: int = 0,
) -> Rows:
    """Open this rank's file of a layer.

    Args:
        layer: Engram layer.
        rank: tensor-parallel rank.
        tp: number of ranks.
        total_rows: rows of the layer's table, as the engine has it from the model's configuration.
        checkpoint: folder whose table the rows must come from; None is not checked.
        production: a failed read ends the process, for readers that cannot raise.
        environ: the switches.
        least_cache: bytes of the store's cache, where the switches give it less.

    Raises:
        Error: D021-D025 and D028-D031, as `dsv41.rows.open_shard`; D146, when the table has
            another number of rows or the ranks would own other rows than this version's rule says.
    """
    name = switches.read_word(environ, "engram_partition")
    file = file_name(layer=layer, rank=rank, tp=tp, partition=name)
    path = Path(switches.read_word(environ, "engram_dir")) / file
    if not path.exists():
        raise CheckFailed("D029", f"{path} is not there.", fix=core.PACK_AGAIN)
    library = load_library()
    engram = _geometry(checkpoint)
    source_path = source_file(checkpoint, layer=layer) if checkpoint else None
    with core.table_errors():
        source = library.source(str(source_path), layer) if source_path else None
    with core.row_errors():
        store = library.RowStore.open(
            str(path),
            engine=switches.read_word(environ, "engram_engine"),
            partition=name,
            source_digest=source["digest"] if source else None,
            order_bounds=_orders(engram, layer),
            layer=layer,
            rank=rank,
            tp=tp,
            threads=max(switches.read(environ, "row_threads"), 0),
            cache_bytes=max(_cache_bytes(environ, engram), least_cache),
            production=int(production),
        )
        ranges = tuple((lo, hi, base) for lo, hi, base in library.inspect(str(path))["ranges"])
    _expect(path, "rows in the table", total_rows, store.total_rows)
    if engram is not None:
        rule = partition(name, engram=engram, layer_id=layer, tp=tp).ranges(rank)
        _expect(path, "rows owned", tuple((r.lo, r.hi, r.base) for r in rule), ranges)
    return Rows(
        library=library,
        store=store,
        path=path,
        ranges=ranges,
        source=source,
        source_path=source_path,
    )


@functools.cache
def load_library() -> Library:
    """The C library, compiled once by the container's own g++; `dsv41.rows` uses it from now on."""
    core.use_library(build.library())
    found: Library = core.extension()
    return found


def checkpoint_at(model_path: str) -> Path | None:
    """The folder of a checkpoint with an index, or None with a warning: a name of a repository."""
    folder = Path(model_path)
    if (folder / INDEX).is_file():
        return folder
    log.warning("engram_nvme: no %s in %s: rows are not compared with the model", INDEX, folder)
    return None


def _geometry(checkpoint: Path | None) -> Engram | None:
    if checkpoint is None or not (checkpoint / "config.json").is_file():
        return None
    return geometry_of(checkpoint)


def _orders(engram: Engram | None, layer: int) -> list[int]:
    return list(engram.offsets(layer)[engram.heads :: engram.heads]) if engram else []


def _cache_bytes(environ: Mapping[str, str], engram: Engram | None) -> int:
    """Bytes of one layer's cache: the switch names the memory of the rank."""
    layers = len(engram.layer_ids) if engram else LAYERS
    return int(max(switches.read_decimal(environ, "row_cache_gib"), 0) * 2**30) // layers


def _expect(path: Path, what: str, expected: object, found: object) -> None:
    if expected != found:
        says = f"engram_nvme: {path}: expected {what} {expected}, found {found}."
        raise CheckFailed("D146", says, fix=core.PACK_AGAIN)


class SecondReader:
    """The same rows without the library: from the checkpoint, else from the row file's pages.

    Values are formed as the engine's own CPU lookup does: float32 product, rounded to bfloat16.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.checked = 0
        self.file = os.open(rows.source_path or rows.path, os.O_RDONLY | os.O_CLOEXEC)

    def compare(self, ids: Tensor, found: Tensor) -> None:
        """Hold a lookup to what stands on the disk.

        Args:
            ids: int64 [n], on the CPU.
            found: bfloat16 [n, 256], on the CPU.

        Raises:
            CheckFailed: D145, with the first difference.
        """
        import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

        wanted = self.values(ids.tolist())
        self.checked += len(ids)
        differs = (wanted.view(torch.int16) != found.view(torch.int16)).nonzero()
        if not len(differs):
            return
        row, value = differs[0].tolist()
        count = len(set(differs[:, 0].tolist()))
        says = (
            f"engram_nvme: layer {self.rows.store.layer}: {count} of "
            f"{len(ids)} rows differ; first: row {int(ids[row])}, value {value}: expected "
            f"{float(wanted[row, value])!r}, found {float(found[row, value])!r}."
        )
        raise CheckFailed("D145", says, fix=f"run `dsv41 rows verify {self.rows.path}`")

    def values(self, ids: list[int]) -> Tensor:
        """Rows of these ids, bfloat16 [n, 256]; zero for rows of other ranks."""
        import torch  # noqa: PLC0415 - as above

        places = [self._place(row) for row in ids]
        blank = bytes(WEIGHT + SCALE)
        read = b"".join(self._read(*place) if place else blank for place in places)
        both = torch.frombuffer(bytearray(read), dtype=torch.uint8).view(-1, WEIGHT + SCALE)
        weights = both[:, :WEIGHT].contiguous().view(torch.float8_e4m3fn).float()
        scales = both[:, WEIGHT:].contiguous().view(torch.float8_e8m0fnu).float()
        product = weights.view(-1, SCALE, WEIGHT // SCALE) * scales.unsqueeze(-1)
        return product.flatten(1).to(torch.bfloat16)

    def _place(self, row: int) -> tuple[int, int] | None:
        """File offsets of a row's weights and scales; None when another rank owns it."""
        part = next((part for part in self.rows.ranges if part[0] <= row < part[1]), None)
        if part is None:
            return None
        if (source := self.rows.source) is not None:
            return source["weight_offset"] + row * WEIGHT, source["scale_offset"] + row * SCALE
        page, slot = divmod(part[2] + row - part[0], PER_PAGE)
        begin = PAGE * (1 + page)
        return begin + slot * WEIGHT, begin + SCALES_AT + slot * SCALE

    def _read(self, weights: int, scales: int) -> bytes:
        return os.pread(self.file, WEIGHT, weights) + os.pread(self.file, SCALE, scales)
