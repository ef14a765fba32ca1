"""The command `lock-engine`: make the package locks of the engine images, or check them."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsv41.cli.talk import Talk
from dsv41.errors import CheckFailed, UsageError

try:
    from dsv41 import engine_lock, relock
    from dsv41.engine_lock import Locks, Problem
    from dsv41.relock import Change
except ModuleNotFoundError as error:  # packaging, which only the development environment has
    raise UsageError(
        "D199",
        f"lock-engine is for a checkout with its development environment; {error.name} is missing.",
        fix="make setup, then: .venv/bin/dsv41 lock-engine",
    ) from error


def lock_engine(args: Namespace, talk: Talk) -> int:
    """Make the locks, or with --check look at them; 1 when something is wrong with them."""
    if args.index and not args.check:
        raise UsageError(
            "D199", "--index goes with --check.", fix="dsv41 lock-engine --check --index"
        )
    if args.check and (args.until or args.dry_run):
        raise UsageError(
            "D199",
            "--until and --dry-run are about making the locks, and --check makes none.",
            fix="leave them out, or leave out --check",
        )
    root = _root(args.root)
    return _check(root, args, talk) if args.check else _make(root, args, talk)


def _root(given: Path | None) -> Path:
    """The checkout: the given folder, or the nearest from here upward."""
    here = Path.cwd()
    for folder in (here, *here.parents) if given is None else (given,):
        if (folder / engine_lock.FOLDER).is_dir():
            return folder
    raise UsageError(
        "D195",
        f"{given or here} has no {engine_lock.FOLDER}"
        f"{'' if given else ', nor has a folder above it'}.",
        fix="run it in a checkout of dsv41, or give --root DIR",
    )


def _check(root: Path, args: Namespace, talk: Talk) -> int:
    locks = engine_lock.read(root / engine_lock.FOLDER)
    found = engine_lock.problems(locks)
    moved: tuple[Change, ...] = ()
    if args.index:
        with tempfile.TemporaryDirectory() as folder:
            moved = _again(root, Path(folder), {}, locks, talk)[1]
        found = (*found, *_gone(moved))
    return _tell(talk, locks, found, moved, wrote=())


def _make(root: Path, args: Namespace, talk: Talk) -> int:
    before = engine_lock.read(root / engine_lock.FOLDER)
    until = dict.fromkeys(engine_lock.ENGINES, args.until) if args.until else {}
    with tempfile.TemporaryDirectory() as folder:
        after, moved = _again(root, Path(folder), until, before, talk)
        found = engine_lock.problems(after)
        # locks that do not hold together are not written
        wrote = () if found or args.dry_run else relock.keep(Path(folder), root)
    return _tell(talk, after, found, moved, wrote=wrote)


def _again(
    root: Path, folder: Path, until: dict[str, str], before: Locks, talk: Talk
) -> tuple[Locks, tuple[Change, ...]]:
    """Locks made again, as of their own time where none is given, and what differs."""
    times = {e: until.get(e, before.wheels[e]["until"]) for e in engine_lock.ENGINES}
    relock.make(root, folder, until=times, say=talk.say)
    after = engine_lock.read(folder)
    return after, relock.changes(before, after)


def _gone(moved: tuple[Change, ...]) -> tuple[Problem, ...]:
    """What an index should still have; a superseded Debian package is in the dated snapshot."""
    return tuple(
        engine_lock.Problem(
            code="D198",
            lock=one.lock,
            says=f"{one.name} {one.locked} is locked; the index now gives "
            f"{'other bytes' if one.other_bytes else one.now or 'nothing'}",
        )
        for one in moved
        if one.other_bytes or one.lock != engine_lock.DEBS
    )


def _tell(
    talk: Talk,
    locks: Locks,
    found: tuple[Problem, ...],
    moved: tuple[Change, ...],
    *,
    wrote: tuple[str, ...],
) -> int:
    sizes = _sizes(locks)
    if talk.as_json:
        talk.document(
            "lock-engine",
            status="fail" if found else "ok",
            locks=sizes,
            problems=[asdict(one) for one in found],
            changes=[asdict(one) for one in moved],
            wrote=list(wrote),
        )
        return CheckFailed.exit_status if found else 0
    for one in moved:
        talk.put(f"{one.lock:24} {one.name:32} {one.locked or '-'} -> {one.now or '-'}")
    for problem in found:
        talk.put(f"BAD    {problem.lock}  {problem.code} {problem.says}.")
    for size in sizes:
        talk.put(f"{size['lock']:24} {size['packages']:4} packages  {size['bytes']:13,} bytes")
    if wrote:
        talk.say(f"wrote {', '.join(wrote)}; commit them, and list the layers again")
    return CheckFailed.exit_status if found else 0


def _sizes(locks: Locks) -> list[dict[str, Any]]:
    named = {engine_lock.wheels_file(e): lock["wheels"] for e, lock in locks.wheels.items()}
    named[engine_lock.DEBS] = locks.debs["packages"]
    return [
        {"lock": name, "packages": len(entries), "bytes": sum(e["size"] for e in entries)}
        for name, entries in named.items()
    ]
