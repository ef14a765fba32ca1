"""Writing the tensors: shards in the safetensors format and their index.

The header is written here and not by the safetensors library, for three reasons: the checkpoint's
bytes must not depend on a version of that library (it orders tensors and pads headers its own way),
each tensor is drawn, written and hashed without holding a whole shard in memory, and the library's
numpy side knows none of the 8-bit formats. Reading goes through the library, in the tests too.

Format: u64 little-endian header length, JSON header padded with spaces to 8 bytes, then the data.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dsv41.local.tensors import TensorSpec

    Fill = Callable[[TensorSpec], bytes | memoryview]

INDEX = "model.safetensors.index.json"


def shard_tensors(specs: Iterable[TensorSpec], *, limit: int) -> list[list[TensorSpec]]:
    """Cut tensors, in order, into shards of at most `limit` bytes, or one group where that is more.

    A weight and its scale form a group: an Engram table's two tensors must lie in one shard. The
    output head has a shard of its own, so that a new head changes one file.
    """
    shards: list[list[TensorSpec]] = []
    room = 0
    for group in _groups(specs):
        size = sum(spec.bytes for spec in group)
        if not shards or size > room or group[0].name == "head.weight":
            shards.append([])
            room = limit
        shards[-1] += group
        room -= size
    return shards


def _groups(specs: Iterable[TensorSpec]) -> Iterable[list[TensorSpec]]:
    group: list[TensorSpec] = []
    for spec in specs:
        if group and spec.name != group[0].name.removesuffix("weight") + "scale":
            yield group
            group = []
        group.append(spec)
    if group:
        yield group


def write_shards(directory: Path, shards: list[list[TensorSpec]], *, fill: Fill) -> dict[str, str]:
    """Write all shards and the index, on disk when it returns; file name -> SHA-256."""
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    digests = {
        name: write_shard(directory / name, shard, fill=fill)
        for name, shard in zip(names, shards, strict=True)
    }
    index = {
        "metadata": {"total_size": sum(spec.bytes for shard in shards for spec in shard)},
        "weight_map": {
            spec.name: name for name, shard in zip(names, shards, strict=True) for spec in shard
        },
    }
    text = json.dumps(index, indent=2).encode() + b"\n"
    return digests | {INDEX: write_file(directory / INDEX, [text])}


def write_shard(path: Path, shard: list[TensorSpec], *, fill: Fill) -> str:
    """Write one shard, tensors in the given order without gaps; its SHA-256."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in shard:
        start, end = end, end + spec.bytes
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return write_file(path, chain([len(text).to_bytes(8, "little"), text], map(fill, shard)))


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """Write a file, on disk when it returns; its SHA-256."""
    digest = sha256()
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
