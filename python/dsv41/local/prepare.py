"""What a local service needs on disk: the tiny checkpoint and every rank's packed rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv41 import rows
from dsv41.geometry import Shard
from dsv41.local import checkpoint
from dsv41.local.config import ModelConfig


def prepare(state_dir: Path, *, tp: int, partition: str, say: Callable[[str], None]) -> list[Path]:
    """Make what is absent or damaged below `state_dir`; the row files of all ranks, in rank order.

    Every byte is checked: the fixture has 112 MB of checkpoint and 66 MB of rows.
    """
    if not (state_dir / "checkpoints").exists():
        say("making the tiny checkpoint and its rows, usually 5 to 10 s")
    source = checkpoint.ensure(state_dir)
    config = ModelConfig.from_file(source)
    _drop_damaged(row_files(state_dir, tp=tp, partition=partition), say=say)
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


def _drop_damaged(files: list[Path], *, say: Callable[[str], None]) -> None:
    """Remove row files that fail a check of every byte, so that they are packed again."""
    for path in files:
        if path.exists() and not rows.verify([path])[0].ok:
            path.unlink()
            say(f"{path.name} was damaged; it is packed again")


def row_files(state_dir: Path, *, tp: int, partition: str) -> list[Path]:
    """The names that `prepare` gives the row files."""
    return [
        state_dir / "rows" / rows.file_name(layer=layer, rank=rank, tp=tp, partition=partition)
        for rank in range(tp)
        for layer in checkpoint.FIXTURE_ENGRAM_LAYERS
    ]
