"""Make the engine locks again: the network's side of `engine_lock`.

It runs the tool that makes the locks of all images, nix/images/tools/lock_packages.py of the
checkout, with uv for wheels and apt for Debian packages.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv41 import engine_lock
from dsv41.errors import UsageError
from dsv41.host import write_atomically

TOOL = Path("nix/images/tools/lock_packages.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A package that is another one now. `locked` and `now` are its versions, None where it is not.

    `other_bytes`: one version, and another file, hash or size.
    """

    lock: str
    name: str
    locked: str | None
    now: str | None
    other_bytes: bool


def make(root: Path, into: Path, *, until: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Resolve all locks of a checkout and write them into a folder, with their lists beside them.

    `until` has a time for each engine: what was uploaded later is not looked at. Raises UsageError
    D199 when uv or apt is not there or fails.
    """
    folder = root / engine_lock.FOLDER
    lists = map(engine_lock.requirements_file, engine_lock.ENGINES)
    for name in (*lists, engine_lock.DEB_NAMES, engine_lock.COLLISIONS):
        (into / name).write_bytes((folder / name).read_bytes())
    tool = [sys.executable, str(root / TOOL)]
    for engine in engine_lock.ENGINES:
        say(f"resolving wheels of {engine}, and reading what is in them (minutes)")
        listed, contents = (
            str(into / file(engine))
            for file in (engine_lock.requirements_file, engine_lock.contents_file)
        )
        options = ["--until", until[engine], "--contents", contents]
        made = _run([*tool, "wheels", listed, "arm64", *options])
        (into / engine_lock.wheels_file(engine)).write_text(made, encoding="utf-8")
    say("resolving Debian packages")
    made = _run([*tool, "debs", str(into / engine_lock.DEB_NAMES), "arm64"])
    (into / engine_lock.DEBS).write_text(made, encoding="utf-8")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, text=True, capture_output=True)
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-3:]) or f"status {done.returncode}"
        raise UsageError(
            "D199",
            f"{TOOL.name} {command[2]} failed: {last}",
            fix="put uv on PATH (pip install uv), and look at the network",
        )
    return done.stdout


def changes(before: engine_lock.Locks, after: engine_lock.Locks) -> tuple[Change, ...]:
    """What differs between two sets of locks, package by package."""
    pairs: list[tuple[str, Any, Any]] = [
        (engine_lock.wheels_file(engine), before.wheels[engine]["wheels"], lock["wheels"])
        for engine, lock in after.wheels.items()
    ]
    pairs.append((engine_lock.DEBS, before.debs["packages"], after.debs["packages"]))
    return tuple(one for name, old, new in pairs for one in _differing(name, old, new))


def _differing(lock: str, old: Any, new: Any) -> list[Change]:
    had, has = ({entry["name"]: entry for entry in entries} for entries in (old, new))
    found = []
    for name in sorted(had.keys() | has.keys()):
        locked, now = had.get(name), has.get(name)
        if locked != now:
            versions = [entry and entry["version"] for entry in (locked, now)]
            other = versions[0] == versions[1]
            found.append(
                Change(lock=lock, name=name, locked=versions[0], now=versions[1], other_bytes=other)
            )
    return found


def keep(made: Path, root: Path) -> tuple[str, ...]:
    """Put made locks in their place; the names of the files that changed."""
    engines = engine_lock.ENGINES
    names = [f(e) for e in engines for f in (engine_lock.wheels_file, engine_lock.contents_file)]
    wrote = []
    for name in (*names, engine_lock.DEBS):
        text, place = (made / name).read_text(encoding="utf-8"), root / engine_lock.FOLDER / name
        if not place.is_file() or place.read_text(encoding="utf-8") != text:
            write_atomically(place, text)
            wrote.append(name)
    return tuple(wrote)
