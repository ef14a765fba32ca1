"""Config, manifest, index and layout of an image: nix/images/tools/oci_image.py."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import oci_image
from oci_image import Refused

BASES = Path(__file__).parent / "nix" / "bases"
SETTINGS: dict[str, Any] = {
    "env": {},
    "prepend": {},
    "entrypoint": [],
    "cmd": [],
    "workdir": "",
    "labels": {},
}


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(tmp_path: Path, name: str, data: bytes = b"tar", **more: Any) -> dict[str, Any]:
    (tmp_path / name).write_bytes(data)
    blob = str(tmp_path / name)
    return {"comment": name, "blob": blob, "diff_id": None, "size": None, **more}


def spec(*layers: dict[str, Any], base: Any = None, arch: str = "arm64", **config: Any) -> Any:
    settings = {**SETTINGS, **config}
    return {
        "name": "x",
        "arch": arch,
        "os": "linux",
        "base": base,
        "layers": layers,
        "config": settings,
    }


def synthetic() -> dict[str, Any]:
    """The synthetic base as oci.nix gives one."""
    pin = json.loads((BASES / "bases.json").read_text())["sglang-dev-dsv41"]

    def read(digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((BASES / f"{digest[7:]}.json").read_text())
        return found

    index = read(pin["digest"])
    (arm,) = (m for m in index["manifests"] if m["platform"]["architecture"] == "arm64")
    manifest = read(arm["digest"])
    blobs = {
        entry["digest"]: str(BASES / "blobs" / entry["digest"][7:]) for entry in manifest["layers"]
    }
    config = str(BASES / f"{manifest['config']['digest'][7:]}.json")
    return {**pin, "config": config, "layers": manifest["layers"], "blobs": blobs}


def test_an_image_of_layers_alone(tmp_path: Path) -> None:
    image = oci_image.assemble(
        spec(layer(tmp_path, "root", b"1"), layer(tmp_path, "ours", b"22"), cmd=["run"])
    )
    manifest, config = json.loads(image.manifest), json.loads(image.config)
    digests = [sha256(b"1"), sha256(b"22")]
    assert [entry["digest"] for entry in manifest["layers"]] == digests
    assert [entry["size"] for entry in manifest["layers"]] == [1, 2]
    assert config["rootfs"] == {"type": "layers", "diff_ids": digests}
    assert [entry["created_by"] for entry in config["history"]] == ["dsv41: root", "dsv41: ours"]
    assert (config["created"], config["architecture"]) == ("1970-01-01T00:00:01Z", "arm64")
    assert manifest["config"]["digest"] == sha256(image.config)
    assert config["config"]["Cmd"] == ["run"]
    assert "annotations" not in manifest


def test_a_base_keeps_its_own_and_takes_ours(tmp_path: Path) -> None:
    image = oci_image.assemble(
        spec(
            layer(tmp_path, "ours"),
            base=synthetic(),
            env={"KEEP": "2", "NEW": "3"},
            prepend={"PYTHONPATH": "/ours", "ABSENT": "/a"},
            labels={"dsv41.image": "x"},
        )
    )
    manifest, config = json.loads(image.manifest), json.loads(image.config)
    inner = config["config"]
    assert inner["Env"] == [
        "PATH=/usr/bin",
        "PYTHONPATH=/ours:/base",
        "KEEP=2",
        "NEW=3",
        "ABSENT=/a",
    ]
    # both together: a Cmd that stays would become arguments
    assert (inner["Entrypoint"], inner["Cmd"]) == ([], [])
    assert inner["Labels"] == {"of": "the base", "dsv41.image": "x"}
    assert "container" not in config
    assert len(config["rootfs"]["diff_ids"]) == len(config["history"]) == 3
    tar = "application/vnd.oci.image.layer.v1.tar"
    assert [entry["mediaType"] for entry in manifest["layers"]] == [f"{tar}+gzip", tar, tar]
    base = json.loads((BASES / "bases.json").read_text())["sglang-dev-dsv41"]
    assert manifest["annotations"] == {
        "org.opencontainers.image.base.digest": base["digest"],
        "org.opencontainers.image.base.name": base["reference"],
    }


def test_the_digest_needs_no_listed_layer(tmp_path: Path) -> None:
    there = layer(tmp_path, "big", b"12345")
    listed = {**there, "diff_id": sha256(b"12345"), "size": 5}
    absent = {**listed, "blob": None}
    digests = {oci_image.assemble(spec(entry)).digest for entry in (there, listed, absent)}
    assert len(digests) == 1
    with pytest.raises(Refused, match=r"^D183 the layer sha256:.* is not there"):
        oci_image.write_layout(oci_image.assemble(spec(absent)), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": 4}, "D183 the layer big has 5 bytes; it is listed with 4"),
        ({"arch": "amd64"}, "D182 the base's config says architecture arm64; the image is for"),
        ({"type": "application/x"}, "D182 .* has a layer of type application/x, which is not"),
        ({"layers": 1}, "D182 the config of .* names 2 layers; its manifest has 1"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    base = synthetic()
    big = layer(tmp_path, "big", b"12345")
    if "size" in change:
        big |= {"diff_id": sha256(b"12345"), **change}
    if "type" in change:
        base["layers"] = [{**base["layers"][0], "mediaType": change["type"]}, base["layers"][1]]
    if "layers" in change:
        base["layers"] = base["layers"][:1]
    with pytest.raises(Refused, match=f"^{says}"):
        oci_image.assemble(spec(big, base=base, arch=change.get("arch", "arm64")))


def test_the_layout_is_one_of_links(tmp_path: Path) -> None:
    image = oci_image.assemble(spec(layer(tmp_path, "ours"), base=synthetic()))
    out = tmp_path / "out"
    oci_image.write_layout(image, out)
    index = json.loads((out / "index.json").read_text())
    (entry,) = index["manifests"]
    assert entry["digest"] == image.digest
    assert entry["platform"] == {"architecture": "arm64", "os": "linux"}
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "x"}
    blobs = list((out / "blobs" / "sha256").iterdir())
    assert {path.name for path in blobs} == {sha256(path.read_bytes())[7:] for path in blobs}
    assert len([path for path in blobs if path.is_symlink()]) == 3


def test_measured_layers_are_listed_together(tmp_path: Path) -> None:
    for name, size in (("a", 3), ("b", 4)):
        (tmp_path / name).write_text(json.dumps({"diff_id": sha256(b"abc"), "size": size}))
    assert oci_image.listing([f"root={tmp_path / 'a'}", f"torch={tmp_path / 'b'}"]) == {
        "root": {"diff_id": sha256(b"abc"), "size": 3},
        "torch": {"diff_id": sha256(b"abc"), "size": 4},
    }
