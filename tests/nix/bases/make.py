"""Make this folder's synthetic base again: a tiny arm64 image in the shape of the recipe's.

    python tests/nix/bases/make.py

An index with a member for each architecture, Docker's media types, one layer compressed and one
not. The layers hold what our own layers must meet: an engine with a module that the branch lacks,
kernels of another version, and an environment with PYTHONPATH.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "nix" / "images" / "tools"))
from tar_layer import Bytes, Entry, Layer  # noqa: E402 - its folder is put on the path above

DOCKER = "application/vnd.docker"
FILES = (
    {"etc/os-release": "ID=synthetic\n", "usr/bin/python3": "no program\n"},
    {
        "sgl-workspace/sglang/python/sglang/__init__.py": "tree = 'base'\n",
        "sgl-workspace/sglang/python/sglang/only_in_the_base.py": "",
        "opt/sglang/lib/python3.12/site-packages/sgl_kernel/__init__.py": "version = 'base'\n",
    },
)


def tar(files: dict[str, str]) -> bytes:
    """A layer of these files."""
    layer = Layer()
    for path, text in files.items():
        layer.add(Entry(path=path, kind="file", owner="base", data=Bytes(content=text.encode())))
    out = io.BytesIO()
    layer.write(out)
    return out.getvalue()


def hex_of(data: bytes) -> str:
    """Its SHA-256."""
    return hashlib.sha256(data).hexdigest()


def keep(data: bytes, kind: str, **more: object) -> dict[str, object]:
    """Write a JSON object under its hash; its descriptor."""
    (HERE / f"{hex_of(data)}.json").write_bytes(data)
    return {
        "mediaType": f"{DOCKER}.{kind}+json",
        "digest": f"sha256:{hex_of(data)}",
        "size": len(data),
        **more,
    }


def main() -> None:
    """Write everything."""
    for old in HERE.glob("*.json"):
        old.unlink()
    shutil.rmtree(HERE / "blobs", ignore_errors=True)
    (HERE / "blobs").mkdir()
    plain = [tar(files) for files in FILES]
    packed = [gzip.compress(plain[0], mtime=0), plain[1]]
    kinds = ("rootfs.diff.tar.gzip", "rootfs.diff.tar")
    layers = []
    for data, kind in zip(packed, kinds, strict=True):
        (HERE / "blobs" / hex_of(data)).write_bytes(data)
        layers.append(
            {
                "mediaType": f"{DOCKER}.image.{kind}",
                "digest": f"sha256:{hex_of(data)}",
                "size": len(data),
            }
        )
    config = {
        "architecture": "arm64",
        "os": "linux",
        "created": "2026-09-10T00:00:00Z",
        "container": "left over",
        "config": {
            "Env": ["PATH=/usr/bin", "PYTHONPATH=/base", "KEEP=1"],
            "Entrypoint": ["/opt/entry"],
            "Cmd": ["serve"],
            "Labels": {"of": "the base"},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hex_of(data)}" for data in plain]},
        "history": [{"created_by": "a"}, {"created_by": "b"}],
    }
    below = keep(json.dumps(config).encode(), "container.image.v1")
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{DOCKER}.distribution.manifest.v2+json",
        "config": below,
        "layers": layers,
    }
    arm = keep(json.dumps(manifest).encode(), "distribution.manifest.v2")
    arm["platform"] = {"architecture": "arm64", "os": "linux"}
    # whose manifest is not kept: no image of ours is for it
    amd = {"architecture": "amd64", "os": "linux"}
    other = {**arm, "digest": f"sha256:{'0' * 64}", "platform": amd}
    index = {
        "schemaVersion": 2,
        "mediaType": f"{DOCKER}.distribution.manifest.list.v2+json",
        "manifests": [other, arm],
    }
    top = keep(json.dumps(index).encode(), "distribution.manifest.list.v2")
    base = {"reference": "registry.invalid/base", "digest": top["digest"], "arch": "arm64"}
    text = json.dumps({"sglang-dev-dsv41": base}, indent=2)
    (HERE / "bases.json").write_text(text + "\n")


main()
