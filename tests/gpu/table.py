"""A table of a million rows: its row file, and the same rows in device memory."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dsv41 import rows
from dsv41.adapters.staging import dequantize
from dsv41.geometry import Engram, Shard
from dsv41.local.fixture import grid, writer
from dsv41.local.fixture.grid import Grid
from dsv41.local.fixture.tensors import TensorSpec
from dsv41.rows import build
from dsv41.rows.abi import Library, RowStore

PARTITION = "strided"
COLUMNS = 24
# 24 columns of 40,009 rows and more: 264 MB, forty times what a replay of the largest size reads
ENGRAM = Engram(layer_ids=(1,), bucket=40_009, compressed_vocab=6, multipliers=((3, 5, 7, 9),))


@dataclass(frozen=True, kw_only=True)
class Table:
    """`reference` is bfloat16 [rows, 256] on the device, decoded from what was packed."""

    library: Library
    path: Path
    reference: torch.Tensor

    def open(self, *, engine: str = "auto", path: Path | None = None, **more: Any) -> RowStore:
        """Open the row file, or a copy of it."""
        where = str(path or self.path)
        given = {"layer": 1, "rank": 0, "tp": 1, "partition": PARTITION, "engine": engine, **more}
        return self.library.RowStore.open(where, **given)

    def draw(self, tokens: int, *, seed: int) -> torch.Tensor:
        """Row ids int32 [tokens, 24] on the CPU, each of its column."""
        random = torch.Generator().manual_seed(seed)
        offsets = torch.tensor(ENGRAM.offsets(1), dtype=torch.int64)
        primes = torch.tensor(ENGRAM.primes(1), dtype=torch.float64)
        part = torch.rand(tokens, COLUMNS, generator=random, dtype=torch.float64)
        return (offsets + (part * primes).long()).int()

    def damaged(self, folder: Path, row: int) -> Path:
        """A copy with one bit of a row flipped."""
        copy = folder / self.path.name
        shutil.copyfile(self.path, copy)
        page, slot = divmod(row, 15)
        with copy.open("r+b") as file:
            file.seek(4096 * (1 + page) + 256 * slot + 100)
            byte = file.read(1)[0] ^ 0x10
            file.seek(-1, 1)
            file.write(bytes([byte]))
        return copy


def make(folder: Path) -> Table:
    """Draw, pack and load the table."""
    count = ENGRAM.rows(1)
    stem = "layers.1.engram.embed."
    specs = [
        TensorSpec(
            name=f"{stem}weight", dtype="F8_E4M3", shape=(count, 256), grid=Grid(kind="e4m3")
        ),
        TensorSpec(name=f"{stem}scale", dtype="F8_E8M0", shape=(count, 8), grid=Grid(kind="codes")),
    ]

    def fill(spec: TensorSpec) -> bytes | memoryview:
        return grid.draw(spec.name, count=spec.count, grid=spec.grid, dtype=spec.dtype)

    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True)
    writer.write_shards(checkpoint, [specs], fill=fill)
    path = rows.pack(
        checkpoint=checkpoint,
        out=folder,
        engram=ENGRAM,
        partition=PARTITION,
        shard=Shard(rank=0, tp=1),
    )[0]
    weights, scales = (
        torch.frombuffer(bytearray(fill(spec)), dtype=torch.uint8).view(spec.shape).cuda()
        for spec in specs
    )
    reference = torch.empty(count, 256, dtype=torch.bfloat16, device="cuda")
    dequantize(weights.view(torch.float8_e4m3fn), scales, out=reference)
    return Table(library=Library(build.library()), path=path, reference=reference)
