"""What many tests share: the tiny checkpoint, its packed rows, and a real engine of one rank.

The files lie in .cache/ of the tree and are made once; parallel test processes wait for the one
that makes them. Checkpoint and rows check themselves, so a change of their makers remakes them.
"""
# ruff: noqa: PLC0415 - most test files need no torch, whose import takes two seconds

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41.local.engine.loop import Engine

CACHE = Path(__file__).resolve().parent.parent / ".cache" / f"tests-{os.getuid()}"
MOST_RANKS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: begun last, one would keep one core for a minute alone.

    Processes take whole files (`--dist loadfile`), so a file's fixtures are made once.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def _no_image_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of this tree changes with what images hold; that of tests does not."""
    from dsv41 import digests

    listed = Path(__file__).parent / "cases" / "digests.json"
    monkeypatch.setattr(digests, "PLACES", (listed, listed))


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """Folder of the tiny checkpoint."""
    from dsv41.local.fixture import checkpoint as maker

    return maker.ensure(CACHE)


@pytest.fixture(scope="session")
def rows_dir(checkpoint: Path) -> Path:
    """Folder of the packed rows of all ranks at TP 1 to 4, in the default partition."""
    from dsv41 import rows
    from dsv41.geometry import DEFAULT_PARTITION, Shard
    from dsv41.local.model.config import ModelConfig

    folder = CACHE / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    engram = ModelConfig.from_file(checkpoint).engram
    with (CACHE / ".rows.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for tp in range(1, MOST_RANKS + 1):
            for rank in range(tp):
                rows.pack(
                    checkpoint=checkpoint,
                    out=folder,
                    engram=engram,
                    partition=DEFAULT_PARTITION,
                    shard=Shard(rank=rank, tp=tp),
                )
    return folder


@pytest.fixture(scope="session")
def engine_tp1(checkpoint: Path, rows_dir: Path) -> Iterator[Engine]:
    """A running engine of one rank in this process, with the real model."""
    import torch

    from dsv41.geometry import DEFAULT_PARTITION, Shard
    from dsv41.local.engine.assembly import Parts, assemble
    from dsv41.local.engine.loop import Engine

    torch.set_num_threads(1)
    parts = Parts(
        shard=Shard(rank=0, tp=1),
        checkpoint=checkpoint,
        rows=rows_dir,
        partition=DEFAULT_PARTITION,
    )
    rank = assemble(parts)
    engine = Engine(rank.runner, rows=rank.row_stats)
    engine.start()
    yield engine
    engine.close()
    rank.close()
