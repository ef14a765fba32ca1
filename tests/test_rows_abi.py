"""The C interface: from C, from ctypes, from other threads, after fork; compiled alone."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import dsv41_rows
import numpy as np
import pytest

from dsv41 import rows
from dsv41.errors import CheckFailed
from dsv41.geometry import Shard
from dsv41.rows.abi import Library, RowsError
from dsv41.rows.structs import Options, PackOptions, Work
from rowsfix import (
    LIBRARY,
    OWNED,
    RIGHT,
    SHARD,
    SMALL,
    Checkpoint,
    Way,
    arrays,
    draw_ids,
    expected,
    pack_all,
    write_checkpoint,
)
from rowstool import CSRC, FORKED, OK, Done, Tool, build_tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDS = [OWNED.to_global(1, local) for local in (5, 99, 5, 229, 0, 17)]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    return build_tool(tmp_path_factory.mktemp("tool"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def path(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pack_all(checkpoint, tmp_path_factory.mktemp("rows"), ["weighted"])
    return folder / rows.file_name(**RIGHT)


@pytest.fixture
def library() -> Library:
    return Library(LIBRARY)


@pytest.fixture
def through_library() -> Iterator[None]:
    rows.use_library(LIBRARY)
    yield
    rows.use_library(None)


def hex_rows(checkpoint: Checkpoint, ids: list[int]) -> list[str]:
    pairs = zip(checkpoint.weights[1][ids], checkpoint.scales[1][ids], strict=True)
    return [weights.tobytes().hex() + scales.tobytes().hex() for weights, scales in pairs]


def look(tool: Tool, path: Path, mode: str, engine: str = "auto") -> Done:
    return tool.run(mode, path, 1, 1, 3, "weighted", engine, *IDS)


@pytest.mark.parametrize("engine", ["uring", "aio", "pread"])
@pytest.mark.parametrize("mode", ["lookup", "thread", "narrow", "tickets"])
def test_from_c(tool: Tool, path: Path, checkpoint: Checkpoint, mode: str, engine: str) -> None:
    done = look(tool, path, mode, engine)
    assert done.status == OK
    assert list(done.lines[:-1]) == hex_rows(checkpoint, IDS)
    assert json.loads(done.lines[-1])["engine"] == engine


@pytest.mark.parametrize("engine", ["uring", "aio", "pread"])
def test_a_forked_child_is_refused_and_the_parent_goes_on(
    tool: Tool, path: Path, checkpoint: Checkpoint, engine: str
) -> None:
    done = look(tool, path, "fork", engine)
    assert done.lines[0] == f"child {FORKED}"
    assert "used in its child" in done.says
    assert list(done.lines[1:-1]) == hex_rows(checkpoint, IDS)


@pytest.mark.parametrize("abi", [False, True])
def test_a_forked_python_is_refused(path: Path, *, abi: bool) -> None:
    store = Way(name="fork", abi=abi).open(path)
    ids, out = draw_ids(50), arrays(50)
    store.lookup(ids, *out)
    if (child := os.fork()) == 0:
        try:
            store.lookup(ids, *out)
        except (RowsError, dsv41_rows.RowsError) as error:
            os._exit(42 if error.kind == "forked" else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    store.lookup(ids, *out)


def test_the_header_is_plain_c_and_its_structures_are_ours(tmp_path: Path) -> None:
    names = {"options": Options, "work": Work, "pack_options": PackOptions}
    lines = ["#include <stdio.h>", '#include "dsv41_rows.h"', "int main(void) {"]
    for name, structure in names.items():
        kind = f"struct dsv41_rows_{name}"
        lines.append(f'printf("%zu", sizeof({kind}));')
        fields = [field[0] for field in structure._fields_]
        lines += [f'printf(" %zu", offsetof({kind}, {field}));' for field in fields]
        lines.append('puts("");')
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join([*lines, "return 0; }"]))
    strict = ["gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    command = [*strict, f"-I{CSRC / 'include'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    found = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    for line, structure in zip(found.splitlines(), names.values(), strict=True):
        offsets = [getattr(structure, field[0]).offset for field in structure._fields_]
        assert [int(n) for n in line.split()] == [ctypes.sizeof(structure), *offsets]


def test_a_host_node_is_a_function_of_one_pointer(
    library: Library, path: Path, checkpoint: Checkpoint
) -> None:
    """As a driver's thread calls it: by address, the same descriptor again and again."""
    store = library.RowStore.open(str(path), **RIGHT)
    ids, (weights, scales) = np.zeros(64, np.int64), arrays(64)
    flag = ctypes.c_uint32()
    work = Work(
        size=ctypes.sizeof(Work),
        id_bytes=8,
        store=store.handle,
        ids=ids.ctypes.data,
        count=64,
        weights=weights.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)),
        scales=scales.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)),
        flag=ctypes.pointer(flag),
    )
    node = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    submit, wait = (node(library.address(name)) for name in ("submit", "wait"))
    for turn in range(20):
        ids[:] = draw_ids(64, seed=turn)
        for call in (submit, wait):
            thread = threading.Thread(target=call, args=(ctypes.addressof(work),))
            thread.start()
            thread.join()
        assert (work.status, work.generation, flag.value) == (OK, turn + 1, turn + 1)
        assert (weights == expected(checkpoint, ids)[0]).all()
        assert (scales == expected(checkpoint, ids)[1]).all()
    ids[3] = SMALL.rows(1)
    submit(ctypes.addressof(work))
    wait(ctypes.addressof(work))
    assert (work.status, work.generation) == (8, 20)


