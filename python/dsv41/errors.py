"""Every error of dsv41: a code, one sentence, the step that mends it.

Error                 exit 1
├── CheckFailed       exit 1  a check ran and found something wrong
├── UsageError        exit 2  a flag, a file or a value is not what it must be
├── Unreachable       exit 3  a host did not answer
├── EngineFailed      exit 4  an engine or a rank failed, or took too long
└── Unsafe            exit 5  refused, because going on could harm
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERRUPTED = 130  # the exit status of a command that Ctrl-C ended


class Error(Exception):
    """A failure that a person can act on; `cli` turns it into a message and an exit status."""

    exit_status = 1

    def __init__(self, code: str, says: str, *, fix: str = "") -> None:
        super().__init__(f"{code} {says}")
        self.code = code
        self.says = says
        self.fix = fix


class CheckFailed(Error):
    """A check ran and found something wrong."""


class UsageError(Error):
    """A flag, a file or a value is not what it must be."""

    exit_status = 2


class Unreachable(Error):
    """A host did not answer."""

    exit_status = 3


class EngineFailed(Error):
    """An engine or a rank failed, or took too long."""

    exit_status = 4


class Unsafe(Error):
    """Refused, because going on could harm."""

    exit_status = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What `dsv41 explain CODE` prints."""

    code: str
    title: str
    text: str


@functools.cache
def explanations() -> Mapping[str, Explanation]:
    """All codes with their explanations, in order."""
    table = tomllib.loads(files("dsv41").joinpath("codes.toml").read_text(encoding="utf-8"))
    found = {
        code: Explanation(code=code, title=entry["title"], text=entry["text"].strip())
        for code, entry in sorted(table.items())
    }
    return MappingProxyType(found)
