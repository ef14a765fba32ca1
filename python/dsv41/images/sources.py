"""Where an image comes from: a Nix build, an OCI folder, an archive, or a registry.

All of them give the image of one digest or nothing. A docker archive has no manifest; the one that
the flake's images have is made of its config and layers, and counts when it has the digest.
Formats: OCI image-layout.md 1.0; the archive of `docker save` (Docker image spec 1.2).
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from dsv41.errors import CheckFailed
from dsv41.images import registry
from dsv41.images.oci import (
    OCI,
    Blob,
    Image,
    assembled,
    compact,
    descriptors,
    digest_of,
    other,
    unreadable,
)

NIX = "nix"
# name of a member -> its Blob, or None
_Find: TypeAlias = Callable[[str], "Blob | None"]
_TAR = f"{OCI}.layer.v1.tar"


def find(given: str, *, wanted: str, name: str, kept: Path) -> Image:
    """The image of the digest `wanted` in what `--from` names.

    `name` is the flake's name of it, for `nix`; `kept` the folder for layers of a registry.

    Raises:
        CheckFailed: D414, when it has another image; D415, when it is no image, or cannot be built;
            D418, of a registry.
    """
    path = Path(given)
    if given == NIX:
        return from_folder(built(name), wanted)
    if path.is_dir():
        return from_folder(path, wanted)
    if path.is_file():
        return from_archive(path, wanted)
    if "@sha256:" in given:
        return from_registry(given, wanted, kept)
    raise unreadable(given, "there is no such file or folder, and it is no reference with a digest")


def built(name: str) -> Path:
    """The result of the flake's build of an image in this folder's checkout."""
    command = ["nix", "build", "--no-link", "--print-out-paths", f".#image-{name}"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError as error:
        raise CheckFailed(
            "D415",
            "This machine has no nix, so that no image can be built here.",
            fix="bring one along: --from DIR, --from FILE or --from HOST/NAME@sha256:...",
        ) from error
    if done.returncode:
        raise CheckFailed(
            "D415",
            f"nix build .#image-{name} ended with {done.returncode}; its words are above.",
            fix="run it in a checkout of dsv41, or give --from another source",
        )
    return Path(done.stdout.strip())


def from_folder(folder: Path, wanted: str) -> Image:
    """An OCI image layout; its blobs may be links."""

    def blob(name: str) -> Blob | None:
        path = folder / name
        if not path.is_file():
            return None
        return Blob(digest=_digest(name), size=path.stat().st_size, media_type="", path=path)

    return _layout(blob, wanted, source=str(folder))


def from_archive(file: Path, wanted: str) -> Image:
    """A tar of an OCI image layout, or what `docker save` writes. Not compressed."""
    try:
        with tarfile.open(file, "r:") as archive:
            members = {m.name.removeprefix("./"): m for m in archive if m.isreg()}
            links = {m.name: m.linkname for m in archive.getmembers() if m.issym() or m.islnk()}
    except (OSError, tarfile.TarError) as error:
        raise unreadable(str(file), f"{error}; an archive must be a plain tar") from error

    def blob(name: str) -> Blob | None:
        member = members.get(_target(name, links))
        if member is None:
            return None
        return Blob(
            digest=_digest(name),
            size=member.size,
            media_type="",
            path=file,
            offset=member.offset_data,
        )

    if "index.json" in members:
        return _layout(blob, wanted, source=str(file))
    if "manifest.json" in members:
        return _docker(blob, wanted, source=str(file))
    raise unreadable(str(file), "it has neither index.json nor manifest.json")


def from_registry(reference: str, wanted: str, kept: Path) -> Image:
    """An image of a registry; layers are fetched when a node wants them, and kept in a folder."""
    place, _, digest = reference.partition("@")
    if digest != wanted:
        raise other(reference, wanted, [digest])
    asked = registry.Registry(place)
    manifest = asked.get("manifests", digest)
    config, _ = descriptors(manifest, source=reference)
    return assembled(
        wanted,
        manifest,
        asked.get("blobs", str(config["digest"])),
        [],
        source=reference,
        fetch=lambda blob: asked.fetch(blob, kept),
    )


def _layout(blob: _Find, wanted: str, *, source: str) -> Image:
    index = _json(blob("index.json"), source)
    listed = index.get("manifests") if isinstance(index, dict) else None
    if not isinstance(listed, list):
        raise unreadable(source, "its index.json lists no manifests")
    found = blob(_name(wanted))
    if found is None:
        raise other(source, wanted, [str(e.get("digest")) for e in listed if isinstance(e, dict)])
    manifest = _bytes(found)
    config, layers = descriptors(manifest, source=source)
    held = blob(_name(str(config["digest"])))
    if held is None:
        raise unreadable(source, f"the config {config['digest']} is not there")
    there = [found for layer in layers if (found := blob(_name(layer.digest)))]
    return assembled(wanted, manifest, _bytes(held), there, source=source)


def _docker(blob: _Find, wanted: str, *, source: str) -> Image:
    """The manifest as the flake's images have it: plain layers, whose digests the config lists."""
    try:
        (entry,) = _json(blob("manifest.json"), source)
        held = blob(entry["Config"])
        config = b"" if held is None else _bytes(held)
        named = json.loads(config)["rootfs"]["diff_ids"]
        files = [found for name in entry["Layers"] if (found := blob(name))]
        pairs = list(zip(named, files, strict=True))
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(source, f"it is not one image of docker save ({error!r})") from error
    layers = [
        Blob(digest=digest, size=f.size, media_type=_TAR, path=f.path, offset=f.offset)
        for digest, f in pairs
    ]
    manifest = compact(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": {
                "mediaType": f"{OCI}.config.v1+json",
                "digest": digest_of(config),
                "size": len(config),
            },
            "layers": [
                {"mediaType": _TAR, "digest": one.digest, "size": one.size} for one in layers
            ],
        }
    )
    return assembled(wanted, manifest, config, layers, source=f"{source} (a docker archive)")


def _target(name: str, links: dict[str, str]) -> str:
    """A docker archive names a layer that it has twice by a link, relative to its folder."""
    if name not in links:
        return name
    return str(Path("/", Path(name).parent, links[name]).resolve()).lstrip("/")


def _json(blob: Blob | None, source: str) -> Any:
    if blob is None:
        raise unreadable(source, "it has no index.json")
    try:
        return json.loads(_bytes(blob))
    except ValueError as error:
        raise unreadable(source, f"{error}") from error


def _bytes(blob: Blob) -> bytes:
    if blob.path is None:
        raise ValueError(f"{blob.digest} has no bytes here")
    with blob.path.open("rb") as file:
        file.seek(blob.offset)
        return file.read(blob.size)


def _name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _digest(name: str) -> str:
    return f"sha256:{name.rpartition('/')[2]}"
