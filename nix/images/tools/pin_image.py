"""Fetch the manifests and configs of base images, and keep them where the flake reads them.

    pin-image                      everything that bases.json names and that is not there yet
    pin-image NAME                 the same for one base
    pin-image NAME IMAGE [--arch ARCH]   pin another image under that name

IMAGE is HOST/REPOSITORY@sha256:... or HOST/REPOSITORY:TAG; a tag is asked once, and its digest is
what is pinned. Every file is named by its own SHA-256 and compared with it; layers are not fetched.
This is the only place where pins of bases change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from download import Refused
from registry import Registry, fetch

FOLDER = Path("nix/images/bases")
IMAGE = re.compile(
    r"(?P<reference>[^@]+/[^@:]+)(@(?P<digest>sha256:[0-9a-f]{64})|:(?P<tag>[\w.-]+))"
)


def wanted(folder: Path, name: str | None) -> dict[str, dict[str, str]]:
    """The pins of bases.json, or the one of a name; Refused D185 when there is none."""
    file = folder / "bases.json"
    if not file.is_file():
        raise Refused(f"D185 There is no {file} here. Fix: run this in a checkout of the project.")
    pins: dict[str, dict[str, str]] = json.loads(file.read_text())
    if name is not None and name not in pins:
        raise Refused(f"D185 {file} names no base {name}; it has {', '.join(sorted(pins))}.")
    return {key: pin for key, pin in pins.items() if name in (None, key)}


def pin_of(image: str, arch: str) -> dict[str, str]:
    """The pin of an image by its digest or, asked now, by its tag."""
    match = IMAGE.fullmatch(image)
    if match is None:
        raise Refused(f"D185 {image} is no HOST/REPOSITORY@sha256:... and no HOST/REPOSITORY:TAG.")
    digest = match["digest"]
    if digest is None:
        try:
            with Registry(match["reference"]).open("manifests", match["tag"]) as answer:
                digest = "sha256:" + hashlib.sha256(answer.read()).hexdigest()
        except (OSError, urllib.error.URLError) as error:
            raise Refused(f"D183 {image} cannot be asked: {error}.") from error
    return {"reference": match["reference"], "digest": digest, "arch": arch}


def complete(folder: Path, pin: dict[str, str]) -> Iterator[str]:
    """Keep what of a pin's manifests and config is missing; the names of the new files."""
    registry = Registry(pin["reference"])
    top, new = keep(folder, registry, "manifests", pin["digest"])
    yield from new
    if "manifests" in top:
        fits = [m for m in top["manifests"] if is_for(m.get("platform", {}), pin["arch"])]
        if len(fits) != 1:
            raise Refused(
                f"D185 {pin['reference']}@{pin['digest']} has {len(fits)} manifests for "
                f"linux/{pin['arch']}; expected 1."
            )
        top, new = keep(folder, registry, "manifests", fits[0]["digest"])
        yield from new
    yield from keep(folder, registry, "blobs", top["config"]["digest"])[1]


def is_for(platform: dict[str, str], arch: str) -> bool:
    """Whether a manifest of an index is for linux on this architecture."""
    return platform.get("os") == "linux" and platform.get("architecture") == arch


def keep(
    folder: Path, registry: Registry, kind: str, digest: str
) -> tuple[dict[str, Any], list[str]]:
    """A JSON object of a registry, and its file's name if it had to be fetched."""
    file = folder / f"{digest.removeprefix('sha256:')}.json"
    new = not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != file.stem
    if new:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fetched = Path(scratch) / file.name
            fetch(registry, kind, digest, fetched)
            fetched.rename(file)
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found, [file.name] if new else []


def run(options: argparse.Namespace) -> None:
    """Do it, and say what is new."""
    folder: Path = options.into
    if options.image is not None:
        pins = wanted(folder, None)
        pins[options.name] = pin_of(options.image, options.arch)
        (folder / "bases.json").write_text(json.dumps(pins, indent=2) + "\n")
    new: list[str] = []
    for name, pin in wanted(folder, options.name).items():
        sys.stderr.write(f"pin-image: {name} is {pin['reference']}@{pin['digest']}\n")
        new += complete(folder, pin)
    for file in new:
        sys.stdout.write(f"{folder / file}\n")
    says = f"commit them: git add {folder}" if new else "nothing was missing"
    sys.stderr.write(f"pin-image: {says}\n")


def main() -> int:
    """Read the command line; 1 and one line for what is refused."""
    parser = argparse.ArgumentParser(
        prog="pin-image", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?")
    parser.add_argument("image", nargs="?")
    parser.add_argument("--arch", default="arm64", help="architecture of a new pin")
    parser.add_argument("--into", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    try:
        run(parser.parse_args())
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
