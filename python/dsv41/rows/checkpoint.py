"""Where a checkpoint keeps the Engram tables, and which revision it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dsv41.geometry import Engram
from dsv41.rows.core import no_table

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"
# What `hf download --local-dir` leaves beside each file: commit, etag and time, one a line.
DOWNLOAD_RECORD = f".cache/huggingface/download/{INDEX}.metadata"


def geometry_of(checkpoint: Path) -> Engram:
    """The Engram tables that a checkpoint's config.json describes.

    Raises:
        CheckFailed: D028, when there is no such description.
    """
    path = checkpoint / "config.json"
    try:
        return Engram.from_config(json.loads(path.read_text(encoding="utf-8"))["text_config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise no_table(f"{path} describes no Engram tables: {error!r}.") from error


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
        raise no_table(f"{index} does not lead to {names[0]} and .scale: {error!r}.") from error
    if len(files) != 1:
        raise no_table(
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
