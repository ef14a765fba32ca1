"""Starts engine processes, several at once, and keeps them for the tests of a session."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START_SECONDS = 420  # the first start compiles kernels: 172 s were seen
ANSWER_SECONDS = 300
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_DEEP_GEMM_WARMUP": "skip",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


class EngineEnded(RuntimeError):
    """The process ended, or said nothing in time; the message has the end of its log."""


@dataclass(kw_only=True)
class Process:
    """One engine process."""

    name: str
    child: subprocess.Popen[bytes]
    log: Path
    listener: Listener
    connection: Connection | None = None
    start_seconds: float = 0.0

    def ask(self, call: str, *arguments: Any) -> Any:
        """One request and its answer."""
        assert self.connection is not None
        self.connection.send((call, arguments))
        return self.receive(ANSWER_SECONDS)

    def receive(self, limit: float) -> Any:
        """The next message; EngineEnded when the process is gone or silent."""
        end = time.monotonic() + limit
        assert self.connection is not None
        while not self.connection.poll(0.2):
            if self.child.poll() is not None or time.monotonic() > end:
                raise EngineEnded(f"{self.name}: status {self.child.poll()}\n{self.said()[-3000:]}")
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError) as error:
            self.child.wait(30)
            raise EngineEnded(f"{self.name}: {error!r}\n{self.said()[-3000:]}") from error

    def said(self) -> str:
        """The whole log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """Let it end, or end it."""
        if self.connection is not None:
            self.connection.close()
        self.listener.close()
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


@dataclass(kw_only=True)
class Fleet:
    """The engines of a session, by name: `stock-MODE`, or `rows-MODE` with rows from files."""

    folder: Path
    model: Path
    rows: Path
    distribution: Path  # folder with the plugin's entry points, as an installation has them
    devices: int
    running: dict[str, Process] = field(default_factory=dict)
    count: int = 0

    def begin(self, name: str, **environ: str) -> None:
        """Start one, without waiting for it."""
        if name not in self.running:
            self.running[name] = self._spawn(name, environ)

    def start(self, *names: str) -> dict[str, Process]:
        """Start those that do not run yet, all at once, and wait until all can answer."""
        for name in names:
            self.begin(name)
        waiting = [self.running[name] for name in names if not self.running[name].connection]
        with ThreadPoolExecutor(max_workers=max(1, len(waiting))) as pool:
            for done in [pool.submit(_until_ready, process) for process in waiting]:
                done.result()
        return {name: self.running[name] for name in names}

    def launch(self, name: str, **environ: str) -> Process:
        """Start one that may well end; the caller waits and stops it."""
        return self._spawn(name, environ)

    def python_path(self) -> str:
        """Where this process finds its modules, for others; the interpreter's own stay out."""
        own = (sys.base_prefix, sys.prefix)
        found = [path for path in sys.path if path and not path.startswith(own)]
        return os.pathsep.join([*found, str(self.distribution)])

    def _spawn(self, name: str, environ: dict[str, str]) -> Process:
        kind, mode = name.split("-", 1)
        self.count += 1
        log = self.folder / f"{self.count:02}-{name}.log"
        address = str(self.folder / f"{self.count}.sock")
        listener = Listener(address, "AF_UNIX")
        env = os.environ | ENVIRONMENT | {"DSV41_GPU_MODEL": str(self.model)}
        env["PYTHONPATH"] = self.python_path()
        if kind == "rows":
            env |= {"DSV41_PACKED_DIR": str(self.rows), "DSV41_ENGRAM_PARTITION": "strided"}
        if not mode.startswith("two"):
            env["CUDA_VISIBLE_DEVICES"] = str(self.count % self.devices)
        with log.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, str(HERE / "engine_process.py"), address, mode.partition("@")[0]],
                env=env | environ,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Process(name=name, child=child, log=log, listener=listener)

    def stop(self, *names: str) -> None:
        """Stop those engines, or all."""
        chosen = [self.running.pop(name) for name in names or tuple(self.running)]
        with ThreadPoolExecutor(max_workers=max(1, len(chosen))) as pool:
            list(pool.map(Process.stop, chosen))


def distribution(folder: Path) -> Path:
    """Write the entry points of pyproject.toml as an installed distribution has them."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text)
    groups = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return folder


def _until_ready(process: Process) -> None:
    wait_connected(process)
    _, process.start_seconds = process.receive(START_SECONDS)


def wait_connected(process: Process) -> None:
    """Accept the process's connection; EngineEnded when it ended before."""
    # the process connects before it imports anything slow, so this takes a second or fails
    process.listener._listener._socket.settimeout(60)  # type: ignore[attr-defined]
    try:
        process.connection = process.listener.accept()
    except TimeoutError as error:
        raise EngineEnded(f"{process.name} never connected\n{process.said()[-3000:]}") from error
