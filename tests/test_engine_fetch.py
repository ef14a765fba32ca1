"""The locked wheels and Debian packages as derivations of a real nix."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from engine_locks import FOLDER
from nix_images import CONFIG, MARKS, NIX, ROOT

pytestmark = MARKS

# the smallest of each pattern of tags, 5.5 MB in all: pip must be asked for each as the lock has it
WHEELS = (
    "nest-asyncio",  # py3-none-any
    "cuda-toolkit",  # py2.py3-none-any
    "interegular",  # py37-none-any
    "multiprocess",  # py311-none-any
    "humming-kernels",  # py3-none-PLATFORM
    "nvidia-cuda-profiler-api",  # py3-none-, a set of platforms
    "soundfile",  # py2.py3-none-PLATFORM
    "py-spy",  # py2.py3-none-, a set
    "cuda-tile",  # cp311-cp311-PLATFORM
    "markupsafe",  # cp311-cp311-, a set
    "protobuf",  # abi3, one platform
    "psutil",  # abi3, a set
)
DEB = "libnuma1"
SITE = sysconfig.get_path("purelib")
UNREACHED = (
    "Temporary failure in name resolution",
    "NewConnectionError",
    "Connection refused",
    "HTTP 404",
)


def nix(*words: str, expression: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = f"""
      let lib = import {ROOT}/tests/nix/hostpkgs/lib.nix;
          pkgs = import {ROOT}/tests/nix/hostpkgs {{
            inherit lib; system = builtins.currentSystem;
          }};
          found = import {ROOT}/tests/nix/engine.nix {{ inherit pkgs; }};
      in {expression}"""
    return subprocess.run(
        [str(NIX), *words, "--impure", "--expr", given],
        env={**os.environ, "NIX_CONFIG": CONFIG, "DSV41_SITE": SITE, **variables},
        check=False,
        text=True,
        capture_output=True,
    )


def test_every_locked_package_is_a_derivation_with_its_hash() -> None:
    done = nix("build", "--no-link", "--print-out-paths", expression="found.engine-locks")
    assert done.returncode == 0, done.stderr
    locks = [json.loads(f.read_text()) for f in FOLDER.glob("*-arm64.json")]
    hashes = {e["sha256"] for lock in locks for e in lock.get("wheels") or lock["packages"]}
    assert int(Path(done.stdout.strip()).read_text()) == len(hashes)


def built(attributes: list[str], **variables: str) -> list[Path]:
    done = nix(
        "build",
        "--no-link",
        "--print-out-paths",
        expression=f"[ {' '.join(attributes)} ]",
        **variables,
    )
    if done.returncode and any(words in done.stderr for words in UNREACHED):
        pytest.skip("not given from here: " + done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.split()]


def test_small_wheels_are_fetched_and_are_what_is_locked() -> None:
    paths = built([f"found.engine.wheels.sglang.{name}" for name in WHEELS])
    lock = json.loads((FOLDER / "wheels-sglang-arm64.json").read_text())["wheels"]
    wanted = {e["sha256"]: e["size"] for e in lock if e["name"] in WHEELS}
    found = {hashlib.sha256(p.read_bytes()).hexdigest(): p.stat().st_size for p in paths}
    assert found == wanted


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt knows a mirror, and is not here")
def test_a_small_deb_is_fetched_from_a_mirror() -> None:
    """A mirror drops what a point release supersedes: then the dated snapshot has it alone."""
    known = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    said = subprocess.run(known, check=True, text=True, capture_output=True).stdout.split()
    mirror = next((uri for uri in said if uri.rstrip("/").endswith("/debian")), None)
    if mirror is None:
        pytest.skip("apt names no mirror of Debian")
    (path,) = built([f"found.engine.debs.{DEB}"], DSV41_DEB_MIRROR=mirror)
    packages = json.loads((FOLDER / "debs-arm64.json").read_text())["packages"]
    (wanted,) = (p["sha256"] for p in packages if p["name"] == DEB)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted


def test_a_wheel_with_another_hash_is_not_taken() -> None:
    wrong = "found.engine.fetchWheel (small // { sha256 = zeros; })"
    lets = """let small = lib.head (lib.filter (w: w.name == "annotated-doc")
        found.engine.wheelLocks.sglang.wheels);
      zeros = lib.concatStrings (lib.genList (_: "0") 64); in """
    done = nix("build", "--no-link", expression=lets + wrong)
    if any(words in done.stderr for words in UNREACHED):
        pytest.skip("no package index is reached from here")
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
