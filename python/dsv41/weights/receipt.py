"""What was read of a checkpoint: each file's hash, good as long as the file was not touched.

Kept as .cache/dsv41/read.json below the checkpoint. A file counts as untouched while its size, its
time of change in nanoseconds and its inode are those of the reading.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from dsv41 import host
from dsv41.weights.published import FOLDER

SCHEMA = "dsv41.weights-receipt/1"
NAME = "read.json"


class Receipt:
    """The hashes of one checkpoint's files. `place` None: nothing is kept."""

    def __init__(self, place: Path | None) -> None:
        self.place = place
        self.fault = ""  # why it cannot be kept
        self._lock = threading.Lock()
        self._files: dict[str, dict[str, Any]] = _load(place)

    @classmethod
    def of(cls, checkpoint: Path) -> Receipt:
        """The receipt that lies in a checkpoint; one that cannot be read counts for nothing."""
        return cls(checkpoint / FOLDER / NAME)

    def known(self, path: str, kind: str, stat: os.stat_result) -> str | None:
        """The hash of an untouched file; None when it must be read."""
        entry = self._files.get(path, {})
        untouched = all(entry.get(key) == value for key, value in _state(stat).items())
        return entry.get("digest") if untouched and entry.get("kind") == kind else None

    def keep(self, path: str, kind: str, digest: str, stat: os.stat_result) -> None:
        """Remember a file and write the receipt: a reading that is broken off goes on from here."""
        with self._lock:
            self._files[path] = {**_state(stat), "kind": kind, "digest": digest}
            if self.place is None or self.fault:
                return
            try:
                self.place.parent.mkdir(parents=True, exist_ok=True)
                document = {"schema": SCHEMA, "files": dict(sorted(self._files.items()))}
                host.write_atomically(self.place, json.dumps(document, indent=1) + "\n")
            except OSError as error:  # an export is read-only: the next reading takes as long
                self.fault = f"{self.place}: {error.strerror}"


def _state(stat: os.stat_result) -> dict[str, int]:
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}


def _load(place: Path | None) -> dict[str, dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(place.read_text(encoding="utf-8")) if place else {}
        if data["schema"] == SCHEMA:
            return {str(path): dict(entry) for path, entry in data["files"].items()}
    return {}
