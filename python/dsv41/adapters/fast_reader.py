"""Tensors of safetensors files, read by many threads ahead of the one who loads them.

Wanted pieces are read past the page cache (O_DIRECT) where the file system can, since on a Spark
the cache takes the memory that weights need; elsewhere they are dropped from the cache once read,
and the log says so. No more than a budget of memory is held at a time, tensors that were handed out
and not yet dropped included.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41.adapters.file_memory import Memory, read_into, unreadable
from dsv41.adapters.read_plan import Plan, Wanted

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
THREADS = 16  # a GB10's drive gives 5.8 GB/s to 16 readers (MiaAI-Lab's fast loader)
PIECE = 8 << 20  # bytes of one read
MOST_AHEAD = 256  # tensors, for the small ones
MOST_HELD = 8192  # tensors: each is up to three mappings, of 65,530 that Linux gives a process
PATIENCE = 30.0  # seconds without a tensor dropped, after which the loader keeps them on purpose
TORCH = {
    "I8": "int8",
    "U8": "uint8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "I64": "int64",
}


@dataclass(kw_only=True)
class Held:
    """Memory of a load: held now, and sums over it. Changed as tensors are dropped, anywhere."""

    budget: int
    tensors: int = 0
    bytes: int = 0
    read: int = 0
    faulted: int | None = 0
    dropped: int = 0
    most: int = MOST_HELD
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, count: int) -> None:
        """Count a tensor that is held from now on, and its memory."""
        with self.changed:
            self.tensors += 1
            self.bytes += count

    def release(self, count: int, faulted: int | None) -> None:
        """Count memory that was given back, and what was looked at beyond it."""
        with self.changed:
            self.tensors -= 1
            self.bytes -= count
            self.dropped += 1
            both = self.faulted is not None and faulted is not None
            self.faulted = (self.faulted or 0) + (faulted or 0) if both else None
            self.changed.notify_all()

    def wait(self, given: int) -> None:
        """Until there is room, or nothing is dropped for so long that waiting is of no use.

        `given`: bytes of the tensor that was handed out last, which a loop may still hold.
        """
        with self.changed:
            while self.bytes - given >= self.budget or self.tensors > self.most:
                before = self.dropped
                self.changed.wait(PATIENCE)
                if self.dropped == before:
                    says = "fast_load: the loader keeps %d tensors, %d bytes"
                    log.warning(says, self.tensors, self.bytes)
                    self.budget, self.most = 2 * self.bytes + 1, 2 * self.tensors
                    return


class Source:
    """One open file: for mapping, and for reading past the page cache where that can be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.mapped = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error.strerror or "it cannot be opened") from error
        try:
            self.direct = _open_direct(path)
        except OSError as error:
            log.warning("fast_load: %s is read through the page cache: %s", path, error.strerror)
            self.direct = -1

    def read(self, *, address: int, length: int, offset: int, least: int) -> int:
        """As `read_into`."""
        cached = self.direct < 0
        where = self.mapped if cached else self.direct
        count = read_into(
            where, self.path, address=address, length=length, offset=offset, least=least
        )
        if cached:
            os.posix_fadvise(where, offset, length, os.POSIX_FADV_DONTNEED)
        return count

    def close(self) -> None:
        """Mapped memory outlives it."""
        for descriptor in {self.mapped, self.direct} - {-1}:
            os.close(descriptor)


def _open_direct(path: Path) -> int:
    """A descriptor that reads past the page cache; OSError where the file system cannot."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    # some file systems take the flag and refuse the read; one page shows it
    page = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        os.preadv(descriptor, [page], 0)
    except OSError as error:
        if error.errno == errno.EINVAL:
            os.close(descriptor)
            raise
    return descriptor


@dataclass(frozen=True, kw_only=True, slots=True)
class Coming:
    """A tensor whose bytes are being read."""

    name: str
    tensor: Tensor
    reads: list[Future[int]]


class Reader:
    """The tensors that a plan wants of some files; to be gone through once."""

    def __init__(self, files: Iterable[Path], plan: Plan, *, budget: int) -> None:
        self.files, self.plan = list(files), plan
        self.held = Held(budget=budget)
        self.sources: list[Source] = []
        self.seconds, self.given = 0.0, 0

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors in the order of the files' bytes."""
        todo, ahead = self._wanted(), deque[Coming]()
        begun = time.perf_counter()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="fast_load") as pool:
            try:
                while self._fill(todo, ahead, pool):
                    coming = ahead.popleft()
                    self.given = sum(read.result() for read in coming.reads)
                    self.held.read += self.given
                    name, tensor = coming.name, coming.tensor
                    del coming
                    yield name, tensor
                    del tensor
            finally:
                for coming in ahead:
                    for read in coming.reads:
                        read.cancel()
                pool.shutdown()  # no thread may read into memory that is given back
                for source in self.sources:
                    source.close()
                self.seconds = time.perf_counter() - begun

    def _wanted(self) -> Iterator[tuple[Source, Wanted]]:
        for path in self.files:
            wanted = list(self.plan.of_file(path))
            if wanted:
                self.sources.append(Source(path))
                yield from ((self.sources[-1], one) for one in wanted)

    def _fill(
        self,
        todo: Iterator[tuple[Source, Wanted]],
        ahead: deque[Coming],
        pool: ThreadPoolExecutor,
    ) -> bool:
        """Begin reads up to the budget, of one tensor at least; whether a tensor is coming."""
        if not ahead:
            self.held.wait(self.given)
        while not ahead or (self.held.bytes < self.held.budget and len(ahead) < MOST_AHEAD):
            found = next(todo, None)
            if found is None:
                break
            ahead.append(self._begin(*found, pool))
        return bool(ahead)

    def _begin(self, source: Source, wanted: Wanted, pool: ThreadPoolExecutor) -> Coming:
        import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

        stored = wanted.stored
        dtype = getattr(torch, TORCH[stored.dtype])
        if not stored.bytes:
            return Coming(name=stored.name, tensor=torch.empty(stored.shape, dtype=dtype), reads=[])
        memory = Memory(
            source.mapped, start=stored.start, size=stored.bytes, on_release=self.held.release
        )
        reads = [*self._reads(source, wanted, memory, pool)]
        flat = torch.frombuffer(memory.bytes, dtype=torch.uint8)
        tensor = flat.view(dtype).view(stored.shape)
        return Coming(name=stored.name, tensor=tensor, reads=reads)

    def _reads(
        self, source: Source, wanted: Wanted, memory: Memory, pool: ThreadPoolExecutor
    ) -> Iterator[Future[int]]:
        if wanted.first == wanted.last:
            self.held.take(0)
            return
        address, length, offset = memory.room(wanted.first, wanted.last)
        self.held.take(length)
        end = wanted.stored.start + wanted.last
        for piece in range(0, length, PIECE):
            yield pool.submit(
                _keep,
                memory.bytes,
                source,
                address=address + piece,
                length=min(PIECE, length - piece),
                offset=offset + piece,
                least=min(PIECE, end - offset - piece),
            )


def _keep(_held: Any, source: Source, **read: int) -> int:
    """Read, with the memory held meanwhile."""
    return source.read(**read)
