"""`dsv41 build`: the image of a profile on a fleet's nodes, or of a Plan's rank on its own."""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv41 import digests, fleet, images, profile, run
from dsv41.cli import defaults, options
from dsv41.cli.talk import Talk
from dsv41.errors import Error, UsageError
from dsv41.host.reach import LOCAL, Host, each
from dsv41.images import sources, store
from dsv41.images.oci import Image, unreadable

KEPT = Path.home() / ".cache" / "dsv41" / "blobs"  # layers of a registry, one file each
_GIB = 2**30
_EVERY = 5.0  # seconds between two lines of progress


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """One image on its way to nodes; `name` is the flake's, where it has one."""

    reference: str
    name: str
    targets: tuple[images.Target, ...]
    source: str


@dataclass(kw_only=True)
class _Progress:
    """How far every node is, a line for all of them now and then."""

    talk: Talk
    began: float = field(default_factory=time.monotonic)
    shown: float = field(default_factory=time.monotonic)
    at: dict[str, tuple[int, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def moved(self, node: str, done: int, total: int) -> None:
        """A node has so many of its bytes."""
        with self.lock:
            self.at[node] = (done, total)
            if time.monotonic() - self.shown < _EVERY:
                return
            self.shown = time.monotonic()
            parts = (f"{n} {d / _GIB:.2f} of {t / _GIB:.2f} GiB" for n, (d, t) in self.at.items())
            self.talk.say(f"{', '.join(parts)}; {self.shown - self.began:.0f} s")


def build(args: Namespace, talk: Talk) -> int:
    """Bring the image to where it is missing; the worst node's exit status."""
    began = time.monotonic()
    wanted = _wanted(args)
    if args.dry_run:
        _refuse_absent(wanted.source)
    with _closing(wanted.targets):
        results = _carry_out(wanted, talk, dry_run=args.dry_run)
    if args.json:
        talk.document(
            "build",
            image=wanted.reference,
            dry_run=args.dry_run,
            seconds=round(time.monotonic() - began, 3),
            nodes=[{"node": name, **_told(found)} for name, found in results.items()],
        )
    else:
        for name, found in results.items():
            _show(name, found, talk)
    failed = [found for found in results.values() if isinstance(found, Error)]
    return max((error.exit_status for error in failed), default=0)


def _refuse_absent(source: str) -> None:
    """CheckFailed D415 for a folder or file that is not there, before any node is asked.

    For a dry run, which is a question about the source as well; nodes that have the image already
    need none.
    """
    if source != sources.NIX and "@sha256:" not in source and not Path(source).exists():
        raise unreadable(source, "there is no such file or folder")


def _wanted(args: Namespace) -> _Wanted:
    if (args.plan is None) != (args.rank is None) or (args.plan is None) == (args.fleet is None):
        raise UsageError(
            "D107",
            "build takes --profile P --fleet F, from anywhere, or --plan FILE --rank N on a node.",
            fix="give one of the two pairs",
        )
    return _of_fleet(args) if args.plan is None else _of_rank(args)


def _of_fleet(args: Namespace) -> _Wanted:
    if args.profile is None:
        raise UsageError("D107", "--fleet needs --profile.", fix="give both of them")
    chosen = profile.load(args.profile)
    if args.tree is not None:
        chosen = chosen.on_tree(args.tree)
    found = fleet.load(args.fleet)
    name = defaults.image_name(chosen)
    known = options.image(args.image) if args.image else digests.known().get(name)
    reference = digests.require(known, profile=chosen.name)
    names = [node.name for node in found.nodes]
    for node in args.node:
        if node not in names:
            raise UsageError(
                "D107",
                f"The fleet has no node {node}; it has {', '.join(names)}.",
                fix="give --node one of them",
            )
    targets = tuple(
        images.Target(
            host=Host(name=node.name, destination=node.ssh, sudo=node.sudo),
            program=found.container_of(rank),
            folder=store.folder_in(found.state_dir),
            reference=reference,
        )
        for rank, node in enumerate(found.nodes)
        if not args.node or node.name in args.node
    )
    return _Wanted(
        reference=reference, name=name, targets=targets, source=args.source or sources.NIX
    )


def _of_rank(args: Namespace) -> _Wanted:
    plan = run.read_plan(args.plan)
    if not 0 <= args.rank < len(plan.ranks):
        raise UsageError(
            "D107",
            f"--rank is {args.rank}; the Plan has ranks 0 to {len(plan.ranks) - 1}.",
            fix="give one of its ranks",
        )
    rank, folder = plan.ranks[args.rank], store.folder_in(plan.state_dir)
    if rank.container is None:
        raise UsageError(
            "D107",
            f"Rank {args.rank} of the Plan runs in no container.",
            fix="nothing is to be built; go on with dsv41 serve",
        )
    reference = digests.require(rank.image, profile=plan.profile)
    target = images.Target(
        host=Host(name=rank.node, destination=LOCAL),
        program=rank.container,
        folder=folder,
        reference=reference,
    )
    arrived = folder if (Path(folder) / "index.json").is_file() else sources.NIX
    name = reference.partition("@")[0].rpartition("/")[2]
    return _Wanted(reference=reference, name=name, targets=(target,), source=args.source or arrived)


def _carry_out(
    wanted: _Wanted, talk: Talk, *, dry_run: bool
) -> Mapping[str, images.Delivery | Error]:
    """Look at all nodes, open the source when one lacks the image, then send to those."""
    targets = {target.host.name: target for target in wanted.targets}
    hosts = [target.host for target in wanted.targets]
    looked = each(hosts, lambda host: images.survey(targets[host.name], None))
    lacking = [
        targets[name].host
        for name, found in looked.items()
        if isinstance(found, images.Delivery) and not found.present
    ]
    if not lacking:
        return looked
    image = sources.find(
        wanted.source,
        wanted=wanted.reference.rpartition("@")[2],
        name=wanted.name,
        kept=KEPT,
    )
    progress = _Progress(talk=talk)

    def one(host: Host) -> images.Delivery:
        found = images.survey(targets[host.name], image)
        images.require_room(found, image)
        if not dry_run:
            talk.say(
                f"{host.name}: {len(found.missing)} of {len(image.layers)} layers to send, "
                f"{found.bytes / _GIB:.2f} GiB"
            )
            _deliver(found, image, progress)
        return found

    return {**looked, **each(lacking, one)}


def _deliver(found: images.Delivery, image: Image, progress: _Progress) -> None:
    name = found.target.host.name
    images.deliver(found, image, moved=lambda done: progress.moved(name, done, found.bytes))


def _told(found: images.Delivery | Error) -> dict[str, Any]:
    if isinstance(found, Error):
        return {"status": "failed", "code": found.code, "says": found.says, "fix": found.fix}
    status = "present" if found.present else "delivered"
    return {
        "status": status,
        "layers": [blob.digest for blob in found.missing],
        "bytes": found.bytes,
    }


def _show(name: str, found: images.Delivery | Error, talk: Talk) -> None:
    if isinstance(found, Error):
        talk.say(f"{found.code} {found.says}")
        talk.say(f"  fix: {found.fix}")
        talk.put(f"{name}: failed, {found.code}")
    elif found.present:
        talk.put(f"{name}: has {found.target.reference}")
    else:
        talk.put(f"{name}: {len(found.missing)} layers, {found.bytes} bytes")


@contextmanager
def _closing(targets: tuple[images.Target, ...]) -> Iterator[None]:
    try:
        yield
    finally:
        for target in targets:
            target.host.close()
