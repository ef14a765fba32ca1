"""What the engine images are made of: which wheel is in which layer, and what a bump moves."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections import Counter
from typing import Any

import pytest

from dsv41 import digests
from dsv41.engines import container
from dsv41.engines.trees import TREES
from engine_locks import FOLDER
from nix_images import CONFIG, IMAGES, MARKS, NIX

ENGINES = ("sglang", "vllm")
WHEELS = ("cudalibs", "torch", "devtools", "python", "kernels", "engine")
SITE = "opt/dsv41/lib/python3.11/site-packages"
KERNELS = FOLDER.parent.parent / "packages" / "flashinfer-aot"


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def wheels(engine: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(f"wheels-{engine}-arm64.json")["wheels"]
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_every_wheel_is_in_one_layer(engine: str) -> None:
    places = Counter(name for part in read("partition.json") for name in part["wheels"])
    assert {w["name"]: places[w["name"]] for w in wheels(engine) if places[w["name"]] != 1} == {}


def test_no_layer_names_a_wheel_that_no_engine_has() -> None:
    locked = {w["name"] for engine in ENGINES for w in wheels(engine)}
    parts = read("partition.json")
    assert tuple(part["name"] for part in parts) == WHEELS
    assert {name for part in parts for name in part["wheels"]} - locked == set()
    assert all(part["why"].endswith(".") and part["changes"] for part in parts)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_layer_is_listed(engine: str) -> None:
    listed = read("layers.json")[engine]
    assert list(listed) == ["root", *WHEELS, "fix-ups"]
    assert all(len(layer["diff_id"]) == 71 and layer["size"] > 0 for layer in listed.values())


def test_the_engines_share_what_is_the_same() -> None:
    sglang, vllm = (read("layers.json")[engine] for engine in ENGINES)
    assert {name for name in sglang if sglang[name] == vllm[name]} == {
        "root",
        "cudalibs",
        "fix-ups",
    }


def test_a_module_is_compiled_ahead_or_says_why_not() -> None:
    for module in json.loads((KERNELS / "modules.json").read_text())["modules"]:
        assert module["built"] is ("why" not in module) is ("bytes" in module)
        assert module["built"] is (KERNELS / f"{module['name']}.ninja").exists()


def test_plans_name_the_images_whose_layers_are_all_known() -> None:
    """make test-nix compares the digests themselves, which change with every layer of ours."""
    found = digests.known(FOLDER.parent / "digests.json")
    assert {name for name in found if not name.endswith("-recipe")} >= {"tp3", "tp4"}
    # the same blobs, and labels of their own
    assert found["tp3"].partition("@")[2] != found["tp4"].partition("@")[2]


def nix(expression: str) -> subprocess.CompletedProcess[str]:
    given = f"let images = import {IMAGES} {{ }}; lib = import {IMAGES.parent}/hostpkgs/lib.nix; in"
    return subprocess.run(
        [str(NIX), "eval", "--impure", "--json", "--expr", f"{given} {expression}"],
        env={**os.environ, "NIX_CONFIG": CONFIG, "DSV41_SITE": sysconfig.get_path("purelib")},
        check=False,
        text=True,
        capture_output=True,
    )


def evaluated(expression: str) -> Any:
    done = nix(expression)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


IMAGE = """lib.mapAttrs (_: i: {
    inherit (i) arch config engine;
    layers = map (l: l.name) i.layers;
    covers = lib.concatMap (l: l.replaces) i.layers;
    ahead = if i ? ahead then map (l: l.name) i.ahead.layers else null;
  }) { inherit (images) image-tp3 image-tp4 image-tp4-ring image-tp4-cycle; }"""
# the lock with other bytes of some wheels -> the names of all layers, with their sources' hashes
BUMP = """let
    lock = lib.importJSON %s;
    moved = lock // { wheels = map (w:
      if lib.elem w.name [ %s ] then w // { sha256 = "%s"; } else w) lock.wheels; };
    names = lock: map (l: { inherit (l) name named; }) (images.image-tp3.layersWith lock);
  in { before = names lock; after = names moved; }"""


@pytest.fixture(scope="module")
def images() -> Any:
    return evaluated(IMAGE)


class TestByNix:
    pytestmark = MARKS

    def test_an_image_is_its_engine_on_the_root_and_ours_on_top(self, images: Any) -> None:
        plain = ["root", *WHEELS, "fix-ups", "dsv41"]
        ring = [*plain[:-1], "nccl", "dsv41"]
        assert {name: image["layers"] for name, image in images.items()} == {
            "image-tp3": plain,
            "image-tp4": plain,
            "image-tp4-ring": ring,
            "image-tp4-cycle": ring,
        }
        assert {image["arch"] for image in images.values()} == {"arm64"}

    def test_kernels_compiled_ahead_are_a_layer_for_the_same_flashinfer_alone(
        self, images: Any
    ) -> None:
        versions = {
            engine: {w["name"]: w["version"] for w in wheels(engine)}["flashinfer-python"]
            for engine in ENGINES
        }
        made_of = json.loads((KERNELS / "modules.json").read_text())["flashinfer"]
        assert [engine for engine, version in versions.items() if version == made_of] == ["sglang"]
        for image in images.values():
            layers = [*image["layers"][:-1], "aot", "dsv41"]
            assert image["ahead"] == (layers if image["engine"] == "sglang" else None)

    def test_a_ring_covers_the_one_libnccl_that_plans_mount_over(self, images: Any) -> None:
        for name in ("image-tp4-ring", "image-tp4-cycle"):
            image = images[name]
            (covered,) = image["covers"]
            tree = TREES[image["config"]["labels"]["dsv41.tree"]]
            assert (f"/{covered}", tree.engine) == (tree.nccl_path, image["engine"])
        assert images["image-tp3"]["covers"] == images["image-tp4"]["covers"] == []

    def test_caches_are_where_the_plan_mounts_a_folder(self, images: Any) -> None:
        for image in images.values():
            env = image["config"]["env"]
            assert container.CACHE_ENVIRONMENT.items() <= env.items()
            assert env["CUDA_HOME"] == f"/{SITE}/nvidia/cu13"
            caches = {k: v for k, v in env.items() if "CACHE" in k or k.endswith("_BASE")}
            assert all(v.startswith(f"{container.CACHE}/") for v in caches.values()), caches

    def test_a_bump_of_the_engine_moves_the_upper_layers_alone(self) -> None:
        """What a patch release of SGLang pins anew: itself and its kernels."""
        names = '"sglang" "sglang-kernel" "flashinfer-python"'
        lock = FOLDER / "wheels-sglang-arm64.json"
        found = evaluated(BUMP % (lock, names, "0" * 64))
        moved = [b["name"] for b, a in zip(found["before"], found["after"], strict=True) if a != b]
        assert moved == ["kernels", "engine"]
        sizes = {name: layer["size"] for name, layer in read("layers.json")["sglang"].items()}
        assert sum(sizes[name] for name in moved) < 0.15 * sum(sizes.values())

    def test_a_wheel_in_no_layer_is_an_error(self) -> None:
        lock = FOLDER / "wheels-sglang-arm64.json"
        done = nix(
            f"""let lock = lib.importJSON {lock};
              more = lock // {{ wheels = lock.wheels ++ [ {{ name = "unheard-of"; }} ]; }};
            in lib.length (images.image-tp3.layersWith more)"""
        )
        assert done.returncode != 0
        assert (
            "D400 nix/images/engine/partition.json has the wheel unheard-of in 0 lay" in done.stderr
        )

    def test_the_patched_nccl_is_asked_for_where_it_cannot_be_built(self) -> None:
        """The digest of a ring's image needs it; that of the trial image does not."""
        command = [str(NIX), "build", "--impure", "--no-link", "-f", str(IMAGES)]
        done = subprocess.run(
            [*command, "image-tp4-ring.digest"],
            env={**os.environ, "NIX_CONFIG": CONFIG, "DSV41_SITE": sysconfig.get_path("purelib")},
            check=False,
            text=True,
            capture_output=True,
        )
        assert done.returncode != 0
        assert "nccl-sparkring is built with CUDA, which is unfree" in done.stderr
