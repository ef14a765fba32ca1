"""Fetch the manifests and configs of base images, and keep them where the flake reads them.

    pin-image                      everything that bases.json names and that is not there yet
    pin-image NAME                 the same for one base
    pin-image NAME IMAGE [--arch ARCH]   pin another image under that name

IMAGE is HOST/REPOSITORY@sha256:... or HOST/REPOSITORY:TAG; a tag is asked once, and its digest is
what is pinned. http://HOST... is taken of this machine alone, or with --plain-http: whoever sits in
between could answer a tag with another image. Every file is named by its own SHA-256 and compared
with it; layers are not fetched. Nothing is written before all of it is there and has been read.
This is the only place where pins of bases change.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import re
import sys
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any

from download import Refused
from registry import MANIFEST_TYPES, Registry, fetch

FOLDER = Path("nix/images/bases")
SCHEMA = 2  # of OCI's and Docker's manifests and indexes alike
LOOPBACK = ("localhost", "127.0.0.1", "::1")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
IMAGE = re.compile(
    r"(?P<reference>[^@]+/[^@:]+)(@(?P<digest>sha256:[0-9a-f]{64})|:(?P<tag>[\w.-]+))"
)


def wanted(folder: Path) -> dict[str, dict[str, str]]:
    """The pins of bases.json; Refused D185 when it is not there or no JSON object."""
    file = folder / "bases.json"
    if not file.is_file():
        raise Refused(f"D185 There is no {file} here. Fix: run this in a checkout of the project.")
    return read_object(file.read_bytes(), str(file))


def named(pins: dict[str, dict[str, str]], name: str | None, file: Path) -> list[str]:
    """All names, or the one that is asked for; Refused D185 when there is none."""
    if name is not None and name not in pins:
        raise Refused(f"D185 {file} names no base {name}; it has {', '.join(sorted(pins))}.")
    return [key for key in pins if name in (None, key)]


def read_object(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object; Refused D185 for anything else."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise Refused(f"D185 {what} is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise Refused(f"D185 {what} is no JSON object.")
    return found


def read_manifest(data: bytes, what: str, *, stated: str | None = None) -> dict[str, Any]:
    """A manifest or an index of the kinds that registries serve; Refused D185 for anything else.

    `stated` is the answer's Content-Type; it counts where the document names no mediaType, which
    OCI's may leave out (image-spec, manifest.md and image-index.md).
    """
    found = read_object(data, what)
    kind = found.get("mediaType", stated)
    if found.get("schemaVersion") != SCHEMA or kind not in (None, *MANIFEST_TYPES):
        raise Refused(
            f"D185 {what} has schemaVersion {found.get('schemaVersion')} and mediaType {kind}; "
            f"expected {SCHEMA} and a manifest or an index of OCI or Docker."
        )
    if not isinstance(found.get("manifests"), list) and not isinstance(found.get("layers"), list):
        raise Refused(f"D185 {what} has neither manifests nor layers.")
    return found


def pin_of(image: str, arch: str, *, plain_http: bool = False) -> dict[str, str]:
    """The pin of an image by its digest or, asked now, by its tag."""
    match = IMAGE.fullmatch(image)
    if match is None:
        raise Refused(f"D185 {image} is no HOST/REPOSITORY@sha256:... and no HOST/REPOSITORY:TAG.")
    url = urllib.parse.urlsplit(match["reference"])
    if url.scheme == "http" and url.hostname not in LOOPBACK and not plain_http:
        raise Refused(
            f"D185 {image} would be asked without TLS. Fix: name it without http://, or give "
            "--plain-http."
        )
    digest = match["digest"] or digest_of_tag(image, match["reference"], match["tag"])
    return {"reference": match["reference"], "digest": digest, "arch": arch}


def digest_of_tag(image: str, reference: str, tag: str) -> str:
    """The digest of what a tag names now, when that is a manifest and what the registry says."""
    try:
        with Registry(reference).open("manifests", tag) as answer:
            data, headers = answer.read(), answer.headers
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"D183 {image} cannot be asked: {error}.") from error
    read_manifest(
        data, image, stated=headers.get_content_type() if "Content-Type" in headers else None
    )
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    stated = headers.get("Docker-Content-Digest", digest)
    if stated != digest:
        raise Refused(f"D183 {image} came with SHA-256 {digest}; the registry says {stated}.")
    return digest


def complete(folder: Path, scratch: Path, pin: dict[str, str]) -> None:
    """Fetch what is missing of a pin's manifests and config into `scratch`, and read all of it."""
    registry, what = Registry(pin["reference"]), f"{pin['reference']}@{pin['digest']}"

    def have(kind: str, of: Any) -> bytes:
        digest = of.get("digest") if isinstance(of, dict) else None
        if not DIGEST.fullmatch(str(digest)):
            raise Refused(f"D185 {what} names {digest}, which is no SHA-256.")
        return at_hand(folder, scratch, registry, kind, str(digest)).read_bytes()

    top = read_manifest(have("manifests", pin), what)
    if "manifests" in top:
        fits = [m for m in top["manifests"] if is_for(m, pin["arch"])]
        if len(fits) != 1:
            raise Refused(
                f"D185 {what} has {len(fits)} manifests for linux/{pin['arch']}; expected 1."
            )
        top = read_manifest(have("manifests", fits[0]), what)
    config = read_object(have("blobs", top.get("config")), f"The config of {what}")
    if not is_for({"platform": config}, pin["arch"]):
        raise Refused(
            f"D185 {what} is for {config.get('os')}/{config.get('architecture')}; expected "
            f"linux/{pin['arch']}."
        )


