"""The key file: what is refused, what the refusal says and does not say, what a key opens."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dsv41.errors import UsageError, explanations
from dsv41.local.http.keys import Keys, read_keys

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "sk-very-secret-0123456789"  # noqa: S105 - a made-up key


def key_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def refusal(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_keys(path)
    error = caught.value
    assert error.code in explanations()
    assert error.fix
    assert SECRET not in f"{error} {error.fix}"
    assert str(path) in error.says
    return error


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o601, 0o700, 0o777, 0o4600], ids=oct)
def test_loose_mode_is_named_in_octal(tmp_path: Path, mode: int) -> None:
    error = refusal(key_file(tmp_path, SECRET.encode(), mode))
    assert error.code == "D071"
    assert f"mode {mode:04o};" in error.says


@pytest.mark.parametrize("mode", [0o600, 0o400], ids=oct)
@pytest.mark.parametrize("end", ["", "\n"], ids=["bare", "newline"])
def test_good_file(tmp_path: Path, mode: int, end: str) -> None:
    keys = read_keys(key_file(tmp_path, f"{SECRET}\nother{end}".encode(), mode))
    assert len(keys) == 2
    assert keys.accepts(f"Bearer {SECRET}".encode())
    assert keys.accepts(b"bearer other")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"\n", "it is empty"),
        (b"  \n\t\n", "it is empty"),
        (f"{SECRET}\n\nx\n".encode(), "line 2 is empty"),
        (f"{SECRET}\n\n".encode(), "line 2 is empty"),
        (f"x\n{SECRET} two\n".encode(), "line 2 has white space"),
        (f" {SECRET}\n".encode(), "line 1 has white space"),
        (f"{SECRET}\r\n".encode(), "line 1 has white space"),
        (f"x\t{SECRET}".encode(), "line 1 has white space"),
        (f"x\n{SECRET}\n{SECRET}\n".encode(), "line 3 repeats line 2"),
        (f"{SECRET}é".encode(), "line 1 has a character"),
        (SECRET.encode() + b"\x00", "line 1 has a character"),
    ],
)
def test_malformed(tmp_path: Path, content: bytes, says: str) -> None:
    error = refusal(key_file(tmp_path, content))
    assert error.code == "D072"
    assert says in error.says


def test_unreadable(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent").code == "D070"
    assert refusal(tmp_path).code == "D070"
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "not a regular file" in refusal(tmp_path / "pipe").says  # and not waited for


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic key",
        b"key",
        b"Bearer key2",
        b"Bearer ke",
    ],
)
def test_wrong_header(header: bytes | None) -> None:
    assert not Keys((b"key",)).accepts(header)


def test_keys_are_not_shown() -> None:
    assert SECRET not in repr(Keys((SECRET.encode(),)))
    assert SECRET not in str([Keys((SECRET.encode(),))])
