"""The flake's images for tests: built by a real nix on the stand-in for nixpkgs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "tests" / "nix" / "images.nix"
BASES = ROOT / "tests" / "nix" / "bases"
NIX = Path(os.environ.get("NIX_PREFIX", "/opt/nix-debian")) / "bin" / "nix"
CONFIG = """experimental-features = nix-command flakes
sandbox = false
build-users-group =
substituters =
flake-registry =
"""
MARKS = [
    pytest.mark.skipif(not NIX.exists(), reason="nix is not installed; scripts/get-nix.sh gets it"),
]


def nix(*words: str, bases: Path = BASES) -> subprocess.CompletedProcess[str]:
    """A command on an attribute of the images."""
    command = [str(NIX), *words, "--impure", "--file", str(IMAGES), "--arg", "bases", str(bases)]
    site = sysconfig.get_path("purelib")
    environment = {**os.environ, "NIX_CONFIG": CONFIG, "DSV41_SITE": site}
    return subprocess.run(command, env=environment, check=False, text=True, capture_output=True)


def built(*words: str, bases: Path = BASES) -> Path:
    done = nix("build", "--no-link", "--print-out-paths", *words, bases=bases)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def refused(*words: str, bases: Path) -> str:
    done = nix("build", "--no-link", *words, bases=bases)
    assert done.returncode != 0
    return done.stderr


def manifest_of(layout: Path) -> dict[str, Any]:
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    data = blob(layout, entry["digest"]).read_bytes()
    assert "sha256:" + hashlib.sha256(data).hexdigest() == entry["digest"]
    found: dict[str, Any] = json.loads(data)
    return found


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def names(layer: Path) -> list[str]:
    with tarfile.open(layer) as archive:
        return archive.getnames()


def mirror() -> str:
    """Where this machine's own apt takes Debian's packages from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    found = subprocess.run(command, check=True, text=True, capture_output=True).stdout.split()
    return next(uri for uri in found if uri.rstrip("/").endswith("/debian"))
