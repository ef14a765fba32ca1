"""Start the ranks of the local engine as an operator's supervisor would, and watch them end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from dsv41.api import Endpoint
from dsv41.geometry import DEFAULT_PARTITION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READY = 90.0  # seconds, generous: other tests may hold both cores


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ranks:
    """All ranks of one engine; logs are files below `folder`."""

    def __init__(self, world: int, *, checkpoint: Path, rows: Path, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.port = free_port()
        self.endpoint = Endpoint(url=f"http://127.0.0.1:{self.port}", timeout=60)
        self._master = f"127.0.0.1:{free_port()}"
        self._common = ["--checkpoint", str(checkpoint), "--rows", str(rows)]
        self._common += ["--partition", DEFAULT_PARTITION, "--world", str(world)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def argv(self, rank: int, *more: str) -> list[str]:
        argv = [sys.executable, "-m", "dsv41.local.rank", "--rank", str(rank)]
        argv += ["--master", self._master, *self._common, *more]
        return [*argv, "--serve", f"127.0.0.1:{self.port}"] if rank == 0 else argv

    def start(self, rank: int, *more: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"rank{rank}.log").open("wb") as log:
            self.processes[rank] = subprocess.Popen(
                self.argv(rank, *more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "DSV41_LOOP_ABORT": "0"},
            )
        return self.processes[rank]

    def log(self, rank: int) -> str:
        return (self.folder / f"rank{rank}.log").read_text()

    def wait_ready(self) -> None:
        until = time.monotonic() + READY
        while self.endpoint.status("/ready") != 200:
            ended = [r for r, p in self.processes.items() if p.poll() is not None]
            assert not ended, "".join(map(self.log, ended))
            assert time.monotonic() < until, self.log(0)
            time.sleep(0.05)

    def signal(self, number: signal.Signals, *ranks: int) -> None:
        for rank in ranks or range(self.world):
            self.processes[rank].send_signal(number)

    def statuses(self, *ranks: int, timeout: float) -> list[int]:
        """Exit statuses, each within `timeout` seconds from now."""
        until = time.monotonic() + timeout
        return [
            self.processes[rank].wait(max(0.01, until - time.monotonic()))
            for rank in ranks or range(self.world)
        ]

    def kill(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@contextlib.contextmanager
def running(world: int, *more: str, checkpoint: Path, rows: Path, folder: Path) -> Iterator[Ranks]:
    """Ranks that are ready; whatever is left of them is killed at the end."""
    ranks = Ranks(world, checkpoint=checkpoint, rows=rows, folder=folder)
    try:
        for rank in range(world):
            ranks.start(rank, *more)
        ranks.wait_ready()
        yield ranks
    finally:
        ranks.kill()
