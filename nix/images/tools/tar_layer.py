"""One layer of an image as a deterministic tar.

The same entries give the same bytes on every machine: names sorted, parents added, owner 0:0
without names, one modification time, no extended attributes. The format is POSIX pax, where a long
or non-ASCII name takes a pax record (GNU's extensions are not used); OCI image-spec, layer.md.

Nothing here is decided by order: two sources that bring the same path are an error, unless a rule
says which of them has it.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

MTIME = 1  # SOURCE_DATE_EPOCH=1: some tools take 0 for "no time"
WHITEOUT = ".wh."  # a name that hides one of a lower layer; image-spec, layer.md
OPAQUE = ".wh..wh..opq"  # hides all that lower layers have in the folder
CHUNK = 1 << 20
# no set-user-id, no set-group-id: all files belong to 0:0 here, whatever they belonged to before
MODE_BITS = 0o1777

Kind = Literal["dir", "file", "link", "hard"]


class Refused(Exception):
    """Something that must not get into an image; the text begins with its code."""


# what the readers of packages raise of bytes that are cut off or changed; RuntimeError is zipfile's
# for an encrypted member
_DAMAGED = (
    *(lzma.LZMAError, gzip.BadGzipFile, zlib.error, tarfile.TarError, zipfile.BadZipFile),
    *(EOFError, ValueError, RuntimeError, csv.Error),
)


@contextmanager
def readable(package: str) -> Iterator[None]:
    """Refused D187 for a package that a reader of its format cannot read."""
    try:
        yield
    except _DAMAGED as error:
        problem = str(error).rstrip(".") or type(error).__name__
        raise Refused(f"D187 {package} cannot be read: {problem}.") from error


class Writable(Protocol):
    """Where a layer goes."""

    def write(self, data: bytes, /) -> int:
        """Take the bytes; how many there were."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bytes:
    """Bytes at hand."""

    content: bytes

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self.content)

    def chunks(self) -> Iterator[bytes]:
        """The bytes."""
        yield self.content


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """`size` bytes of a file from `offset`."""

    path: Path
    size: int
    offset: int = 0

    def chunks(self) -> Iterator[bytes]:
        """The bytes; Refused D184 when the file ends before them."""
        left = self.size
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while left:
                chunk = file.read(min(left, CHUNK))
                if not chunk:
                    raise Refused(f"D184 {self.path} ends {left} bytes before it should.")
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class Zipped:
    """A member of a zip archive whose SHA-256 must be `sha256` (hex)."""

    archive: Path
    member: str
    size: int
    sha256: str

    def chunks(self) -> Iterator[bytes]:
        """The bytes; Refused D187 when they are not those that the archive's RECORD names."""
        digest = hashlib.sha256()
        name = self.archive.name
        with readable(name), _opened(self.archive).open(self.member) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != self.sha256:
            raise Refused(
                f"D187 {self.member} of {self.archive.name} has SHA-256 {digest.hexdigest()}; its "
                f"RECORD says {self.sha256}."
            )


@functools.cache
def _opened(archive: Path) -> zipfile.ZipFile:
    """An archive, opened once: reading the directory of torch's 15,000 members takes 0.2 s."""
    return zipfile.ZipFile(archive)


