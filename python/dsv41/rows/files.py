"""Names and contents of row files, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The table that a row file was packed from.

    `digest` is the SHA-256 over header hash, sample hash, sizes and offsets; `revision` may be
    empty.
    """

    file: str
    revision: str
    rows: int
    file_bytes: int
    weight_offset: int
    scale_offset: int
    header_sha256: str
    sample_sha256: str
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Header page of a row file; `ranges` holds (lo, hi, base) triples of rows."""

    version: int
    layer: int
    rank: int
    tp: int
    partition: str
    total_rows: int
    local_rows: int
    page_count: int
    file_bytes: int
    complete: bool
    packer: str
    ranges: tuple[tuple[int, int, int], ...]
    source: Source
    data_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One finding of `verify`; page and row are -1 where they do not apply, row is a global id."""

    page: int
    row: int
    says: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What `verify` found in one file; `problems` are the first 20 of `problem_count`."""

    path: str
    ok: bool
    pages: int
    rows: int
    problem_count: int
    problems: tuple[Problem, ...]


def file_name(*, layer: int, rank: int, tp: int, partition: str) -> str:
    """Make the name of the row file of one layer and rank."""
    return f"engram-l{layer}-r{rank}of{tp}-{partition}.rows"


def for_path(
    progress: Callable[[Path, int, int], object] | None, path: Path
) -> Callable[[int, int], object] | None:
    """Report progress together with the file it is about."""
    return None if progress is None else lambda done, total: progress(path, done, total)
