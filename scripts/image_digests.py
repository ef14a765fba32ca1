"""Write nix/images/digests.json again: the digests of all images that have one (`make digests`).

An image whose base is not pinned here, or that the flake does not have yet, stays null. A digest
needs no layer that is listed by its hash, so a small machine does this in seconds. It does not
depend on nixpkgs either: with --offline the stand-in of tests/nix answers (a Debian with .venv and
scripts/get-nix.sh). Options of nix, such as --override-input, go to each call; `--file FILE` asks
another expression than the flake.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_YET = (
    "D181 ",  # the base is not pinned
    "D401 ",  # its layers were not measured
    "does not provide attribute",  # a flake without this image
    "in selection path",  # the same of a file
    "nccl-sparkring is built with CUDA",  # whose digest comes with a patched NCCL
)
# the real bases on the stand-in for nixpkgs
OFFLINE = ["--impure", "--file", "tests/nix/images.nix", "--arg", "bases", "./nix/images/bases"]
CONFIG = """experimental-features = nix-command flakes
sandbox = false
build-users-group =
substituters =
flake-registry =
"""


def stand_in() -> dict[str, str]:
    """The environment in which nix of scripts/get-nix.sh builds on the stand-in."""
    prefix = os.environ.get("NIX_PREFIX", "/opt/nix-debian")
    (site,) = (ROOT / ".venv" / "lib").glob("python3*/site-packages")
    path = f"{prefix}/bin:{os.environ['PATH']}"
    return {**os.environ, "NIX_CONFIG": CONFIG, "DSV41_SITE": str(site), "PATH": path}


def digest(name: str, options: list[str], environment: dict[str, str]) -> str | None:
    """The digest of an image, or None; ends with nix's own words where nix fails otherwise."""
    attribute = f"image-{name}.digest"
    asked = attribute if "--file" in options else f".#{attribute}"
    command = ["nix", "build", "--no-link", "--print-out-paths", "--no-write-lock-file"]
    done = subprocess.run(
        [*command, *options, asked],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    if done.returncode == 0:
        return Path(done.stdout.strip()).read_text().strip()
    if any(words in done.stderr for words in NOT_YET):
        return None
    sys.exit(f"image_digests: {attribute}\n{done.stderr}")


def main() -> None:
    """Write the list, or with --check compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--offline", action="store_true", help="on the stand-in for nixpkgs")
    parser.add_argument("--list", type=Path, default=ROOT / "nix" / "images" / "digests.json")
    own, options = parser.parse_known_args()
    environment = stand_in() if own.offline else dict(os.environ)
    options += OFFLINE if own.offline else []
    before = json.loads(own.list.read_text())
    found = {name: digest(name, options, environment) for name in sorted(before["images"])}
    stale = sorted(name for name in found if found[name] != before["images"][name])
    if own.check:
        sys.exit(f"image_digests: {', '.join(stale)} changed; run: make digests" if stale else 0)
    own.list.write_text(json.dumps({**before, "images": found}, indent=2) + "\n")


main()