Data = Bytes | Span | Zipped


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A path of the layer and what brings it.

    `path` has no leading slash. `target` is where a link points to, or the path of the file that a
    hard link is another name of. `asked` allows a name that hides one of a lower layer.
    """

    path: str
    kind: Kind
    owner: str
    mode: int = 0o644
    target: str = ""
    data: Data = Bytes(content=b"")
    asked: bool = False


@dataclass(kw_only=True, slots=True)
class Layer:
    """The entries of one layer. `rules` maps a path to the owner that has it, or to None: left out.

    A rule without a collision is an error as well: it would hide the next one.
    """

    rules: Mapping[str, str | None] = field(default_factory=dict)
    _entries: dict[str, Entry] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    def add(self, entry: Entry) -> None:
        """Take an entry; Refused D184 for an unsafe name or a path that two sources bring."""
        _check_name(entry)
        if entry.path in self.rules:
            wanted = self.rules[entry.path]
            if wanted is None or wanted != entry.owner:
                self._used.add(entry.path)
                return
        have = self._entries.get(entry.path)
        if have is None:
            self._entries[entry.path] = replace(entry, mode=entry.mode & MODE_BITS)
        elif not (have.kind == entry.kind == "dir" and have.mode == entry.mode & MODE_BITS):
            raise Refused(
                f"D184 {entry.path} comes from {have.owner} and from {entry.owner} "
                f"({have.kind} {have.mode:o}, {entry.kind} {entry.mode & MODE_BITS:o})."
            )

    def extend(self, entries: Iterable[Entry]) -> None:
        """Take many."""
        for entry in entries:
            self.add(entry)

    def write(self, out: Writable) -> None:
        """Write the tar."""
        for entry in self.ordered():
            # a file's size stands in its header
            size = entry.data.size if entry.kind == "file" else 0
            out.write(_header(entry, size=size))
            if entry.kind == "file":
                written = 0
                for chunk in entry.data.chunks():
                    written += out.write(chunk)
                if written != size:
                    raise Refused(f"D184 {entry.path} has {written} bytes, expected {size}.")
                out.write(bytes(-size % tarfile.BLOCKSIZE))
        out.write(bytes(2 * tarfile.BLOCKSIZE))

    def ordered(self) -> list[Entry]:
        """All entries by name, parents before what is in them, a file before its hard links."""
        unused = sorted(set(self.rules) - self._used)
        if unused:
            raise Refused(f"D184 a rule names {unused[0]}, and nothing had to give way there.")
        whole = dict(self._entries)
        for path, entry in self._entries.items():
            for parent in _parents(path):
                above = whole.setdefault(
                    parent, Entry(path=parent, kind="dir", owner=entry.owner, mode=0o755)
                )
                if above.kind != "dir":
                    raise Refused(
                        f"D184 {path} of {entry.owner} lies below {parent}, which is no folder in "
                        f"{above.owner}."
                    )
        _first_name_has_the_bytes(whole)
        return [whole[path] for path in sorted(whole)]


def _check_name(entry: Entry) -> None:
    parts = entry.path.split("/")
    try:
        entry.path.encode()
        readable = "\0" not in entry.path
    except UnicodeEncodeError:
        readable = False
    if not readable or any(part in ("", ".", "..") for part in parts):
        raise Refused(f"D184 {entry.owner} brings the unsafe name {entry.path!r}.")
    if parts[-1].startswith(WHITEOUT) and not entry.asked:
        raise Refused(
            f"D184 {entry.owner} brings {entry.path}, which would hide a file of a lower layer."
        )


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _first_name_has_the_bytes(whole: dict[str, Entry]) -> None:
    """Turn each group of hard links so that the first name in order is the file."""
    groups: dict[str, list[str]] = {}
    for path, entry in whole.items():
        if entry.kind == "hard":
            groups.setdefault(entry.target, []).append(path)
    for target, names in groups.items():
        real = whole.get(target)
        if real is None or real.kind != "file":
            raise Refused(f"D184 {names[0]} is a hard link to {target}, which is no file here.")
        first, *others = sorted([target, *names])
        whole[first] = replace(real, path=first)
        for other in others:
            whole[other] = Entry(
                path=other, kind="hard", owner=real.owner, mode=real.mode, target=first
            )


_TYPES = {
    "dir": tarfile.DIRTYPE,
    "file": tarfile.REGTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
}


def _header(entry: Entry, *, size: int) -> bytes:
    info = tarfile.TarInfo(entry.path + "/" * (entry.kind == "dir"))
    info.type = _TYPES[entry.kind]
    info.mode = 0o777 if entry.kind == "link" else entry.mode
    info.size, info.mtime, info.linkname = size, MTIME, entry.target
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
