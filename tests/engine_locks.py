"""Copies of the committed engine locks, for tests that damage them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv41 import engine_lock

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / engine_lock.FOLDER


def copied(checkout: Path) -> Path:
    """A copy of the locks below a checkout, to be damaged."""
    copy = checkout / engine_lock.FOLDER
    copy.mkdir(parents=True)
    for file in FOLDER.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    lock = json.loads(file.read_text())
    change(lock)
    file.write_text(json.dumps(lock))


def wheel(lock: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(w for w in lock["wheels"] if w["name"] == name)
    return found


def rename(lock: dict[str, Any], name: str, was: str, now: str) -> None:
    one = wheel(lock, name)
    assert was in one["file"]
    one["file"] = one["file"].replace(was, now)


def newer(lock: dict[str, Any], name: str, version: str) -> None:
    one = wheel(lock, name)
    one["file"] = one["file"].replace(one["version"], version)
    one["version"] = version
