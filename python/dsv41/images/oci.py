"""An image by its parts, and the parts by their hashes: OCI image-spec 1.0, as far as a copy needs.

Nothing is taken from a tag: an image is the manifest of one digest, whose config and layers it
names by theirs. Bytes of layers stay where they are until a node asks for them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv41.errors import CheckFailed

OCI = "application/vnd.oci.image"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LAYER = re.compile(  # a layer is a tar, plain or compressed, in OCI's words or Docker's
    r"application/vnd\.(oci\.image\.layer\.v1\.tar|docker\.image\.rootfs\.diff\.tar)([.+](gzip|zstd))?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """One layer: where its bytes are on this machine, or nowhere yet (`path` None)."""

    digest: str
    size: int
    media_type: str
    path: Path | None = None
    offset: int = 0

    @property
    def hex(self) -> str:
        """Its name in a folder of blobs."""
        return self.digest.removeprefix("sha256:")


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """A manifest and its config as bytes, and its layers from bottom to top, each once.

    `fetch` gives a layer that has no path yet its place on this machine.
    """

    digest: str
    manifest: bytes
    config: bytes
    layers: tuple[Blob, ...]
    fetch: Callable[[Blob], Blob] | None = None

    @property
    def config_digest(self) -> str:
        """What docker calls the image by, where it keeps no manifests."""
        return digest_of(self.config)

    @property
    def size(self) -> int:
        """Bytes of all layers as they are sent."""
        return sum(layer.size for layer in self.layers)


def digest_of(data: bytes) -> str:
    """`sha256:` and the hex of it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def compact(data: object) -> bytes:
    """JSON with sorted keys and no spaces, as the flake's images have it."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def unreadable(source: str, says: str) -> CheckFailed:
    """D415, of a source that is not what it must be."""
    return CheckFailed(
        "D415",
        f"{source} cannot be taken as an image: {says}.",
        fix="give --from an OCI folder, an archive of one, HOST/NAME@sha256:..., or nix",
    )


def other(source: str, wanted: str, found: list[str]) -> CheckFailed:
    """D414, of a source that has another image than the Plan's."""
    there = ", ".join(found) if found else "none"
    return CheckFailed(
        "D414",
        f"{source} has not the image of the Plan: expected {wanted}, found {there}.",
        fix="build the image of this version, or make the Plan with --image NAME@sha256:...",
    )


def descriptors(manifest: bytes, *, source: str) -> tuple[Mapping[str, Any], list[Blob]]:
    """The config's descriptor and the layers of a manifest, each layer once; D415 for others."""
    try:
        found = json.loads(manifest)
        members = found.get("manifests")
        if members is not None:
            raise unreadable(source, f"it is an index; its members are {_members(members)}")
        layers = [
            Blob(
                digest=_checked(e["digest"]), size=int(e["size"]), media_type=_layer(e["mediaType"])
            )
            for e in found["layers"]
        ]
        config = found["config"]
        _checked(config["digest"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(source, f"its manifest is malformed ({error!r})") from error
    return config, list({layer.digest: layer for layer in layers}.values())


def assembled(
    digest: str,
    manifest: bytes,
    config: bytes,
    layers: list[Blob],
    *,
    source: str,
    fetch: Callable[[Blob], Blob] | None = None,
) -> Image:
    """The image, when manifest and config have their digests and each layer its size."""
    if digest_of(manifest) != digest:
        raise other(source, digest, [digest_of(manifest)])
    described, named = descriptors(manifest, source=source)
    if digest_of(config) != described["digest"]:
        raise unreadable(source, f"its config has SHA-256 {digest_of(config)}")
    given = {layer.digest: layer for layer in layers}
    for layer in named:
        have = given.get(layer.digest)
        if have is None and fetch is None:
            raise unreadable(source, f"the layer {layer.digest} is not there")
        if have is not None and have.size != layer.size:
            raise unreadable(
                source, f"the layer {layer.digest} has {have.size} bytes, expected {layer.size}"
            )
    return Image(
        digest=digest,
        manifest=manifest,
        config=config,
        layers=tuple(given.get(layer.digest, layer) for layer in named),
        fetch=fetch,
    )


def _members(members: list[Mapping[str, Any]]) -> str:
    told = (f"{m['digest']} ({m.get('platform', {}).get('architecture', '?')})" for m in members)
    return ", ".join(told)


def _checked(digest: object) -> str:
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is no SHA-256")
    return digest


def _layer(kind: object) -> str:
    if not isinstance(kind, str) or not LAYER.fullmatch(kind):
        raise ValueError(f"a layer of type {kind!r}")
    return kind
