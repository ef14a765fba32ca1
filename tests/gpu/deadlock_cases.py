"""What could hang: one case a process, started by test_graph_rows.py. Prints `done` at the end."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from dsv41.adapters.staging import Lookup
from dsv41.rows import build
from dsv41.rows.abi import Library, RowsError
from gpu.table import COLUMNS, PARTITION

TOKENS = 16
cuda: Any = torch.cuda  # its classes have no types
ROWS = 900_000  # below the table's


class Reader:
    """A lookup and its graph, on a stream of its own."""

    def __init__(self, path: Path, *, production: int = 1) -> None:
        library = Library(build.library())
        self.store = library.RowStore.open(
            str(path), layer=1, rank=0, tp=1, partition=PARTITION, production=production
        )
        count = TOKENS * COLUMNS
        self.lookup = Lookup(library=library, store=self.store, ids=count, device="cuda")
        self.ids = torch.zeros(TOKENS, COLUMNS, dtype=torch.int32, device="cuda")
        self.out = torch.zeros(TOKENS, COLUMNS, 256, dtype=torch.bfloat16, device="cuda")
        self.stream = cuda.Stream()
        with cuda.stream(self.stream):
            self.lookup.enqueue(self.ids.fill_(5000), self.out)
        cuda.synchronize()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph, stream=self.stream):
            self.lookup.enqueue(self.ids, self.out)

    def replay(self, row: int) -> None:
        """Look one row up everywhere, on the own stream."""
        with cuda.stream(self.stream):
            self.ids.fill_(row)
            self.graph.replay()

    def differs(self) -> bool:
        """Whether the last rows are not one and the same."""
        cuda.synchronize()
        bits = self.out.view(torch.int16)
        return bool((bits != bits[0, 0]).any()) or not bool(self.out.any())


def busy(path: Path) -> None:
    """The main stream is busy for a long time while callbacks run, on it and beside it."""
    reader = Reader(path)
    for number in range(20):
        cuda._sleep(50_000_000)
        reader.replay(number)
        cuda.current_stream().wait_stream(reader.stream)
        reader.lookup.enqueue(reader.ids, reader.out)
        cuda._sleep(50_000_000)
        reader.stream.wait_stream(cuda.current_stream())
    check(reader)


def two_graphs(path: Path) -> None:
    """Two graphs in flight on two streams, neither waits for the other."""
    readers = [Reader(path), Reader(path)]
    for number in range(300):
        for offset, reader in enumerate(readers):
            reader.replay((number * 2 + offset) * 1001 % ROWS)
    for reader in readers:
        check(reader)


def allocations(path: Path) -> None:
    """Another thread allocates and frees, which waits for the device, while callbacks run."""
    reader, stop = Reader(path), threading.Event()

    def churn() -> None:
        while not stop.is_set():
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            torch.empty(1 << 20, dtype=torch.uint8).pin_memory()
            cuda.empty_cache()

    thread = threading.Thread(target=churn)
    thread.start()
    for number in range(200):
        reader.replay(number * 977 % ROWS)
        if number % 20 == 0:
            cuda.synchronize()
    stop.set()
    thread.join()
    check(reader)


def interpreter(path: Path) -> None:
    """The interpreter is held by a busy thread while callbacks run: they need no Python."""
    reader = Reader(path)
    for number in range(50):
        reader.replay(number * 977 % ROWS)
        end = time.monotonic() + 0.005
        while time.monotonic() < end:
            sum(range(1000))
    check(reader)


def error(path: Path) -> None:
    """In test mode a damaged row is reported afterwards, and the next lookup works."""
    reader = Reader(path, production=0)
    reader.replay(77)
    cuda.synchronize()
    try:
        reader.lookup.check()
    except RowsError as found:
        if found.kind != "corrupt":
            raise
    else:
        raise AssertionError("no error was reported")
    reader.replay(78)
    check(reader)


def production(path: Path) -> None:
    """In production a damaged row ends the process."""
    reader = Reader(path)
    reader.replay(77)
    cuda.synchronize()
    time.sleep(30)


def check(reader: Reader) -> None:
    """All is answered, and rightly."""
    if reader.differs():
        raise AssertionError("rows differ")
    reader.lookup.check()


CASES: dict[str, Any] = {
    call.__name__: call for call in (busy, two_graphs, allocations, interpreter, error, production)
}

if __name__ == "__main__":
    CASES[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.write("done\n")
