"""An image by its parts: config, manifest, index and OCI layout, and its digest without the layers.

    python oci_image.py digest SPEC.json OUT     the manifest's digest, one line
    python oci_image.py layout SPEC.json OUT     an OCI image layout whose blobs are links
    python oci_image.py list OUT NAME=FILE...    what build_layer.py measured, as one JSON

SPEC (written by oci.nix):
    name, arch, os         what the image is called, and for which machine it is
    base                   null, or {reference, digest, config: FILE, layers: [descriptor], blobs}
    layers                 bottom to top: {"comment", "blob": FILE or null, "diff_id", "size"};
                           without diff_id the blob is measured
    config                 env, prepend, entrypoint, cmd, workdir, labels
Format: OCI image-spec 1.0, config.md, manifest.md, image-layout.md. JSON is sorted and compact, so
that the same parts give the same digest on every machine.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EPOCH = "1970-01-01T00:00:01Z"
OCI = "application/vnd.oci.image"
TAR = f"{OCI}.layer.v1.tar"
# media types of Docker's schema 2 -> the same things in OCI's words
RENAMED = {
    "application/vnd.docker.image.rootfs.diff.tar": TAR,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": f"{TAR}+gzip",
}
LAYER_TYPES = {TAR, f"{TAR}+gzip", f"{TAR}+zstd"}


class Refused(Exception):
    """An image that cannot be what it says; the text begins with its code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """Config and manifest as bytes, and where each layer's bytes are (None: not at hand)."""

    config: bytes
    manifest: bytes
    blobs: Mapping[str, str | None]
    ref: str
    platform: Mapping[str, str]

    @property
    def digest(self) -> str:
        """What the image is pinned by."""
        return digest_of(self.manifest)


def digest_of(data: bytes) -> str:
    """`sha256:` and the hex of it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def compact(data: object) -> bytes:
    """JSON with sorted keys and no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def assemble(spec: Mapping[str, Any]) -> Image:
    """The image of a specification; Refused D182 or D183 for parts that contradict each other."""
    base = spec["base"] or {"layers": [], "blobs": {}}
    below = _base_config(spec["base"])
    own = [_measured(layer) for layer in spec["layers"]]
    config = compact(_config(spec, below, own))
    layers = [_renamed(layer, base.get("reference", "")) for layer in base["layers"]]
    layers += [{"mediaType": TAR, "digest": e["digest"], "size": e["size"]} for e in own]
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": {
            "mediaType": f"{OCI}.config.v1+json",
            "digest": digest_of(config),
            "size": len(config),
        },
        "layers": layers,
    }
    if spec["base"]:
        manifest["annotations"] = {
            "org.opencontainers.image.base.digest": base["digest"],
            "org.opencontainers.image.base.name": base["reference"],
        }
    blobs = {**base["blobs"], **{layer["digest"]: layer["blob"] for layer in own}}
    return Image(
        config=config,
        manifest=compact(manifest),
        blobs={layer["digest"]: blobs.get(layer["digest"]) for layer in layers},
        ref=spec["name"],
        platform=_platform(spec, below),
    )


def _base_config(base: Mapping[str, Any] | None) -> dict[str, Any]:
    if base is None:
        return {}
    config: dict[str, Any] = json.loads(Path(base["config"]).read_text())
    stated, there = len(config["rootfs"]["diff_ids"]), len(base["layers"])
    if stated != there:
        raise Refused(
            f"D182 the config of {base['reference']} names {stated} layers; its manifest has "
            f"{there}."
        )
    return config