def is_for(member: Any, arch: str) -> bool:
    """Whether a member of an index is for linux on this architecture."""
    platform = member.get("platform") if isinstance(member, dict) else None
    wanted = {"os": "linux", "architecture": arch}
    return isinstance(platform, dict) and wanted.items() <= platform.items()


def at_hand(folder: Path, scratch: Path, registry: Registry, kind: str, digest: str) -> Path:
    """The file of an object: the one of the folder, if it is whole, or one that is fetched now."""
    name = f"{digest.removeprefix('sha256:')}.json"
    file = folder / name
    if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == file.stem:
        return file
    fetch(registry, kind, digest, scratch / name)
    return scratch / name


def run(options: argparse.Namespace) -> None:
    """Do it, and say what is new."""
    folder: Path = options.into
    pins = wanted(folder)
    if options.image is not None:
        pins[options.name] = pin_of(options.image, options.arch, plain_http=options.plain_http)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name in named(pins, options.name, folder / "bases.json"):
            pin = pins[name]
            sys.stderr.write(f"pin-image: {name} is {pin['reference']}@{pin['digest']}\n")
            complete(folder, Path(scratch), pin)
        new = [fetched.rename(folder / fetched.name) for fetched in sorted(Path(scratch).iterdir())]
    if options.image is not None:
        write(folder / "bases.json", json.dumps(pins, indent=2) + "\n")
    for file in new:
        sys.stdout.write(f"{file}\n")
    says = f"commit them: git add {folder}" if new or options.image else "nothing was missing"
    sys.stderr.write(f"pin-image: {says}\n")


def write(file: Path, text: str) -> None:
    """Replace a file as a whole."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


def main() -> int:
    """Read the command line; 1 and one line for what is refused."""
    parser = argparse.ArgumentParser(
        prog="pin-image", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?")
    parser.add_argument("image", nargs="?")
    parser.add_argument("--arch", default="arm64", help="architecture of a new pin")
    parser.add_argument("--plain-http", action="store_true", help="ask a host by http:// IMAGE")
    parser.add_argument("--into", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    try:
        run(parser.parse_args())
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
