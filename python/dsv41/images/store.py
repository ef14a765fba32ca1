"""The folder of blobs on a node: what has arrived whole, and what is on its way.

A blob is written beside its place, compared with its SHA-256 there, and renamed: a copy that was
cut goes on where it ended, and half of one is never taken. The folder is an OCI image layout, so
that podman loads from it, and its archive has what docker reads. It needs sh, coreutils and flock.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import BinaryIO

from dsv41.errors import CheckFailed
from dsv41.host.reach import Host
from dsv41.images.oci import OCI, Blob, Image, compact, digest_of

SLOWEST = 2_000_000  # bytes a second, far below a link of 100 Mbit/s
PATIENCE = 120.0  # seconds for everything that is not the copy itself
_EVERY = 0.5  # seconds between two looks at how far a copy is
_LIST = (
    'mkdir -p -- "$1/blobs/sha256" && cd -- "$1/blobs/sha256" && '
    'for f in * .*.part; do [ -f "$f" ] && stat -c "%s %n" -- "$f"; done; true'
)
_BUSY, _PARTIAL, _DAMAGED = 8, 9, 10
# $1 folder, $2 hex, $3 bytes that are there, $4 bytes that come, $5 bytes in all
_RECEIVE = f"""cd -- "$1/blobs/sha256" || exit 1
exec 9>.lock; flock -w 20 9 || {{ echo "another copy is on its way there" >&2; exit {_BUSY}; }}
part=".$2.part"; have=$(stat -c %s -- "$part" 2>/dev/null || echo 0)
[ "$have" = "$3" ] || {{ rm -f -- "$part"; echo "it has changed meanwhile" >&2; exit {_PARTIAL}; }}
head -c "$4" >>"$part" || exit 1
have=$(stat -c %s -- "$part")
[ "$have" = "$5" ] || {{ echo "$have of $5 bytes came" >&2; exit {_PARTIAL}; }}
sum=$(sha256sum <"$part"); sum=${{sum%% *}}
[ "$sum" = "$2" ] || {{ rm -f -- "$part"; echo "$sum" >&2; exit {_DAMAGED}; }}
chmod 644 "$part" && sync "$part" && mv -f -- "$part" "$2"
"""
_KEEP = 'cd -- "$1/blobs/sha256" && shift && rm -f -- "$@"'

Moved = Callable[[int], object]  # told how many bytes of a blob are there


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a node has: bytes by hex, of whole blobs and of those on their way."""

    whole: dict[str, int]
    parts: dict[str, int]

    def missing(self, image: Image) -> list[Blob]:
        """The layers that the node has not, or not whole."""
        return [layer for layer in image.layers if self.whole.get(layer.hex) != layer.size]

    def to_come(self, image: Image) -> int:
        """Bytes that have to be sent."""
        return sum(b.size - self.parts.get(b.hex, 0) for b in self.missing(image))


def folder_in(state_dir: str) -> str:
    """Where a node keeps the blobs."""
    return str(PurePath(state_dir) / "images")


def held(host: Host, folder: str) -> Held:
    """What is in the folder, which is made when absent."""
    whole, parts = {}, {}
    for line in host.ask(["sh", "-c", _LIST, "list", folder], sudo=True).splitlines():
        size, _, name = line.partition(" ")
        if name.startswith("."):
            parts[name[1:].removesuffix(".part")] = int(size)
        else:
            whole[name] = int(size)
    return Held(whole=whole, parts=parts)


def free(host: Host, path: str) -> tuple[str, int]:
    """The file system of a path, and the bytes that are free on it."""
    words = ["df", "-B1", "--output=source,avail", "--", path]
    source, avail = host.ask(words, sudo=True).splitlines()[-1].rsplit(maxsplit=1)
    return source, int(avail)


