"""The row store through its C interface, with the calls of the `dsv41_rows` extension.

For a process that has no extension built for its Python: an engine container compiles csrc/ once
with its own g++ and loads the library here. `csrc/include/dsv41_rows.h` describes the functions.
"""

from __future__ import annotations

import ctypes
import json
from ctypes import byref, c_char_p, c_double, c_int, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from dsv41.rows.arrays import lookup_memory
from dsv41.rows.structs import ABI, INTERRUPTED, OK, TIMEOUT, Options, PackOptions, Progress, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Report = Callable[[int, int], object]


class RowsError(RuntimeError):
    """What the library refused; `kind` is the name of its status."""

    def __init__(self, says: str, kind: str) -> None:
        super().__init__(says)
        self.kind = kind


class Library:
    """A loaded `libdsv41_rows.so`; it stands in for the extension module.

    Raises:
        OSError: the file cannot be loaded.
        RowsError: it has another version of the interface.
    """

    RowsError = RowsError

    def __init__(self, path: Path) -> None:
        self.path = path
        self._c = ctypes.CDLL(str(path))
        self._c.dsv41_rows_error.restype = c_char_p
        self._c.dsv41_rows_kind.restype = c_char_p
        self._c.dsv41_rows_free.argtypes = [c_void_p]
        self._c.dsv41_rows_free.restype = None
        self._c.dsv41_rows_close.argtypes = [c_void_p]
        self._c.dsv41_rows_close.restype = None
        self._c.dsv41_rows_wait_for.argtypes = [c_void_p, c_double]
        for name in ("submit", "wait", "lookup"):
            call = self.function(name)
            call.argtypes, call.restype = [c_void_p], None
        if (found := self._c.dsv41_rows_abi()) != ABI:
            raise RowsError(f"{path}: expected interface {ABI}, found {found}", "unsupported")

    def function(self, name: str) -> Any:
        """A C function by its name without the prefix; submit, wait and lookup take a `Work`."""
        return getattr(self._c, f"dsv41_rows_{name}")

    def address(self, name: str) -> int:
        """Address of a function, for a CUDA host node."""
        return ctypes.cast(self.function(name), c_void_p).value or 0

    def check(self, status: int) -> None:
        """Raise what a status other than OK means."""
        if status == OK:
            return
        says = self._c.dsv41_rows_error().decode(errors="replace")
        if status == TIMEOUT:
            raise TimeoutError(says)
        raise RowsError(says, self._c.dsv41_rows_kind(c_int(status)).decode())

    def text(self, name: str, *arguments: Any) -> Any:
        """Call a function that gives a JSON text."""
        out = c_void_p()
        self.check(self.function(name)(*arguments, byref(out)))
        try:
            return json.loads(ctypes.string_at(out.value or 0))
        finally:
            self._c.dsv41_rows_free(out)

    def engines(self) -> list[str]:
        """As `dsv41_rows.engines`."""
        return list(self.text("engines"))

    def inspect(self, path: str) -> dict[str, Any]:
        """As `dsv41_rows.inspect`."""
        return dict(self.text("inspect", path.encode()))

    def source(self, path: str, layer: int) -> dict[str, Any]:
        """As `dsv41_rows.source`."""
        return dict(self.text("source", path.encode(), c_uint32(layer)))

    def verify(self, path: str, *, progress: Report | None = None) -> dict[str, Any]:
        """As `dsv41_rows.verify`."""
        report = _Report(progress)
        try:
            return dict(self.text("verify", path.encode(), report.function, None))
        except RowsError as error:
            raise report.raised or error from None

    def pack(
        self,
        *,
        source: str,
        target: str,
        partition: str,
        ranges: Sequence[tuple[int, int, int]],
        revision: str = "",
        progress: Report | None = None,
        records: tuple[str, int, int, int] | None = None,
        **numbers: int,
    ) -> bool:
        """As `dsv41_rows.pack`."""
        report = _Report(progress)
        flat = [value for triple in ranges for value in triple]
        path, begin, first, end = records or ("", 0, 0, 0)
        options = PackOptions(
            size=ctypes.sizeof(PackOptions),
            source=source.encode(),
            target=target.encode(),
            partition=partition.encode(),
            revision=revision.encode(),
            records_path=path.encode(),
            records_data_begin=begin,
            records_first_row=first,
            records_end_row=end,
            ranges=(c_uint64 * len(flat))(*flat),
            range_count=len(ranges),
            progress=report.function,
            **numbers,
        )
        packed = c_int()
        status = self._c.dsv41_rows_pack(byref(options), byref(packed))
        if status == INTERRUPTED and report.raised:
            raise report.raised
        self.check(status)
        return bool(packed.value)

    @property
    def RowStore(self) -> _Opener:  # noqa: N802  the name of the extension's class
        """`RowStore.open(...)` as in the extension."""
        return _Opener(self)


