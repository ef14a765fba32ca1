"""The command `pins`: list what is pinned, and fetch and hash it all again."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from dsv41 import pins, rehash
from dsv41.cli.talk import Talk
from dsv41.errors import CheckFailed, UsageError
from dsv41.host import write_atomically


def show(args: Namespace, talk: Talk) -> int:
    """List every pin."""
    found = _read(_root(args.root))
    if args.json:
        talk.document("pins", **pins.document(found))
        return 0
    for pin in found:
        known = "both hashes" if pin.sha256 and pin.nar_hash else _hash(pin)
        talk.put(f"{pin.name:38} {pin.commit[:12]}  {pin.license:28} {known}")
    return 0


def _hash(pin: pins.Pin) -> str:
    if pin.sha256:
        return "sha256; narHash not known yet" if pin.is_input else "sha256"
    return "narHash" if pin.nar_hash else "no hash known yet"


def verify(args: Namespace, talk: Talk) -> int:
    """Hash everything again, and write the narHash of an input that has none; 1 on a difference."""
    root = _root(args.root)
    found = _read(root)
    _refuse_stale(root, found)
    results = tuple(rehash.verify(_chosen(found, args.names), mirror=args.mirror, say=talk.say))
    failed = [result for result in results if result.status == "fail"]
    new = {r.name: r.nar_hash for r in results if r.status == "filled" and r.nar_hash}
    wrote = bool(new) and not failed and not args.dry_run
    if wrote:
        _fill(root, new)
    if args.json:
        status = "fail" if failed else "ok"
        checked = [asdict(result) for result in results]
        talk.document("pins-verify", status=status, pins=checked, wrote=wrote)
    else:
        for result in results:
            talk.put(_line(result))
    if wrote:
        talk.say(f"wrote {pins.LOCK} and {pins.FOR_NIX}; commit both")
    return CheckFailed.exit_status if failed else 0


def _line(result: rehash.Hashed) -> str:
    if result.status == "fail":
        return f"BAD    {result.name}  {result.code} {result.says}"
    told = f"  {result.nar_hash}" if result.status == "filled" else ""
    return f"{result.status:6} {result.name}{told}"


def _root(given: Path | None) -> Path:
    """The folder of the manifest: the given one, or the nearest from here upward."""
    here = Path.cwd()
    for folder in (here, *here.parents) if given is None else (given,):
        if (folder / pins.MANIFEST).is_file() and (folder / pins.LOCK).is_file():
            return folder
    raise UsageError(
        "D170",
        f"{given or here} has no {pins.MANIFEST} beside a {pins.LOCK}"
        f"{'' if given else ', nor has a folder above it'}.",
        fix="run it in a checkout of dsv41, or give --root DIR",
    )


def _read(root: Path) -> tuple[pins.Pin, ...]:
    return pins.read((root / pins.MANIFEST).read_text(), (root / pins.LOCK).read_text())


def _chosen(found: tuple[pins.Pin, ...], names: list[str]) -> tuple[pins.Pin, ...]:
    unknown = set(names) - {pin.name for pin in found}
    if unknown:
        raise UsageError(
            "D170", f"Nothing is pinned as {', '.join(sorted(unknown))}.", fix="see: dsv41 pins"
        )
    return tuple(pin for pin in found if not names or pin.name in names)


def _refuse_stale(root: Path, found: tuple[pins.Pin, ...]) -> None:
    committed = root / pins.FOR_NIX
    if not committed.is_file() or committed.read_text() != pins.for_nix(found):
        raise CheckFailed(
            "D179",
            f"{pins.FOR_NIX}, which Nix reads, is not what {pins.MANIFEST} and {pins.LOCK} say.",
            fix="make reference",
        )


def _fill(root: Path, new: dict[str, str]) -> None:
    write_atomically(root / pins.LOCK, pins.filled((root / pins.LOCK).read_text(), new))
    write_atomically(root / pins.FOR_NIX, pins.for_nix(_read(root)))
