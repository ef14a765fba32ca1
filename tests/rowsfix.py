"""A small checkpoint written by hand: the Engram tensors in safetensors form, with an index."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dsv41_rows
import numpy as np

from dsv41 import rows
from dsv41.geometry import Engram, Shard, partition
from dsv41.rows.abi import Library, RowsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

# The wheel carries the C library beside the module.
LIBRARY = Path(dsv41_rows.__file__).with_name("libdsv41_rows.so")
SHARD = "model-00001-of-00001.safetensors"

# 3 orders x 2 heads = 6 hash columns: several ranges a rank, tables of some hundred rows.
SMALL = Engram(
    layer_ids=(1, 14),
    bucket=101,
    compressed_vocab=6,
    multipliers=((3, 5, 7, 9), (11, 13, 15, 17)),
    heads=2,
)

# The file that most tests open: layer 1, rank 1 of 3.
RIGHT: dict[str, Any] = {"layer": 1, "rank": 1, "tp": 3, "partition": "weighted"}
OWNED = partition("weighted", engram=SMALL, layer_id=1, tp=3)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    path: Path
    weights: dict[int, Bytes]  # [rows, 256]
    scales: dict[int, Bytes]  # [rows, 8]


def tensors_of(engram: Engram, *, seed: int = 0) -> dict[str, Bytes]:
    made = {}
    for layer in engram.layer_ids:
        draw = np.random.default_rng([seed, layer])
        rows = engram.rows(layer)
        stem = f"layers.{layer}.engram.embed"
        made[f"{stem}.weight"] = draw.integers(0, 256, (rows, 256), dtype=np.uint8)
        made[f"{stem}.scale"] = draw.integers(116, 124, (rows, 8), dtype=np.uint8)
    return made


def header_of(tensors: dict[str, Bytes]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, values in tensors.items():
        dtype = "F8_E4M3" if name.endswith("weight") else "F8_E8M0"
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    return header


def write_safetensors(
    path: Path, tensors: dict[str, Bytes], header: dict[str, Any] | None = None
) -> None:
    text = json.dumps(header_of(tensors) if header is None else header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(values.tobytes())


def write_checkpoint(folder: Path, engram: Engram = SMALL, *, seed: int = 0) -> Checkpoint:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(engram, seed=seed)
    write_safetensors(folder / SHARD, tensors)
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, SHARD)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return Checkpoint(
        path=folder,
        weights={
            layer: tensors[f"layers.{layer}.engram.embed.weight"] for layer in engram.layer_ids
        },
        scales={layer: tensors[f"layers.{layer}.engram.embed.scale"] for layer in engram.layer_ids},
    )


def pack_all(checkpoint: Checkpoint, out: Path, names: Iterable[str]) -> Path:
    for name in names:
        for rank in range(3):
            rows.pack(
                checkpoint=checkpoint.path,
                out=out,
                engram=SMALL,
                partition=name,
                shard=Shard(rank=rank, tp=3),
                revision="fb2764a5",
            )
    return out


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to a row: module or C interface, engine, cache."""

    name: str
    engine: str = "auto"
    cache_bytes: int = 0
    abi: bool = False

    def open(self, path: Path, **change: Any) -> Any:
        module = Library(LIBRARY) if self.abi else dsv41_rows
        given = {"engine": self.engine, "cache_bytes": self.cache_bytes, **RIGHT, **change}
        return module.RowStore.open(str(path), **given)


WAYS = (
    Way(name="uring", engine="uring"),
    Way(name="aio", engine="aio"),
    Way(name="pread", engine="pread"),
    Way(name="cache", cache_bytes=40_000),  # 140 rows, some of 230
    Way(name="abi", abi=True),
)
# what a store raises, by module and by C interface
ROWS_ERRORS: Any = (dsv41_rows.RowsError, RowsError)


def arrays(count: int) -> tuple[Bytes, Bytes]:
    return np.full((count, 256), 0xAA, np.uint8), np.full((count, 8), 0xAA, np.uint8)


def draw_ids(count: int, *, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(-3, SMALL.rows(1), count)


def expected(
    checkpoint: Checkpoint, ids: NDArray[np.int64], *, rank: int = 1
) -> tuple[Bytes, Bytes]:
    mine = (ids >= 0) & (OWNED.locals_of(rank, ids) >= 0)
    at = np.where(mine, ids, 0)
    weights, scales = checkpoint.weights[1][at], checkpoint.scales[1][at]
    return weights * mine[:, None], scales * mine[:, None]
