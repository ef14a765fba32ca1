"""Processes of a test: forked, because importing an engine takes many seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context as start_method
from pathlib import Path
from typing import Any

import engram_table as case
import torch
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel


@dataclass(frozen=True, kw_only=True)
class Ended:
    status: int | None
    says: str


def forked(*calls: Callable[[], Any], folder: Path, seconds: float = 240) -> list[Ended]:
    """Run each in a child of its own, all at once; exit status and standard error."""
    says = [folder / f"says-{place}.txt" for place in range(len(calls))]
    context = start_method("fork")
    children = [
        context.Process(target=_into, args=(path, call))
        for path, call in zip(says, calls, strict=True)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(seconds)
        child.kill()
        child.join()
    return [
        Ended(status=child.exitcode, says=path.read_text())
        for child, path in zip(children, says, strict=True)
    ]


def _into(path: Path, call: Callable[[], Any]) -> None:
    sys.stderr = path.open("w")
    call()


def rank_of(tp: int, rank: int, files: case.Files, out: Path) -> None:
    """One rank of the engine: its groups over gloo, its Engram layer, the answers into a file."""
    with case.engine(files.checkpoint, rank=rank, tp=tp, tp_size=tp, device="cpu"):
        init_distributed_environment(
            world_size=tp,
            rank=rank,
            local_rank=rank,
            distributed_init_method=f"file://{out / 'meeting'}",
            backend="gloo",
        )
        initialize_model_parallel(backend="gloo")
        layer = case.engram_layer(14)
        hidden, wanted, extra = case.layer_input(14)
        found = {
            "type": type(layer.embed).__name__,
            "rows": layer.embed(wanted),
            "none": layer.embed(wanted[:0]),
            "forward": layer(hidden, wanted, None, **extra),
        }
    torch.save(found, out / f"{rank}.pt")
    torch.distributed.barrier()
