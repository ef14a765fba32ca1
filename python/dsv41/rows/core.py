"""The extension that does the work, and what its refusals mean to a person."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed, Error, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

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


def extension() -> ModuleType:
    """Import the extension at its first use: the operator's machine need not have it."""
    try:
        import dsv41_rows  # noqa: PLC0415
    except ImportError as error:
        raise Error("D030", f"dsv41_rows cannot be imported: {error}.", fix="make setup") from error
    return dsv41_rows


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
