"""Programs of the engine image, asked from the tests: what they read, and what they answer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv41 import plan
from dsv41.engines.container import KEY_FILE
from dsv41.plan import Rank
from emulated import Unpacked, described, emulated, stub_of_the_driver, unpack
from nix_images import ROOT
from planned import fleet_for, profile_with

FREE_GB = 12  # the unpacked root and the caches, beside what nix needs for the layers


def opened(layout: Path, scratch: Path) -> tuple[Unpacked, dict[str, Any]]:
    """An image with its layers in `scratch`, unpacked unless they are there; what it is made of."""
    began = time.monotonic()
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    found = described(layout, scratch / "root")
    stamp = scratch / "root.digest"
    if not (stamp.exists() and stamp.read_text() == entry["digest"]):
        free = shutil.disk_usage(scratch).free / 1e9
        assert free > FREE_GB, f"{scratch} has {free:.0f} GB free; expected {FREE_GB}"
        unpack(layout, found.root)
        # all files are of one time, so that Python takes old bytecode for a file of the same length
        shutil.rmtree(scratch / "cache" / "pyc", ignore_errors=True)
        stamp.write_text(entry["digest"])
    return found, {
        "digest": entry["digest"],
        "layers": found.layers,
        "total": sum(found.layers.values()),
        "unpacked_seconds": round(time.monotonic() - began, 1),
    }


class Asking:
    """Programs below tests/inside, run in the image; their caches last for all of them."""

    def __init__(self, image: Unpacked, scratch: Path) -> None:
        self.image, self.scratch = image, scratch
        for name in ("cache", "stub"):
            (scratch / name).mkdir(exist_ok=True)
        stub_of_the_driver(image, scratch / "stub")

    def binds(self) -> tuple[str, ...]:
        place = self.scratch
        return f"{ROOT}/tests:/tests:ro", f"{place}/cache:/cache", f"{place}/stub:/stub:ro"

    def run(self, *words: str, env: Mapping[str, str], binds: tuple[str, ...] = ()) -> str:
        search = f"{self.image.env['PYTHONPATH']}:/tests"
        here = {"PYTHONPYCACHEPREFIX": "/cache/pyc", "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
        here |= {"LD_LIBRARY_PATH": "/stub", "HF_HUB_OFFLINE": "1", **env}
        done = emulated(self.image, *words, env=here, binds=(*self.binds(), *binds), seconds=3000)
        assert done.returncode == 0, f"{words}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def ask(
        self,
        script: str,
        question: dict[str, Any],
        *binds: str,
        env: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        folder = self.scratch / f"asked-{os.getpid()}"
        folder.mkdir(exist_ok=True)
        (folder / "question.json").write_text(json.dumps(question))
        (folder / "answer.json").unlink(missing_ok=True)
        words = ("python", f"/tests/inside/{script}", "/asked/question.json", "/asked/answer.json")
        self.run(*words, env=env or {}, binds=(f"{folder}:/asked", *binds))
        found: dict[str, Any] = json.loads((folder / "answer.json").read_text())
        return found


def ranks(profile: str) -> list[Rank]:
    """The Plan's, on an example fleet that has API keys."""
    chosen = profile_with(profile)
    return list(plan.plan(chosen, fleet_for(chosen, api_key_file="/etc/dsv41/keys"), {}).ranks)


def in_the_image(rank: Rank, scratch: Path) -> tuple[str, ...]:
    """The Plan's mounts, from folders of this test; a key of its own."""
    binds = []
    for mount in rank.mounts:
        _, target, *mode = mount.split(":")
        if target == "/cache":
            continue  # the tests' own
        source = scratch / f"mount-{target.strip('/').replace('/', '-')}"
        if target == KEY_FILE:
            source.write_text("a-key-of-the-tests-0123456789abcdef\n")
            source.chmod(0o600)
        else:
            source.mkdir(exist_ok=True)
        binds.append(":".join([str(source), target, *mode]))
    return tuple(binds)


def needed(library: Path) -> list[str]:
    """Libraries that a library names."""
    said = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    return re.findall(r"NEEDED.*\[(.*)\]", said.stdout)