def _measured(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A layer with its digest; one that states it must have the stated size when it is there."""
    blob = layer["blob"]
    size = Path(blob).stat().st_size if blob else layer["size"]
    if layer["diff_id"] is None:
        return {**layer, "digest": _digest_of_file(Path(blob)), "size": size}
    if size != layer["size"]:
        raise Refused(
            f"D183 the layer {layer['comment']} has {size} bytes; it is listed with "
            f"{layer['size']}."
        )
    return {**layer, "digest": layer["diff_id"]}


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return "sha256:" + digest.hexdigest()


def listing(names: list[str]) -> dict[str, dict[str, Any]]:
    """`NAME=FILE` -> diff_id and size of the layer, by `build_layer.py --measure` into FILE."""
    files = {name: Path(file) for name, file in (word.split("=", 1) for word in names)}
    return {name: json.loads(file.read_text()) for name, file in files.items()}


def _renamed(layer: Mapping[str, Any], reference: str) -> dict[str, Any]:
    kind = RENAMED.get(layer["mediaType"], layer["mediaType"])
    if kind not in LAYER_TYPES:
        raise Refused(f"D182 {reference} has a layer of type {kind}, which is not read.")
    return {"mediaType": kind, "digest": layer["digest"], "size": layer["size"]}


def _config(
    spec: Mapping[str, Any], below: Mapping[str, Any], own: list[dict[str, Any]]
) -> dict[str, Any]:
    """The base's config with our layers and settings.

    Entrypoint and Cmd are always set together: a Cmd that stays becomes arguments of a new
    Entrypoint.
    """
    wanted, inner = spec["config"], dict(below.get("config") or {})
    for mine, theirs in (("entrypoint", "Entrypoint"), ("cmd", "Cmd")):
        inner[theirs] = list(wanted[mine])
    if wanted["workdir"]:
        inner["WorkingDir"] = wanted["workdir"]
    inner["Env"] = _environment(inner.get("Env") or [], wanted["env"], wanted["prepend"])
    inner["Labels"] = {**(inner.get("Labels") or {}), **wanted["labels"]}
    rootfs = below.get("rootfs", {"diff_ids": []})
    history = [{"created": EPOCH, "created_by": f"dsv41: {layer['comment']}"} for layer in own]
    return {
        **{k: v for k, v in below.items() if k not in ("container", "container_config", "id")},
        "architecture": spec["arch"],
        "os": spec["os"],
        "created": EPOCH,
        "config": inner,
        "rootfs": {
            "type": "layers",
            "diff_ids": [*rootfs["diff_ids"], *(layer["digest"] for layer in own)],
        },
        "history": [*(below.get("history") or []), *history],
    }


def _environment(below: list[str], env: Mapping[str, str], prepend: Mapping[str, str]) -> list[str]:
    """`NAME=value` lines in the base's order, then ours; `prepend` goes before the base's value."""
    merged = dict(line.split("=", 1) for line in below)
    merged.update(env)
    for name, value in prepend.items():
        merged[name] = f"{value}:{merged[name]}" if merged.get(name) else value
    return [f"{name}={value}" for name, value in merged.items()]


def _platform(spec: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, str]:
    found = {"architecture": spec["arch"], "os": spec["os"]}
    for key, wanted in found.items():
        if below and below.get(key) != wanted:
            raise Refused(
                f"D182 the base's config says {key} {below.get(key)}; the image is for {wanted}."
            )
    return found | ({"variant": below["variant"]} if "variant" in below else {})


def write_layout(image: Image, out: Path) -> None:
    """An OCI image layout: small blobs as files, layers as links to where they are."""
    blobs = out / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for data in (image.config, image.manifest):
        (blobs / digest_of(data).removeprefix("sha256:")).write_bytes(data)
    for digest, path in image.blobs.items():
        if path is None:
            raise Refused(f"D183 the layer {digest} is not there.")
        link = blobs / digest.removeprefix("sha256:")
        if not link.is_symlink():  # a base may have the same layer twice
            link.symlink_to(path)
    (out / "oci-layout").write_bytes(compact({"imageLayoutVersion": "1.0.0"}))
    entry = {
        "mediaType": f"{OCI}.manifest.v1+json",
        "digest": image.digest,
        "size": len(image.manifest),
        "platform": image.platform,
        "annotations": {"org.opencontainers.image.ref.name": image.ref},
    }
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [entry]}
    (out / "index.json").write_bytes(compact(index))


def main() -> int:
    """Do what is asked."""
    what, *words = sys.argv[1:]
    if what == "list":
        Path(words[0]).write_text(json.dumps(listing(words[1:]), indent=2) + "\n")
        return 0
    spec, out = words
    try:
        image = assemble(json.loads(Path(spec).read_text()))
        if what == "layout":
            write_layout(image, Path(out))
        else:
            Path(out).write_text(image.digest + "\n")
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