def test_wrong_calls_are_refused(library: Library, path: Path) -> None:
    store = library.RowStore.open(str(path), **RIGHT)
    ids = np.zeros(1, np.int64)
    whole: dict[str, Any] = {"size": ctypes.sizeof(Work), "id_bytes": 8, "store": store.handle}
    for change in ({"size": 8}, {"id_bytes": 2}, {"store": None}, {"count": 1}):
        work = Work(**{**whole, "ids": ids.ctypes.data, **change})
        library.function("submit")(ctypes.byref(work))
        assert work.status == 1, change
    idle = Work(**whole)
    library.function("wait")(ctypes.byref(idle))
    assert idle.status == 1
    handle = ctypes.c_void_p()
    options = Options(size=4)
    call = library.function("open")
    assert call(str(path).encode(), ctypes.byref(options), ctypes.byref(handle)) == 1
    with pytest.raises(RowsError, match="expected layer 14, found 1") as error:
        library.RowStore.open(str(path), **{**RIGHT, "layer": 14})
    assert error.value.kind == "mismatch"


def test_library_and_module_answer_alike(
    library: Library, path: Path, checkpoint: Checkpoint
) -> None:
    shard, calls = str(checkpoint.path / SHARD), (library, dsv41_rows)
    for first, second in (
        [module.inspect(str(path)) for module in calls],
        [module.verify(str(path)) for module in calls],
        [module.source(shard, 14) for module in calls],
        [module.engines() for module in calls],
    ):
        assert first == second
    opened = [module.RowStore.open(str(path), **RIGHT) for module in calls]
    first, second = (sorted(store.stats()) for store in opened)
    assert first == second
    with pytest.raises(RowsError, match="not a row file") as error:
        library.inspect(shard)
    assert error.value.kind == "malformed"


@pytest.mark.usefixtures("through_library")
def test_rows_works_through_the_library(checkpoint: Checkpoint, tmp_path: Path, path: Path) -> None:
    right: dict[str, Any] = {
        "engram": SMALL,
        "partition": "weighted",
        "shard": Shard(rank=1, tp=3),
        "checkpoint": checkpoint.path,
    }
    told: list[int] = []
    made = rows.pack(
        out=tmp_path, revision="fb2764a5", progress=lambda _, done, __: told.append(done), **right
    )
    assert made[0].read_bytes() == path.read_bytes()
    assert told[-1] == made[1].stat().st_size
    assert rows.verify(made)[1].ok
    assert rows.inspect(made[0]).rank == 1
    store = rows.open_shard(rows_dir=tmp_path, **right)[1]
    ids, out = draw_ids(99), arrays(99)
    store.lookup(ids, *out)
    assert (out[0] == expected(checkpoint, ids)[0]).all()
    made[0].write_bytes(b"no")
    with pytest.raises(CheckFailed, match="D023"):
        rows.inspect(made[0])


@pytest.mark.usefixtures("through_library")
def test_what_progress_raises_ends_the_work(checkpoint: Checkpoint, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rows.pack(
            checkpoint=checkpoint.path,
            out=tmp_path,
            engram=SMALL,
            partition="weighted",
            shard=Shard(rank=0, tp=1),
            progress=stop,
        )
