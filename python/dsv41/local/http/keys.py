"""API keys from a file: several, one a line, never shown.

A file that others may read, or with a line that cannot be a key, is refused before anything is
served. The messages name the file, the mode and the line number, never the content.
"""

from __future__ import annotations

import hmac
import os
import stat
from typing import TYPE_CHECKING

from dsv41.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

ALLOWED_MODE = 0o600  # read and write for the owner, nothing else; 0400 (systemd's) is stricter


class Keys:
    """The keys that open the API."""

    __slots__ = ("_keys",)

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<{len(self)} API keys>"

    def bearer(self) -> str:
        """The first key, for a client of our own that must show one."""
        return self._keys[0].decode()

    def accepts(self, header: bytes | None) -> bool:
        """Whether an Authorization header carries one of the keys, in a time that tells nothing."""
        scheme, _, given = (header or b"").partition(b" ")
        matches = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


def read_keys(path: Path) -> Keys:
    """Read the key file.

    Raises UsageError D070 when it cannot be read, D071 when its mode is looser than 0600, D072 when
    it is empty or a line is not one key.
    """
    try:
        with path.open("rb") as file:
            _check_mode(path, os.fstat(file.fileno()).st_mode)
            text = file.read()
    except OSError as error:
        raise UsageError(
            "D070",
            f"The API key file {path} cannot be read: {error.strerror}.",
            fix=f"make it, one key a line, and chmod 600 {path}",
        ) from None
    return Keys(_parse(path, text))


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise UsageError(
            "D070",
            f"The API key file {path} is not a regular file.",
            fix="name a file with one key a line",
        )
    found = stat.S_IMODE(mode)
    if found & ~ALLOWED_MODE:
        raise UsageError(
            "D071",
            f"The API key file {path} has mode {found:04o}; it must be 0600 or stricter.",
            fix=f"chmod 600 {path}",
        )


def _parse(path: Path, text: bytes) -> tuple[bytes, ...]:
    keys = text.removesuffix(b"\n").split(b"\n") if text.strip() else []
    if not keys:
        raise _malformed(path, "it is empty")
    for number, key in enumerate(keys, start=1):
        if not key:
            raise _malformed(path, f"line {number} is empty")
        if any(byte in b" \t\r\v\f" for byte in key):
            raise _malformed(path, f"line {number} has white space in or around the key")
        if not all(0x21 <= byte <= 0x7E for byte in key):
            raise _malformed(path, f"line {number} has a character that no HTTP header may carry")
        if key in keys[: number - 1]:
            raise _malformed(path, f"line {number} repeats line {keys.index(key) + 1}")
    return tuple(keys)


def _malformed(path: Path, says: str) -> UsageError:
    return UsageError(
        "D072",
        f"The API key file {path} is malformed: {says}.",
        fix="write one key a line: printable ASCII, no spaces, no empty line, no comment",
    )