class _Report:
    """A progress function for C; what the Python one raises ends the work and is kept."""

    def __init__(self, progress: Report | None) -> None:
        self.raised: BaseException | None = None
        self.progress = progress
        self.function = Progress(self.report)

    def report(self, _user: int | None, done: int, total: int) -> int:
        try:
            if self.progress is not None:
                self.progress(done, total)
        except BaseException as error:  # noqa: BLE001  it must not cross the C frames
            self.raised = error
            return 1
        return 0


class _Opener:
    def __init__(self, library: Library) -> None:
        self._library = library

    def open(
        self,
        path: str,
        *,
        engine: str = "auto",
        partition: str,
        source_digest: str | None = None,
        revision: str | None = None,
        order_bounds: Sequence[int] = (),
        **numbers: int,
    ) -> RowStore:
        """As `dsv41_rows.RowStore.open`; `production=1` is the C interface's own."""
        options = Options(
            size=ctypes.sizeof(Options),
            engine=engine.encode(),
            partition=partition.encode(),
            source_digest=source_digest.encode() if source_digest else None,
            revision=revision.encode() if revision else None,
            order_bounds=(c_uint64 * len(order_bounds))(*order_bounds),
            order_bound_count=len(order_bounds),
            **numbers,
        )
        handle = c_void_p()
        call = self._library.function("open")
        self._library.check(call(path.encode(), byref(options), byref(handle)))
        return RowStore(self._library, handle.value or 0)


class RowStore:
    """An open row file; calls as in `dsv41_rows.RowStore`."""

    def __init__(self, library: Library, handle: int) -> None:
        self._library, self.handle = library, handle
        header = library.text("header", c_void_p(handle))
        self.layer: int = header["layer"]
        self.rank: int = header["rank"]
        self.tp: int = header["tp"]
        self.partition: str = header["partition"]
        self.local_rows: int = header["local_rows"]
        self.total_rows: int = header["total_rows"]

    def submit(self, ids: Any, weights: Any, scales: Any) -> Ticket:
        """Begin a lookup."""
        return Ticket(self._library, self, (ids, weights, scales))

    def lookup(self, ids: Any, weights: Any, scales: Any) -> None:
        """Look rows up and wait for them."""
        self.submit(ids, weights, scales).wait()

    def stats(self) -> dict[str, Any]:
        """Counters and histograms."""
        return dict(self._library.text("stats", c_void_p(self.open_handle())))

    def close(self) -> None:
        """Close the file; tickets must have been waited for."""
        handle, self.handle = self.handle, 0
        self._library.function("close")(handle)

    def open_handle(self) -> int:
        """The C handle, while the store is open."""
        if not self.handle:
            raise RowsError("the store was closed", "closed")
        return self.handle

    def __del__(self) -> None:
        if self.handle:
            self.close()


class Ticket:
    """A lookup under way; keeps its arrays until it is done."""

    def __init__(self, library: Library, store: RowStore, arrays: tuple[Any, Any, Any]) -> None:
        self._library = library
        self._error: Exception | None = None
        count, self._held = lookup_memory(*arrays)
        ids, weights, scales = self._held
        self._work = Work(
            size=ctypes.sizeof(Work),
            id_bytes=8,
            store=store.open_handle(),
            ids=ctypes.cast(ids, c_void_p) if ids else None,
            count=count,
            weights=weights,
            scales=scales,
        )
        self._call("submit")

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once."""
        if self._work.ticket:
            self._library.function("wait_for")(byref(self._work), c_double(0))
        return not self._work.ticket

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the rows; TimeoutError after `timeout` seconds, RowsError when it failed."""
        if self._work.ticket and timeout is None:
            self._call("wait")
        elif self._work.ticket:
            seconds = c_double(max(timeout or 0.0, 0.0))
            self._check(self._library.function("wait_for")(byref(self._work), seconds))
        if self._error is not None:
            raise self._error

    def _call(self, name: str) -> None:
        self._library.function(name)(byref(self._work))
        self._check(max(self._work.status, OK))

    def _check(self, status: int) -> None:
        try:
            self._library.check(status)
        except RowsError as error:
            self._error = error
            raise

    def __del__(self) -> None:
        if getattr(self, "_work", None) and self._work.ticket:
            self._library.function("wait")(byref(self._work))
