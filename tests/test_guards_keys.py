"""The rules of API keys, without a file; the reading of files is in test_keys.py."""

from __future__ import annotations

import stat

import pytest

from dsv41.errors import UsageError
from dsv41.guards import keys
from dsv41.guards.keys import Keys

PATH = "/run/keys"


def test_a_mode_is_judged_without_a_file() -> None:
    keys.check_mode(PATH, stat.S_IFREG | 0o600)
    keys.check_mode(PATH, stat.S_IFREG | 0o400)
    with pytest.raises(UsageError, match=r"D071 .* has mode 0640; it must be 0600"):
        keys.check_mode(PATH, stat.S_IFREG | 0o640)
    with pytest.raises(UsageError, match=r"D070 .* is not a regular file"):
        keys.check_mode(PATH, stat.S_IFDIR | 0o600)


def test_keys_are_taken_a_line_each() -> None:
    found = keys.parse(PATH, b"one\ntwo\n")
    assert (len(found), found.bearer()) == (2, "one")
    assert found.accepts(b"Bearer two")
    assert not found.accepts(b"Bearer three")
    assert not Keys(()).accepts(b"Bearer ")
    with pytest.raises(UsageError, match=r"D072 .* malformed: line 2 is empty"):
        keys.parse(PATH, b"one\n\ntwo\n")


def test_what_cannot_be_read_says_why() -> None:
    error = keys.unreadable(PATH, "Permission denied")
    assert error.code == "D070"
    assert str(error).endswith("/run/keys cannot be read: Permission denied.")
    assert error.fix
