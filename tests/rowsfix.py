"""A small checkpoint written by hand: the Engram tensors in safetensors form, with an index."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv41.geometry import Engram

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SHARD = "model-00001-of-00001.safetensors"

# 3 orders x 2 heads = 6 hash columns: several ranges a rank, tables of some hundred rows.
SMALL = Engram(
    layer_ids=(1, 14),
    bucket=101,
    compressed_vocab=6,
    multipliers=((3, 5, 7, 9), (11, 13, 15, 17)),
    heads=2,
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    path: Path
    weights: dict[int, NDArray[np.uint8]]  # [rows, 256]
    scales: dict[int, NDArray[np.uint8]]  # [rows, 8]


def tensors_of(engram: Engram, *, seed: int = 0) -> dict[str, NDArray[np.uint8]]:
    made = {}
    for layer in engram.layer_ids:
        draw = np.random.default_rng([seed, layer])
        rows = engram.rows(layer)
        stem = f"layers.{layer}.engram.embed"
        made[f"{stem}.weight"] = draw.integers(0, 256, (rows, 256), dtype=np.uint8)
        made[f"{stem}.scale"] = draw.integers(116, 124, (rows, 8), dtype=np.uint8)
    return made


def header_of(tensors: dict[str, NDArray[np.uint8]]) -> dict[str, Any]:
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
    path: Path, tensors: dict[str, NDArray[np.uint8]], header: dict[str, Any] | None = None
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
