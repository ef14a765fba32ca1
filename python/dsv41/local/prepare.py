"""What a local service needs on disk: the tiny checkpoint and every rank's packed rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv41 import rows
from dsv41.geometry import Shard
from dsv41.local import checkpoint
from dsv41.local.config import ModelConfig


def prepare(state_dir: Path, *, tp: int, partition: str, say: Callable[[str], None]) -> list[Path]:
    """Make what is absent below `state_dir`; the row files of all ranks, in rank order."""
    source = checkpoint.ensure(state_dir)
    config = ModelConfig.from_file(source)
    files: list[Path] = []
    for rank in range(tp):
        files += rows.pack(
            checkpoint=source,
            out=state_dir / "rows",
            engram=config.engram,
            partition=partition,
            shard=Shard(rank=rank, tp=tp),
        )
    say(f"checkpoint and {len(files)} row files are ready in {state_dir}")
    return files


def row_files(state_dir: Path, *, tp: int, partition: str) -> list[Path]:
    """The names that `prepare` gives the row files."""
    return [
        state_dir / "rows" / rows.file_name(layer=layer, rank=rank, tp=tp, partition=partition)
        for rank in range(tp)
        for layer in checkpoint.FIXTURE_ENGRAM_LAYERS
    ]
