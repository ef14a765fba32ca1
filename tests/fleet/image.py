"""image-local, built of locked packages by nix, in one store that all machines of a fleet read."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from fleet.machines import run
from nix_images import CONFIG, IMAGES, NIX, ROOT

CACHE = ROOT / ".cache" / "fleet"
NAME = "localhost/dsv41/local"


@dataclass(frozen=True, kw_only=True)
class Image:
    """The image: its OCI folder, its reference by digest, the store that has it unpacked."""

    layout: Path
    reference: str
    store: Path


def mirror() -> str:
    """Where this machine's own apt takes Debian's packages from."""
    found = run("apt-get", "indextargets", "--format", "$(REPO_URI)").split()
    return next(uri for uri in found if uri.rstrip("/").endswith("/debian"))


def layout() -> Path:
    """The OCI folder; what is in nix' store already is not made again."""
    environment = {
        "NIX_CONFIG": CONFIG,
        "DSV41_SITE": sysconfig.get_path("purelib"),
        "DSV41_DEB_MIRROR": os.environ.get("DSV41_DEB_MIRROR") or mirror(),
    }
    command = [str(NIX), "build", "--impure", "--out-link", str(CACHE / "image-local")]
    done = subprocess.run(
        [*command, "--print-out-paths", "--file", str(IMAGES), "image-local"],
        env={**os.environ, **environment},
        check=False,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def image() -> Image:
    """The image, copied into the shared store when it is not there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made, store = layout(), CACHE / "store"
        (entry,) = json.loads((made / "index.json").read_text())["manifests"]
        reference = f"{NAME}@{entry['digest']}"
        listed = store / "overlay-images" / "images.json"
        if not listed.is_file() or entry["digest"] not in listed.read_text():
            place = f"containers-storage:[overlay@{store}+{CACHE}/runroot]{NAME}:latest"
            run("skopeo", "copy", "--quiet", f"oci:{made}", place, seconds=600)
    return Image(layout=made, reference=reference, store=store)
