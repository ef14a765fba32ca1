"""A tiny image made by the flake's own tool, and the forms in which it can be brought along."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
from pathlib import Path

import oci_image

NAME = "localhost/dsv41/tiny"
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def made(folder: Path, **layers: bytes) -> str:
    """An OCI folder `folder`/layout with a layer of one file for each name; its digest."""
    folder.mkdir(exist_ok=True)
    spec = {
        "name": f"{NAME}:any",
        "arch": ARCH,
        "os": "linux",
        "base": None,
        "layers": [_layer(folder, name, data) for name, data in layers.items()],
        "config": {
            "env": {},
            "prepend": {},
            "entrypoint": ["/bin/true"],
            "cmd": [],
            "workdir": "",
            "labels": {},
        },
    }
    image = oci_image.assemble(spec)
    oci_image.write_layout(image, folder / "layout")
    return image.digest


def _layer(folder: Path, name: str, data: bytes) -> dict[str, object]:
    path = folder / f"{name}.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return {"comment": name, "blob": str(path), "diff_id": None}


def archive(layout: Path, file: Path) -> Path:
    """The OCI folder as a plain tar."""
    with tarfile.open(file, "w", dereference=True) as made_of:
        for entry in sorted(layout.rglob("*")):
            made_of.add(entry, arcname=str(entry.relative_to(layout)), recursive=False)
    return file


def spoiled(layout: Path, digest: str) -> None:
    """Change one byte in the middle of a blob, in place of the link to it."""
    path = layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def layers_of(layout: Path, digest: str) -> list[str]:
    """The digests of the layers, from bottom to top."""
    path = layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
    return [layer["digest"] for layer in json.loads(path.read_bytes())["layers"]]


def noise(size: int) -> bytes:
    """Bytes that no layer of another test has."""
    return os.urandom(size)
