"""The image of a Plan on its nodes: what is missing goes there, is loaded, and has its digest.

No node needs more than its container engine: layers travel over ssh, each one once, whole or not at
all. podman reads the folder of blobs in place and keeps the manifest's digest. docker is given its
archive; where it keeps no manifests it calls an image by its config, whose digest the manifest of
the Plan's digest names, so that it is the same image by the same chain of hashes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsv41 import containers
from dsv41.errors import CheckFailed, Unsafe
from dsv41.host.reach import Host
from dsv41.images import store
from dsv41.images.oci import DIGEST, Blob, Image

LOADING = 1800.0  # seconds; a slow disk unpacks 20 GB in a few minutes
_GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where an image goes: a node, its container engine and its folder of blobs."""

    host: Host
    program: str
    folder: str
    reference: str

    @property
    def digest(self) -> str:
        """The digest of the Plan's image."""
        return self.reference.rpartition("@")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """What a node lacks of an image: layers, and the bytes of them that must be sent."""

    target: Target
    present: bool
    missing: tuple[Blob, ...] = ()
    bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)


def require_engine(host: Host, program: str) -> str:
    """The version of the node's container engine; CheckFailed D410 when it cannot be used."""
    done = host.run(containers.presence(program), sudo=True)
    if done.status:
        raise CheckFailed(
            "D410",
            f"{host.name}: {program} cannot be used: {done.last_word}.",
            fix=f"install or start it there, or set container = "
            f'"{"podman" if program == "docker" else "docker"}" for the node in the fleet file',
        )
    return done.stdout.strip()


def known_as(target: Target) -> str | None:
    """What the node's container engine calls the image of this very digest; None if absent.

    Of podman, and of docker with containerd's image store, it is the reference itself; else of
    docker an image ID, which is the config's digest.
    """
    found = _inspected(target, target.reference)
    if found is not None and target.digest in _digests(found):
        return target.reference
    if target.program != "docker":
        return None
    config = _config_of(target)
    for word in filter(None, (config, containers.tagged(target.reference))):
        found = _inspected(target, word)
        if found is not None and found.get("Id") in (config, target.digest):
            return str(found["Id"])
    return None


def require(target: Target) -> str:
    """As `known_as`; Unsafe D419 when the node has not the image."""
    known = known_as(target)
    if known is None:
        raise Unsafe(
            "D419",
            f"{target.host.name}: {target.program} has no image {target.reference}.",
            fix="dsv41 build --profile P --fleet fleet.toml; on the node, dsv41 build --plan FILE "
            "--rank N",
        )
    return known


def survey(target: Target, image: Image | None) -> Delivery:
    """What the node has and lacks; without an image, only whether it is loaded."""
    require_engine(target.host, target.program)
    if known_as(target) is not None:
        return Delivery(target=target, present=True)
    if image is None:
        return Delivery(target=target, present=False)
    found = store.held(target.host, target.folder)
    return Delivery(
        target=target,
        present=False,
        missing=tuple(found.missing(image)),
        bytes=found.to_come(image),
        parts=found.parts,
    )


def require_room(delivery: Delivery, image: Image) -> None:
    """CheckFailed D416 when the copy or the loaded image would not fit; nothing was sent yet.

    Compressed layers take more when they are unpacked, so that this is the least that is needed.
    """
    target = delivery.target
    needs: dict[str, tuple[int, int]] = {}
    root = target.host.ask(containers.storage(target.program), sudo=True).strip()
    for path, wanted in ((target.folder, delivery.bytes), (root, image.size)):
        source, free = store.free(target.host, path)
        needs[source] = (needs.get(source, (0, 0))[0] + wanted, free)
    for source, (wanted, free) in needs.items():
        if wanted > free:
            raise CheckFailed(
                "D416",
                f"{target.host.name}: the image needs {wanted} bytes ({wanted / _GIB:.1f} GiB) on "
                f"{source}; {free} ({free / _GIB:.1f} GiB) are free.",
                fix=f"make room there: {target.program} image prune, or dsv41 cache clear",
            )


def deliver(delivery: Delivery, image: Image, *, moved: Callable[[int], object]) -> None:
    """Send what is missing, load it, and see that the node has the image by its digest.

    `moved` is told the bytes of this delivery that are there. Raises as `store.send`, D412 also
    when the engine cannot load it, and Unsafe D419 when it then has another image.
    """
    target, sent = delivery.target, 0
    for blob in delivery.missing:
        have = delivery.parts.get(blob.hex, 0)
        base = sent - have
        store.send(
            target.host,
            target.folder,
            _at_hand(blob, image),
            have=have,
            moved=lambda n, base=base: moved(base + n),  # type: ignore[misc]
        )
        sent += blob.size - have
    name = containers.tagged(target.reference)
    store.write(target.host, target.folder, image, reference=target.reference, name=name)
    _load(target, image, name)
    require(target)
    store.drop_others(target.host, target.folder, image)


def _at_hand(blob: Blob, image: Image) -> Blob:
    return blob if blob.path or image.fetch is None else image.fetch(blob)


def _load(target: Target, image: Image, name: str) -> None:
    if target.program == "docker":
        archive = ["tar", "-C", target.folder, "-cf", "-", *store.members(image)]
        _run(target, ["sh", "-c", f"{shlex.join(archive)} | docker load --quiet"])
        return
    pulled = ["podman", "pull", "--quiet", f"oci:{target.folder}"]
    found = _run(target, pulled).split()[-1]
    _run(target, ["podman", "tag", found, name])
    told = _inspected(target, found) or {}
    # podman calls it by the folder as well
    others = [n for n in told.get("RepoTags") or [] if n.startswith(f"localhost{target.folder}")]
    for other in others:
        _run(target, ["podman", "untag", found, other])


def _run(target: Target, argv: list[str]) -> str:
    done = target.host.run(argv, seconds=LOADING, sudo=True)
    if done.status:
        raise CheckFailed(
            "D412",
            f"{target.host.name}: {target.program} could not load the image: {done.last_word}.",
            fix="mend that, then run the same command again: the layers are there",
        )
    return done.stdout


def _inspected(target: Target, word: str) -> dict[str, Any] | None:
    done = target.host.run(containers.image(target.program, word), sudo=True)
    if done.status:
        return None
    try:
        found = json.loads(done.stdout)
        return dict(found[0])
    except (ValueError, LookupError, TypeError):
        return None


def _digests(found: dict[str, Any]) -> set[str]:
    listed = [str(word).rpartition("@")[2] for word in found.get("RepoDigests") or []]
    return {str(found.get("Digest")), *listed}


def _config_of(target: Target) -> str | None:
    """The config's digest that the manifest in the node's folder names, when it is the Plan's."""
    path = f"{target.folder}/blobs/sha256/{target.digest.removeprefix('sha256:')}"
    script = 'set -- "$1" "$2" $(sha256sum -- "$1") && [ "$2" = "$3" ] && cat -- "$1"'
    words = ["sh", "-c", script, "manifest", path, target.digest.removeprefix("sha256:")]
    done = target.host.run(words, sudo=True)
    try:
        found = str(json.loads(done.stdout)["config"]["digest"])
    except (ValueError, LookupError, TypeError):
        return None
    return found if DIGEST.fullmatch(found) else None
