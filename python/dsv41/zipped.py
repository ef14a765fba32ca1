"""This command as one file that any machine with Python 3.11 runs: what is sent to the nodes.

A zip archive of the package without the engines' sides (`local`, `adapters`: images have them), the
same bytes from the same files, so that its name can say what is in it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

from dsv41 import digests

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_LEFT_OUT = frozenset({"local", "adapters", "__pycache__"})
_KEPT = (".py", ".toml", ".json", ".typed")
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = "from dsv41.cli import run\n\nrun()\n"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the first time that a zip archive can have


def program() -> bytes:
    """The archive: `python3 FILE rank exec ...` is `dsv41 rank exec ...` of this version."""
    held = io.BytesIO()
    held.write(_SHEBANG)
    with zipfile.ZipFile(held, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _LONG_AGO), _MAIN)
        inside = dict(_contents(files("dsv41"), "dsv41"))
        # in a checkout the list of images lies beside the package, not in it
        known = next((place for place in digests.PLACES if place.is_file()), None)
        if known is not None:
            inside["dsv41/digests.json"] = known.read_bytes()
        for name, data in sorted(inside.items()):
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), data)
    return held.getvalue()


def name_of(archive: bytes) -> str:
    """The file name that says what is in it: two versions never share one."""
    return f"dsv41-{hashlib.sha256(archive).hexdigest()[:16]}.pyz"


def _contents(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.name in _LEFT_OUT:
            continue
        if entry.is_dir():
            yield from _contents(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(_KEPT):
            yield f"{path}/{entry.name}", entry.read_bytes()
