"""The flake's images by a real nix, on a synthetic base and on the stand-in for nixpkgs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dsv41.digests import known as digests_known
from nix_images import (
    BASES,
    CONFIG,
    IMAGES,
    MARKS,
    NIX,
    ROOT,
    blob,
    built,
    manifest_of,
    names,
    nix,
    refused,
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def tp3() -> Path:
    """The layout of image-tp3-recipe."""
    return built("image-tp3-recipe")


def test_every_blob_is_its_digest(tp3: Path) -> None:
    manifest = manifest_of(tp3)
    for entry in (manifest["config"], *manifest["layers"]):
        data = blob(tp3, entry["digest"]).read_bytes()
        assert ("sha256:" + hashlib.sha256(data).hexdigest(), len(data)) == (
            entry["digest"],
            entry["size"],
        )
    assert len(manifest["layers"]) == 3  # two of the base, and ours


def test_the_digest_is_known_without_the_layers(tp3: Path) -> None:
    (entry,) = json.loads((tp3 / "index.json").read_text())["manifests"]
    assert built("image-tp3-recipe.digest").read_text().strip() == entry["digest"]
    # the kernels' 97 MB are listed by hash: nothing of them is fetched or built for it
    done = nix("build", "--no-link", "--dry-run", "image-tp4-recipe.digest")
    assert "whl" not in done.stderr
    assert built("image-tp4-recipe.digest").read_text().startswith("sha256:")


def test_built_again_it_is_the_same_image(tp3: Path) -> None:
    for what in ("image-tp3-recipe", "image-tp3-recipe.digest"):
        assert nix("build", "--no-link", "--rebuild", what).returncode == 0
    layers = manifest_of(tp3)["layers"]
    ours = blob(tp3, layers[-1]["digest"]).resolve()
    again = subprocess.run(
        [str(NIX), "build", "--no-link", "--rebuild", str(ours)],
        env={**os.environ, "NIX_CONFIG": CONFIG},
        check=False,
        text=True,
        capture_output=True,
    )
    assert again.returncode == 0, again.stderr


def test_our_layer_has_the_plugin_and_neither_pins_nor_profiles(tp3: Path) -> None:
    manifest = manifest_of(tp3)
    found = names(blob(tp3, manifest["layers"][-1]["digest"]))
    inside = "opt/dsv41/src"
    assert f"{inside}/python/dsv41/adapters/shard.py" in found
    assert f"{inside}/csrc/include/dsv41_rows.h" in found
    assert f"{inside}/csrc/src/c_abi.cpp" in found
    modules = {name.removeprefix(f"{inside}/python/dsv41/").split("/")[0] for name in found}
    assert not modules & {"plan.py", "pins.py", "profiles", "digests.json", "cli", "host", "run"}
    config = json.loads(blob(tp3, manifest["config"]["digest"]).read_text())["config"]
    assert "PYTHONPATH=/opt/dsv41/src/python:/base" in config["Env"]
    assert config["Labels"]["dsv41.tree"] == "sglang-base"


def test_engines_would_find_the_plugin(tp3: Path, tmp_path: Path) -> None:
    ours = blob(tp3, manifest_of(tp3)["layers"][-1]["digest"])
    with tarfile.open(ours) as archive:
        archive.extractall(tmp_path, filter="data")
    ask = (
        "from importlib.metadata import entry_points\n"
        "groups = 'sglang.srt.plugins', 'vllm.general_plugins'\n"
        "print(*[e.load().__module__ for g in groups for e in entry_points(group=g)])\n"
    )
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-S", "-c", ask],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "opt/dsv41/src/python")},
        check=True,
        text=True,
        capture_output=True,
    )
    assert done.stdout.split() == ["dsv41.adapters.sglang", "dsv41.adapters.vllm"]


def test_both_systems_have_images_of_both_machines() -> None:
    expression = """
      let of = system: import %s { inherit system; };
          digests = i: map (n: i.${n}.digest.drvPath) (builtins.attrNames i);
      in {
        here = (of "x86_64-linux").image-local.arch;
        there = (of "aarch64-linux").image-local.arch;
        recipe = (of "x86_64-linux").image-tp4-recipe.arch;
        other = (of "x86_64-linux").image-local.arm64.drvPath;
        all = digests (of "aarch64-linux");
      }"""
    command = [str(NIX), "eval", "--impure", "--json", "--expr", expression % IMAGES]
    done = subprocess.run(
        command,
        env={**os.environ, "NIX_CONFIG": CONFIG, "DSV41_SITE": ""},
        check=True,
        text=True,
        capture_output=True,
    )
    found = json.loads(done.stdout)
    assert (found["here"], found["there"], found["recipe"]) == ("amd64", "arm64", "arm64")
    assert len(found["all"]) == 7


def test_a_base_that_is_not_pinned_names_the_command() -> None:
    """The real folder of bases, whose manifests a networked machine has to fetch."""
    folder = ROOT / "nix" / "images" / "bases"
    pin = json.loads((folder / "bases.json").read_text())["sglang-dev-dsv41"]
    assert pin["digest"] == (
        "sha256:3dbc313030a6ef2c5d7de8ecf48e9aece722694a82182cb618cc82b588816349"
    )
    if (folder / f"{pin['digest'][7:]}.json").exists():
        pytest.skip("the base is pinned")
    for image in ("image-tp3-recipe", "image-tp4-recipe.digest"):
        said = refused(image, bases=folder)
        assert f"D181 The base {pin['reference']} is pinned by {pin['digest']}" in said
        assert "nix run .#pin-image" in said


@pytest.fixture
def bases(tmp_path: Path) -> Path:
    """A copy of the synthetic base, to be damaged."""
    return Path(shutil.copytree(BASES, tmp_path / "bases"))


def test_a_tampered_manifest_is_refused(bases: Path) -> None:
    for file in bases.glob("*.json"):
        if file.name != "bases.json" and b"layers" in file.read_bytes():
            damaged = file
    damaged.write_bytes(damaged.read_bytes() + b"\n")
    said = refused("image-tp3-recipe.digest", bases=bases)
    assert f"D182 nix/images/bases/{damaged.name} is not what its name says" in said


def test_a_tampered_blob_is_refused(bases: Path) -> None:
    """A blob that no store has yet, and that lies there with other bytes."""
    pin = json.loads((bases / "bases.json").read_text())
    fresh = os.urandom(32)
    index, manifest = _with_layer(bases, pin["sglang-dev-dsv41"]["digest"], fresh)
    pin["sglang-dev-dsv41"]["digest"] = index
    (bases / "bases.json").write_text(json.dumps(pin))
    wanted = manifest["layers"][0]["digest"]
    (bases / "blobs" / wanted[7:]).write_bytes(fresh[:-1] + b"x")
    said = refused("image-tp3-recipe", bases=bases)
    assert "D183 " in said
    assert "gave 32 bytes with SHA-256" in said
    assert f"expected {wanted}" in said


def _with_layer(bases: Path, index: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Put another first layer into the synthetic base; the new index's digest and manifest."""

    def read(digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((bases / f"{digest[7:]}.json").read_text())
        return found

    def keep(document: dict[str, Any]) -> str:
        text = json.dumps(document).encode()
        digest = hashlib.sha256(text).hexdigest()
        (bases / f"{digest}.json").write_bytes(text)
        return f"sha256:{digest}"

    top = read(index)
    arm = top["manifests"][1]
    manifest = read(arm["digest"])
    manifest["layers"][0]["digest"] = "sha256:" + hashlib.sha256(data).hexdigest()
    manifest["layers"][0]["size"] = len(data)
    arm["digest"] = keep(manifest)
    return keep(top), manifest


def test_a_listed_hash_that_is_wrong_is_refused(tmp_path: Path) -> None:
    """A layer of locked packages is accepted only by its listed hash."""
    expression = f"""
      let lib = import {ROOT}/tests/nix/hostpkgs/lib.nix;
          pkgs = import {ROOT}/tests/nix/hostpkgs {{
            inherit lib; system = builtins.currentSystem;
          }};
          machinery = import {ROOT}/nix/images/machinery.nix {{
            inherit lib pkgs; bases = {BASES};
          }};
      in (machinery.layer {{
        name = "wrong";
        sources = [ {{ type = "file"; to = "a"; text = "{tmp_path}"; }} ];
        listed = {{ diff_id = "sha256:{"0" * 64}"; size = 1; }};
      }}).blob"""
    done = subprocess.run(
        [str(NIX), "build", "--no-link", "--impure", "--expr", expression],
        env={**os.environ, "NIX_CONFIG": CONFIG},
        check=False,
        text=True,
        capture_output=True,
    )
    assert done.returncode != 0
    assert "hash mismatch in fixed-output derivation" in done.stderr
    assert "layer-wrong-" in done.stderr


def test_digests_are_listed_where_they_are_known(tmp_path: Path) -> None:
    """`make digests`, on the synthetic base: a ring's images wait for the patched NCCL."""
    listed = tmp_path / "digests.json"
    shutil.copy(ROOT / "nix" / "images" / "digests.json", listed)

    def digests(*words: str) -> subprocess.CompletedProcess[str]:
        script = [sys.executable, str(ROOT / "scripts" / "image_digests.py"), "--list", str(listed)]
        return subprocess.run(
            [*script, *words, "--impure", "--file", str(IMAGES)],
            env={
                **os.environ,
                "NIX_CONFIG": CONFIG,
                "DSV41_SITE": sysconfig.get_path("purelib"),
                "PATH": f"{NIX.parent}:{os.environ['PATH']}",
            },
            check=False,
            text=True,
            capture_output=True,
        )

    assert digests().returncode == 0
    images = json.loads(listed.read_text())["images"]
    known = {"tp3", "tp4", "tp3-recipe", "tp4-recipe"}
    assert {name for name, digest in images.items() if digest} == known
    assert images["tp3-recipe"] == built("image-tp3-recipe.digest").read_text().strip()
    assert set(digests_known(listed)) == known
    assert digests("--check").returncode == 0
    listed.write_text(listed.read_text().replace(images["tp3-recipe"], f"sha256:{'0' * 64}"))
    stale = digests("--check")
    assert (stale.returncode, stale.stderr) == (
        1,
        "image_digests: tp3-recipe changed; run: make digests\n",
    )
