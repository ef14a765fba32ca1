from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

# Any C-contiguous memory of exactly this type; nothing is ever converted.
_Ids: TypeAlias = NDArray[np.int64] | Buffer
_Bytes: TypeAlias = NDArray[np.uint8] | Buffer

class RowsError(RuntimeError):
    """What the store or the packer refused.

    `kind` is one of argument, mismatch, malformed, truncated, unfinished, corrupt, io, range,
    unsupported, space, busy, closed and forked.
    """

    kind: str

class Ticket:
    def wait(self, timeout: float | None = None) -> None: ...
    @property
    def done(self) -> bool: ...

class RowStore:
    @staticmethod
    def open(
        path: str,
        *,
        engine: str = "auto",
        threads: int = 0,
        depth: int = 0,
        cache_bytes: int = 0,
        order_bounds: Sequence[int] = (),
        layer: int,
        rank: int,
        tp: int,
        partition: str,
        source_digest: str | None = None,
        revision: str | None = None,
    ) -> RowStore: ...
    def lookup(self, ids: _Ids, weights: _Bytes, scales: _Bytes) -> None: ...
    def submit(self, ids: _Ids, weights: _Bytes, scales: _Bytes) -> Ticket: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
    @property
    def layer(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def tp(self) -> int: ...
    @property
    def partition(self) -> str: ...
    @property
    def local_rows(self) -> int: ...
    @property
    def total_rows(self) -> int: ...

def engines() -> list[str]: ...
def pack(
    *,
    source: str,
    target: str,
    layer: int,
    rank: int,
    tp: int,
    partition: str,
    total_rows: int,
    ranges: Sequence[tuple[int, int, int]],
    revision: str = "",
    progress: Callable[[int, int], object] | None = None,
    records: tuple[str, int, int, int] | None = None,
    chunk_pages: int = 2048,
    journal_chunks: int = 128,
    made: bool = False,
) -> bool: ...
def verify(
    path: str, *, progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]: ...
def inspect(path: str) -> dict[str, Any]: ...
def source(path: str, layer: int) -> dict[str, Any]: ...
