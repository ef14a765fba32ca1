"""The key file of the local server, read by the rules of `dsv41.guards.keys`."""

from __future__ import annotations

import os
from pathlib import Path

from dsv41.guards import keys
from dsv41.guards.keys import ALLOWED_MODE, Keys

__all__ = ["ALLOWED_MODE", "Keys", "read_keys"]


def read_keys(path: Path) -> Keys:
    """Read the key file.

    Raises UsageError D070 when it cannot be read, D071 when its mode is looser than 0600, D072 when
    it is empty or a line is not one key.
    """
    try:
        keys.check_mode(path, path.stat().st_mode)  # to open a FIFO waits, a device may act
        with path.open("rb") as file:
            keys.check_mode(path, os.fstat(file.fileno()).st_mode)
            text = file.read()
    except OSError as error:
        raise keys.unreadable(path, error.strerror) from None
    return keys.parse(path, text)
