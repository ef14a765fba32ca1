"""What must end the engine does, with our code: damaged rows, another rank's file, a lost hook."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("GPU test, not run: no vllm", allow_module_level=True)

from gpu.fleet import EngineEnded, Fleet, Process, wait_connected
from gpu.test_vllm_rows import PROMPTS, TOKENS

LOSES_A_METHOD = """
import importlib.util
import sys

NAME = "vllm.models.deepseek_v41.common.engram"


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_lose(module):
            run(module)
            del module.Engram._create_embedding

        spec.loader.exec_module = run_and_lose
        return spec


sys.meta_path.insert(0, Finder())
"""
FILE = "engram-l{layer}-r{rank}of{tp}-{partition}.rows"
OURS = {"tp": 1, "rank": 0, "partition": "strided"}
ENDS_SECONDS = 240


def copied(fleet: Fleet, folder: Path) -> Path:
    for layer in (1, 3):
        name = FILE.format(layer=layer, **OURS)
        shutil.copyfile(fleet.rows / name, folder / name)
    return folder


def flip(path: Path, *, first: int, step: int) -> None:
    """Flip a bit in each `step`th page from page `first` on."""
    with path.open("r+b") as file:
        for page in range(first, path.stat().st_size // 4096, step):
            file.seek(4096 * page + 100)
            byte = file.read(1)[0] ^ 1
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte]))


def corrupt_rows(fleet: Fleet, folder: Path) -> dict[str, str]:
    """Every row of slot 0 of every page but the first and last, which are read before serving."""
    path = copied(fleet, folder) / FILE.format(layer=3, **OURS)
    last = path.stat().st_size // 4096 - 1
    keep = path.read_bytes()[4096 * last :]
    flip(path, first=2, step=1)
    with path.open("r+b") as file:
        file.seek(4096 * last)
        file.write(keep)
    return {"DSV41_PACKED_DIR": str(folder)}


def corrupt_header(fleet: Fleet, folder: Path) -> dict[str, str]:
    flip(copied(fleet, folder) / FILE.format(layer=1, **OURS), first=0, step=1 << 40)
    return {"DSV41_PACKED_DIR": str(folder)}


def wrong_shard(fleet: Fleet, folder: Path) -> dict[str, str]:
    """The file of another rank under this rank's name."""
    copied(fleet, folder)
    other = FILE.format(layer=1, rank=1, tp=2, partition="strided")
    shutil.copyfile(fleet.rows / other, folder / FILE.format(layer=1, **OURS))
    return {"DSV41_PACKED_DIR": str(folder)}


def no_file(_: Fleet, folder: Path) -> dict[str, str]:
    return {"DSV41_PACKED_DIR": str(folder)}


def lost_hook(_: Fleet, folder: Path) -> dict[str, str]:
    """An engine without the method that the adapter hooks."""
    (folder / "sitecustomize.py").write_text(LOSES_A_METHOD)
    return {"PYTHONPATH": str(folder)}


def row_partition(_: Fleet, folder: Path) -> dict[str, str]:
    """Rows cut without regard to columns: vLLM's ranks own whole columns."""
    del folder
    return {"DSV41_ENGRAM_PARTITION": "contiguous-rows"}


CASES: dict[str, tuple[Any, str]] = {
    "corrupt rows": (corrupt_rows, "dsv41_rows_fatal"),
    "corrupt header": (corrupt_header, "D024"),
    "wrong shard": (wrong_shard, "D021"),
    "no file": (no_file, "D029"),
    "lost hook": (lost_hook, "D140"),
    "row partition": (row_partition, "D091"),
}


def test_it_ends_with_our_code(fleet: Fleet, tmp_path: Path, receipts: dict[str, Any]) -> None:
    """All at once, eager: each ends by itself, and its log says why."""
    processes = {}
    for case, (arrange, _) in CASES.items():
        folder = tmp_path / case.replace(" ", "-")
        folder.mkdir()
        environ = arrange(fleet, folder)
        if "PYTHONPATH" in environ:
            environ["PYTHONPATH"] += os.pathsep + fleet.python_path()
        processes[case] = fleet.launch("rows-eager", **environ)
    found = {case: ending(process) for case, process in processes.items()}
    for process in processes.values():
        process.stop()
    receipts["refusals"] = {
        case: {"status": status, "says": [line for line in said.splitlines() if code in line][-1:]}
        for (case, (_, code)), (status, said) in zip(CASES.items(), found.values(), strict=True)
    }
    for case, (_, code) in CASES.items():
        status, said = found[case]
        assert status not in (0, None), case
        assert code in said, f"{case}: {said[-2000:]}"
    line = next(
        text for text in found["corrupt rows"][1].splitlines() if "dsv41_rows_fatal" in text
    )
    fatal = json.loads(line[line.index("{") :])
    assert (fatal["kind"], fatal["layer"]) == ("corrupt", 3)


def ending(process: Process) -> tuple[int | None, str]:
    """Let it start, ask it if it did, and wait for its end."""
    try:
        wait_connected(process)
        process.receive(ENDS_SECONDS)
        process.ask("answers", PROMPTS[2:], TOKENS)
    except EngineEnded:
        pass
    try:
        return process.child.wait(60), process.said()
    except subprocess.TimeoutExpired:
        return None, process.said()
