"""What other tools make of an image: skopeo, a storage of containers, umoci."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from nix_images import MARKS, built, manifest_of

pytestmark = MARKS


@pytest.fixture(scope="module")
def tp3() -> Path:
    """The layout of image-tp3-recipe."""
    return built("image-tp3-recipe")


needs_skopeo = pytest.mark.skipif(
    shutil.which("skopeo") is None, reason="skopeo is not installed (apt-get install skopeo)"
)


@needs_skopeo
def test_skopeo_reads_and_copies_it(tp3: Path, tmp_path: Path) -> None:
    def skopeo(*words: str) -> str:
        command = ["skopeo", *words]
        return subprocess.run(command, check=True, text=True, capture_output=True).stdout

    seen = json.loads(skopeo("inspect", f"oci:{tp3}:tp3-recipe"))
    (entry,) = json.loads((tp3 / "index.json").read_text())["manifests"]
    assert (seen["Digest"], seen["Architecture"], seen["Os"]) == (entry["digest"], "arm64", "linux")
    assert len(seen["Layers"]) == 3
    # without it skopeo compresses the layers, which makes another manifest
    skopeo("copy", "--preserve-digests", f"oci:{tp3}", f"oci-archive:{tmp_path}/a.tar")
    again = json.loads(skopeo("inspect", f"oci-archive:{tmp_path}/a.tar"))
    assert again["Digest"] == entry["digest"]
    # as docs/howto/nixos.md says it: a folder for hosts that do not have the store's files
    skopeo("copy", "--preserve-digests", f"oci:{tp3}", f"oci:{tmp_path}/image")
    assert json.loads(skopeo("inspect", f"oci:{tmp_path}/image"))["Digest"] == entry["digest"]
    assert not [path for path in (tmp_path / "image").rglob("*") if path.is_symlink()]


@needs_skopeo
@pytest.mark.skipif(os.getuid() != 0, reason="a storage of containers needs root")
def test_layers_that_are_there_already_are_skipped(tp3: Path, tmp_path: Path) -> None:
    storage = f"containers-storage:[vfs@{tmp_path}/root+{tmp_path}/run]localhost/dsv41"
    (entry,) = json.loads((tp3 / "index.json").read_text())["manifests"]

    def skipped(name: str) -> set[str]:
        # skopeo says so on a terminal alone, and there only where the line has room
        copy = shlex.join(["skopeo", "copy", f"oci:{tp3}", f"{storage}/{name}:latest"])
        command = ["script", "-qec", f"stty cols 200; {copy}", "/dev/null"]
        done = subprocess.run(
            command, check=True, text=True, capture_output=True, stdin=subprocess.DEVNULL
        )
        return set(re.findall(r"blob ([0-9a-f]{12}) skipped: already exists", done.stdout))

    assert skipped("one") == set()
    assert skipped("two") == {layer["digest"][7:19] for layer in manifest_of(tp3)["layers"]}
    # found by its digest, as a Plan names it
    by_digest = f"{storage}/two@{entry['digest']}"
    command = ["skopeo", "inspect", "--raw", by_digest]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    assert "sha256:" + hashlib.sha256(raw).hexdigest() == entry["digest"]


@pytest.mark.skipif(
    shutil.which("umoci") is None, reason="umoci is not installed (apt-get install umoci)"
)
@pytest.mark.skipif(os.getuid() != 0, reason="umoci unpacks as root")
def test_umoci_unpacks_it(tp3: Path, tmp_path: Path) -> None:
    command = ["umoci", "unpack", "--image", f"{tp3}:tp3-recipe", str(tmp_path / "bundle")]
    subprocess.run(command, check=True, capture_output=True)
    root = tmp_path / "bundle" / "rootfs"
    assert (root / "etc/os-release").read_text() == "ID=synthetic\n"
    assert (root / "opt/dsv41/src/python/dsv41/errors.py").is_file()
    assert (root / "sgl-workspace/sglang/python/sglang/only_in_the_base.py").is_file()
