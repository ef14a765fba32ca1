"""The C programs of csrc/tests, compiled and run: a user of the C interface, and a failing disk."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41.geometry import Engram, partition
from rowsfix import LIBRARY, OWNED, SHARD, SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rowsfix import Checkpoint

CSRC = Path(__file__).parent.parent / "csrc"
# exit status of the tool = dsv41_rows_status
OK, MISMATCH, TRUNCATED, UNFINISHED, CORRUPT, IO, RANGE = 0, 2, 4, 5, 6, 7, 8
UNSUPPORTED, SPACE, BUSY, FORKED = 9, 10, 11, 13
# local rows 0, 1, 31 (page 2) and 32, 100 (page 6), 200 (page 13), one twice
IDS = [OWNED.to_global(1, local) for local in (0, 1, 31, 32, 100, 200, 31)]
KILLED = -9
ABORTED = -6


@dataclass(frozen=True, kw_only=True)
class Done:
    status: int
    lines: tuple[str, ...]
    says: str


@dataclass(frozen=True, kw_only=True)
class Tool:
    path: Path
    faults: Path

    def run(
        self,
        *words: object,
        fault: str = "",
        below: Path | None = None,
        before: Callable[[], object] | None = None,
        **settings: object,
    ) -> Done:
        """Run the tool; `fault` and `settings` as in csrc/tests/faults.c, for files in a folder."""
        environ = dict(os.environ)
        if below is not None:
            environ |= {"LD_PRELOAD": str(self.faults), "FAULT": fault, "FAULT_DIR": str(below)}
            environ |= {f"FAULT_{name.upper()}": str(value) for name, value in settings.items()}
        command = [str(self.path), *map(str, words)]
        done = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            preexec_fn=before,
        )
        return Done(status=done.returncode, lines=tuple(done.stdout.splitlines()), says=done.stderr)


def build_tool(folder: Path) -> Tool:
    strict = ["gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1"]
    tool, faults = folder / "tool", folder / "libfaults.so"
    libraries = [str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}", "-pthread"]
    source = [f"-I{CSRC / 'include'}", str(CSRC / "tests" / "tool.c"), "-o", str(tool)]
    subprocess.run([*strict, *source, *libraries], check=True)
    preload = ["-shared", "-fPIC", str(CSRC / "tests" / "faults.c"), "-o", str(faults), "-ldl"]
    subprocess.run([*strict, *preload], check=True)
    return Tool(path=tool, faults=faults)


def pack_words(
    checkpoint: Path,
    target: Path,
    *,
    engram: Engram = SMALL,
    chunk: int = 4,
    journal: int = 2,
) -> Sequence[Any]:
    """Words of `tool pack` for layer 1, rank 1 of 3."""
    cut = partition("weighted", engram=engram, layer_id=1, tp=3)
    ranges = [f"{part.lo},{part.hi},{part.base}" for part in cut.ranges(1)]
    head = ["pack", checkpoint / SHARD, target, 1, 1, 3, "weighted"]
    return [*head, engram.rows(1), chunk, journal, *ranges]


def look(
    tool: Tool,
    path: Path,
    *,
    engine: str = "auto",
    mode: str = "lookup",
    ids: list[int] = IDS,
    fault: str = "",
    **more: Any,
) -> Done:
    """Look up rows of layer 1, rank 1 of 3; with `fault` on a disk or kernel that fails so."""
    words = [mode, path, 1, 1, 3, "weighted", engine, *ids]
    return tool.run(*words, fault=fault, below=path.parent if fault else None, **more)


def assert_exact(done: Done, checkpoint: Checkpoint, ids: list[int] = IDS) -> dict[str, Any]:
    """The rows of a run are right; its statistics."""
    assert done.status == OK, done.says
    right = [
        checkpoint.weights[1][row].tobytes() + checkpoint.scales[1][row].tobytes() for row in ids
    ]
    assert list(done.lines[:-1]) == [row.hex() for row in right]
    stats: dict[str, Any] = json.loads(done.lines[-1])
    return stats
