"""Read a checkpoint's files and compare them with what was published, file by file.

Standard library alone: it runs from the zipped program on a node. Files are read in parallel, in
pieces that leave the page cache right away (posix_fadvise DONTNEED): the cache of a node that
serves is its engine's memory.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from dsv41.weights.published import GIT_BLOB, RECORDS, File, Published
from dsv41.weights.receipt import Receipt

WORKERS = min(8, os.cpu_count() or 1)  # SHA-256 in hardware: 1 to 2 GB/s a core, a disk has 5
_PIECE = 4 << 20
_KEPT = 32 << 20  # bytes of one file that may stay in the page cache while it is read
_EVERY = 2.0  # seconds between two words of progress

Progress = Callable[[int, int], object]  # bytes done, bytes in all


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One file: ok, or what is wrong with it.

    `status`: ok, differs, short, long, missing, incomplete, broken-link, unreadable, changed (while
    it was read), unknown (nothing says what it should be).
    """

    path: str
    status: str
    says: str = ""
    expected: str | None = None
    found: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What came of a checkpoint. `known` files were not read again; `left` are unfinished rests."""

    files: tuple[Checked, ...]
    left: tuple[str, ...]
    read_bytes: int
    known: int
    receipt_fault: str

    @property
    def status(self) -> str:
        """Whether all is well: fail when a file is wrong, unknown when one could not be judged."""
        found = {file.status for file in self.files}
        return "fail" if found - {"ok", "unknown"} else "unknown" if "unknown" in found else "ok"


class Stopped(Exception):
    """The reading was broken off."""


def verify(
    folder: Path,
    published: Published,
    *,
    receipt: Receipt,
    again: bool = False,
    workers: int = WORKERS,
    progress: Progress | None = None,
) -> Verified:
    """Compare every published file. `again` reads untouched files too."""
    rests = unfinished(folder)
    work = _Work(folder, receipt=receipt, again=again, rests=rests)
    largest_first = sorted(published.files, key=lambda file: -(file.size or 0))
    total = published.bytes or sum(_size(folder / file.path) for file in published.files)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        jobs = [pool.submit(work.check, file) for file in largest_first]
        try:
            _watch(jobs, lambda: progress and progress(work.done_bytes, total))
            found = [job.result() for job in jobs]
        except BaseException:
            work.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    found += [_unknown(folder, path, published.source) for path in published.unknown]
    return Verified(
        files=tuple(sorted(found, key=lambda file: file.path)),
        left=tuple(sorted(str(path.relative_to(folder)) for path in rests)),
        read_bytes=work.read_bytes,
        known=work.known,
        receipt_fault=receipt.fault,
    )


def _unknown(folder: Path, path: str, source: str) -> Checked:
    if not (folder / path).exists():
        return Checked(path=path, status="missing", says="it is not there")
    return Checked(path=path, status="unknown", says=f"the {source} do not tell what it should be")


def unfinished(folder: Path) -> list[Path]:
    """The files of downloads that were broken off, wherever they lie below the folder."""
    return sorted(folder.rglob("*.incomplete"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _watch(jobs: list[Future[Checked]], tell: Callable[[], object]) -> None:
    """Wait for all; the first error ends the waiting."""
    waiting = set(jobs)
    while waiting:
        done, waiting = wait(waiting, timeout=_EVERY, return_when=FIRST_COMPLETED)
        for job in done:
            job.result()
        tell()


class _Work:
    """What the threads share."""

    def __init__(self, folder: Path, *, receipt: Receipt, again: bool, rests: list[Path]) -> None:
        self.folder = folder
        self.receipt = receipt
        self.again = again
        self.rests = rests
        self.stop = threading.Event()
        self.read_bytes = self.done_bytes = self.known = 0
        self._lock = threading.Lock()

    def count(self, *, read: int = 0, known: int = 0, skipped: int = 0) -> None:
        """Add to the sums; bytes that need no reading count as done."""
        with self._lock:
            self.read_bytes += read
            self.done_bytes += read + skipped
            self.known += known

    def check(self, file: File) -> Checked:
        """Judge one file."""
        path = self.folder / file.path
        try:
            stat = path.stat()
            if file.size is not None and stat.st_size != file.size:
                self.count(skipped=file.size)
                status = "short" if stat.st_size < file.size else "long"
                says = f"{stat.st_size:,} bytes of {file.size:,}"
                return Checked(path=file.path, status=status, says=says)
            return self._compared(file, self._digest(file, path, stat))
        except FileNotFoundError:
            return self._absent(file, path)
        except OSError as error:
            return Checked(path=file.path, status="unreadable", says=error.strerror or str(error))

    @staticmethod
    def _compared(file: File, digest: str | None) -> Checked:
        if digest is None:
            return Checked(path=file.path, status="changed", says="it changed while it was read")
        if digest != file.digest:
            says = f"its {file.kind} is {digest[:12]}..., published is {file.digest[:12]}..."
            return Checked(
                path=file.path, status="differs", says=says, expected=file.digest, found=digest
            )
        return Checked(path=file.path, status="ok", expected=file.digest, found=digest)

    def _absent(self, file: File, path: Path) -> Checked:
        self.count(skipped=file.size or 0)
        if path.is_symlink():
            says = f"it leads to {path.readlink()}, which is not there"
            return Checked(path=file.path, status="broken-link", says=says)
        begun = [rest for rest in self.rests if file.digest in rest.name or _rest_of(rest, path)]
        if begun:
            says = f"{_size(begun[0]):,} bytes of {file.size or 0:,} were fetched"
            return Checked(path=file.path, status="incomplete", says=says)
        return Checked(path=file.path, status="missing", says="it is not there")

    def _digest(self, file: File, path: Path, stat: os.stat_result) -> str | None:
        """The hash, from the receipt or by reading; None when the file changed meanwhile."""
        known = None if self.again else self.receipt.known(file.path, file.kind, stat)
        if known:
            self.count(known=1, skipped=stat.st_size)
            return known
        digest, after = self._read(path, _hasher(file.kind, stat.st_size))
        if (after.st_size, after.st_mtime_ns, after.st_ino) != (
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ino,
        ):
            return None
        self.receipt.keep(file.path, file.kind, digest, after)
        return digest

    def _read(self, path: Path, hasher: hashlib._Hash) -> tuple[str, os.stat_result]:
        view = memoryview(bytearray(_PIECE))
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            at = dropped = 0
            while size := os.readv(handle, [view]):
                if self.stop.is_set():
                    raise Stopped
                hasher.update(view[:size])
                self.count(read=size)
                at += size
                if at - dropped >= _KEPT:
                    os.posix_fadvise(handle, dropped, at - dropped, os.POSIX_FADV_DONTNEED)
                    dropped = at
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            return hasher.hexdigest(), os.fstat(handle)
        finally:
            os.close(handle)


def _hasher(kind: str, size: int) -> hashlib._Hash:
    if kind == GIT_BLOB:  # git's own id of a blob; it guards against accidents, as git does
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.sha256()


def _rest_of(rest: Path, path: Path) -> bool:
    """Whether an unfinished file is named after its target, as older clients do."""
    return RECORDS not in rest.as_posix() and rest.name == f"{path.name}.incomplete"
