"""The extension that does the work, and what its refusals mean to a person."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsv41.errors import CheckFailed, Error, UsageError
from dsv41.rows.abi import Library
from dsv41.rows.build import library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACK_AGAIN = "run `dsv41 pack` for this rank and checkpoint"
# Kind of a RowsError -> the error that a person sees.
_ERRORS: dict[str, tuple[type[Error], str, str]] = {
    "argument": (UsageError, "D020", "correct the value that the message names"),
    "mismatch": (CheckFailed, "D021", f"{PACK_AGAIN}, or point at the right folder"),
    "malformed": (CheckFailed, "D022", "check the path; `dsv41 rows import` reads upstream shards"),
    "truncated": (CheckFailed, "D023", PACK_AGAIN),
    "unfinished": (CheckFailed, "D023", PACK_AGAIN),
    "corrupt": (CheckFailed, "D024", f"check the drive, then {PACK_AGAIN}"),
    "io": (Error, "D025", "check path, permissions and the kernel log"),
    "space": (Error, "D026", "free space or choose another folder, then run `dsv41 pack` again"),
    "busy": (Error, "D027", "wait for the other packer, or end it first"),
    "range": (UsageError, "D020", "correct the row id that the message names"),
    "unsupported": (UsageError, "D031", "use --row-engine auto"),
}


_chosen: list[Any] = []


def extension() -> Any:
    """What does the work: the extension module, or a library with the same calls.

    The library is the one given to `use_library`; without one, and where the extension cannot be
    imported, it is compiled from csrc/ beside this package.

    Raises:
        Error: D030, when there is neither.
    """
    if not _chosen:
        try:
            _chosen.append(importlib.import_module("dsv41_rows"))
        except ImportError:
            _chosen.append(Library(library()))
    return _chosen[0]


def use_library(path: Path | None) -> None:
    """Work through this `libdsv41_rows.so` from now on; None forgets it again."""
    _chosen[:] = [] if path is None else [Library(path)]


def no_table(says: str) -> CheckFailed:
    """Say that a checkpoint does not hold the wanted tensors."""
    return CheckFailed("D028", says, fix="check that the download of the checkpoint is complete")


@contextmanager
def table_errors() -> Iterator[None]:
    """Turn what is wrong with a safetensors file into D028."""
    with row_errors():
        try:
            yield
        except extension().RowsError as error:
            if error.kind in {"malformed", "truncated"}:
                raise no_table(f"{error}.") from error
            raise


@contextmanager
def row_errors() -> Iterator[None]:
    """Turn a RowsError into the error of its kind."""
    try:
        yield
    except extension().RowsError as error:
        kind, code, fix = _ERRORS.get(error.kind, (Error, "D025", "see the message"))
        raise kind(code, f"{error}.", fix=fix) from error
