"""API keys: what a key file may hold, and which Authorization headers open the API.

A file that others may read, or with a line that cannot be a key, is refused before anything is
served. The messages name the file, the mode and the line number, never the content. Whoever calls
opens the file, after `check_mode` of its `stat` and before that of the open one; nothing is read
here.
"""

from __future__ import annotations

import hmac
import stat

from dsv41.errors import UsageError

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


def unreadable(path: object, why: str | None) -> UsageError:
    """D070, for a file that cannot be opened; `why` in the system's words."""
    return UsageError(
        "D070",
        f"The API key file {path} cannot be read: {why}.",
        fix=f"make it, one key a line, and chmod 600 {path}",
    )


def check_mode(path: object, mode: int) -> None:
    """Judge `st_mode`.

    Raises UsageError D070 for what is not a regular file, D071 for a mode looser than 0600.
    """
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


def parse(path: object, text: bytes) -> Keys:
    """Take one key a line; UsageError D072 when there is none or a line is not one key."""
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
    return Keys(tuple(keys))


def _malformed(path: object, says: str) -> UsageError:
    return UsageError(
        "D072",
        f"The API key file {path} is malformed: {says}.",
        fix="write one key a line: printable ASCII, no spaces, no empty line, no comment",
    )