def send(host: Host, folder: str, blob: Blob, *, have: int, moved: Moved) -> None:
    """Bring one blob to its place; `have` bytes of it are there.

    Raises:
        CheckFailed: D417, when other bytes arrived than were meant; D412, when it could not be
            written, or another copy runs.
        Unreachable: D068, when the link was lost; what came stays for the next time.
    """
    if blob.path is None:
        raise ValueError(f"{blob.digest} has no bytes here")
    have = have if have <= blob.size else 0
    rest = blob.size - have
    words = ["sh", "-c", _RECEIVE, "receive", folder, blob.hex, str(have), str(rest)]
    with blob.path.open("rb", buffering=0) as file:
        file.seek(blob.offset + have)
        with _watched(file, lambda at: moved(min(at - blob.offset, blob.size))):
            done = host.run(
                [*words, str(blob.size)],
                stdin=file,
                seconds=PATIENCE + blob.size / SLOWEST,
                sudo=True,
            )
    if done.status == _DAMAGED:
        raise CheckFailed(
            "D417",
            f"{host.name}: the layer {blob.digest} arrived with SHA-256 {done.last_word}.",
            fix=f"nothing was kept; check {blob.path}, then run the same command again",
        )
    if done.status:
        raise CheckFailed(
            "D412",
            f"{host.name}: the layer {blob.digest} could not be written: {done.last_word}.",
            fix="mend that, then run the same command again: it goes on from there",
        )
    moved(blob.size)


def write(host: Host, folder: str, image: Image, *, reference: str, name: str) -> None:
    """The small files that make the folder a layout and an archive of this image alone."""
    small = {digest_of(data)[7:]: data for data in (image.manifest, image.config)}
    for key, data in small.items():
        host.put(data, f"{folder}/blobs/sha256/{key}", sudo=True)
    entry = {
        "mediaType": f"{OCI}.manifest.v1+json",
        "digest": image.digest,
        "size": len(image.manifest),
        # containerd's name for what docker calls it, beside OCI's own
        "annotations": {
            "org.opencontainers.image.ref.name": name,
            "io.containerd.image.name": name,
        },
    }
    index = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.index.v1+json",
        "manifests": [entry],
        "annotations": {"dsv41.reference": reference},
    }
    host.put(compact({"imageLayoutVersion": "1.0.0"}), f"{folder}/oci-layout", sudo=True)
    host.put(compact(index), f"{folder}/index.json", sudo=True)
    # what docker reads of an archive without an image store of containerd
    docker = {
        "Config": f"blobs/sha256/{image.config_digest[7:]}",
        "RepoTags": [name],
        "Layers": [f"blobs/sha256/{hexed}" for hexed in _in_order(image)],
    }
    host.put(compact([docker]), f"{folder}/manifest.json", sudo=True)


def members(image: Image) -> list[str]:
    """The files of the archive, the small ones first."""
    hexes = [image.digest[7:], image.config_digest[7:], *(b.hex for b in image.layers)]
    small = ["oci-layout", "index.json", "manifest.json"]
    return [*small, *(f"blobs/sha256/{hexed}" for hexed in hexes)]


def drop_others(host: Host, folder: str, image: Image) -> int:
    """Remove the blobs of other images, once this one is loaded; how many bytes that were."""
    kept = {image.digest[7:], image.config_digest[7:], *(b.hex for b in image.layers)}
    found = held(host, folder)
    others = {k: v for k, v in found.whole.items() if k not in kept}
    gone = [*others, *(f".{hexed}.part" for hexed in found.parts)]
    if gone:
        host.ask(["sh", "-c", _KEEP, "drop", folder, *gone], sudo=True)
    return sum(others.values()) + sum(found.parts.values())


def _in_order(image: Image) -> list[str]:
    layers = json.loads(image.manifest)["layers"]
    return [layer["digest"].removeprefix("sha256:") for layer in layers]


@contextlib.contextmanager
def _watched(file: BinaryIO, moved: Moved) -> Iterator[None]:
    """Tell how far the reader of a file is: a program that inherited it moves the same offset."""
    over, number = threading.Event(), os.dup(file.fileno())

    def watch() -> None:
        while not over.wait(_EVERY):
            moved(os.lseek(number, 0, os.SEEK_CUR))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.close(number)
