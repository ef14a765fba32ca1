"""Rows from the store into a tensor on an engine's stream, also inside a captured CUDA graph.

One lookup is a chain on the current stream: ids to pinned memory, a host function that reads the
rows (`dsv41_rows_lookup` of csrc/include/dsv41_rows.h, which makes no CUDA call and needs no
Python), rows to the device in one copy, dequantization. A graph replays the chain with whatever ids
its input then holds; so buffers and works keep their addresses as long as the process may replay.

Source of the call: CUDA runtime API, cudaLaunchHostFunc.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41.adapters.works import Works
from dsv41.rows.abi import RowsError
from dsv41.rows.structs import Work

if TYPE_CHECKING:
    from torch import Tensor, device, dtype

    from dsv41.rows.abi import Library, RowStore

WEIGHT_BYTES, SCALE_BYTES, BLOCK = 256, 8, 32
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES
# Lookups that a graph captured: a graph holds addresses of their memory and nothing says when it
# is gone.
_CAPTURED: list[Lookup] = []


class Lookup:
    """Buffers and works of the lookups of one store on one device, one after the other.

    Lookups of one object must be ordered by their streams: they share the buffers. What may run at
    the same time takes an object of its own. Memory: 268 pinned bytes and 264 on the device an id,
    and what `works` says. It refers to nothing that refers back, and who holds it must not drop it
    in a cycle (the adapters' live in some, and as long as the engine's model, which goes with the
    process): the cycle collector comes at any time, and pinned memory that is freed while a stream
    that used it is captured leaves torch's allocator an event of that capture, and a later
    allocation fails with "invalid argument".

    Args:
        library: the loaded C library.
        store: open row file; opened with `production=1` a failed read ends the process.
        ids: most row ids of one call.
        device: where ids come from and rows go to, "cuda..." or "cpu".
        dtype: of the rows; bfloat16 when left out.
    """

    def __init__(
        self,
        *,
        library: Library,
        store: RowStore,
        ids: int,
        device: device | str,
        dtype: dtype | None = None,
    ) -> None:
        import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

        self.library, self.store, self.capacity = library, store, ids
        self.device = torch.device(device)
        self.dtype = torch.bfloat16 if dtype is None else dtype
        self.cuda = self.device.type == "cuda"
        # int32 serves tables of less than 2**31 rows; the released ones have 384,016,682
        self.ids = torch.full((ids,), -1, dtype=torch.int32, device="cpu", pin_memory=self.cuda)
        self.rows = torch.zeros(
            ids * ROW_BYTES, dtype=torch.uint8, device="cpu", pin_memory=self.cuda
        )
        self.arrived = (
            torch.zeros(ids * ROW_BYTES, dtype=torch.uint8, device=self.device)
            if self.cuda
            else self.rows
        )
        self.works = Works()
        self.runtime: Any = runtime() if self.cuda else None

    def enqueue(self, indices: Tensor, out: Tensor) -> None:
        """Put the rows of these ids into `out`.

        CUDA: on the current stream, without waiting, capturable. CPU: at once.

        Args:
            indices: int32 or int64, any shape; ids of other ranks, negative ones and ones beyond
                the table (warm-up and capture runs of engines pass anything) give zero rows.
            out: [*indices.shape, 256], contiguous, of the object's dtype.

        Raises:
            ValueError: shapes that do not fit, or more ids than there is room for.
            RowsError: an earlier lookup failed and the store was not opened for production.
        """
        self._expect(indices, out)
        count = self._begin(indices, "lookup")
        self._finish(count, out)

    def submit(self, indices: Tensor) -> int:
        """Begin to read the rows of these ids: the first half of `enqueue`.

        Returns:
            How many ids; `collect` or `drop` must follow on the same stream, before any other call.
        """
        self._expect_room(indices)
        return self._begin(indices, "submit")

    def collect(self, count: int, out: Tensor) -> None:
        """Wait for the rows that `submit` began, and put them into `out`: the second half."""
        self.drop(count)
        self._finish(count, out)

    def drop(self, count: int) -> None:
        """Wait for the rows that `submit` began and leave them."""
        if count:
            self.call("wait", self.works[count])

    def call(self, name: str, work: Work) -> None:
        """Let the current stream call a function of the library on a work; at once on a CPU."""
        if self.cuda:
            self._launch(name, work)
            return
        self.library.function(name)(ctypes.byref(work))
        self.check()

    def _begin(self, indices: Tensor, name: str) -> int:
        self.check()
        if count := indices.numel():
            work = self.works.begin(count, make=self._work, captured=self._captured())
            self._send_ids(indices, count)
            self.call(name, work)
        return count

    def _finish(self, count: int, out: Tensor) -> None:
        if not count:
            return
        if self.cuda:
            size = count * ROW_BYTES
            self.arrived[:size].copy_(self.rows[:size], non_blocking=True)
        self._dequantize(count, out)

    def check(self) -> None:
        """Raise what went wrong in lookups that are done; each failure once."""
        for status in self.works.failures():
            kind = self.library.function("kind")(ctypes.c_int(status)).decode()
            raise RowsError(f"a lookup of layer {self.store.layer} failed: {kind}", kind)

    def _expect(self, indices: Tensor, out: Tensor) -> None:
        if out.shape != (*indices.shape, WEIGHT_BYTES) or not out.is_contiguous():
            wanted = [*indices.shape, WEIGHT_BYTES]
            raise ValueError(f"rows: expected {wanted}, contiguous, found {list(out.shape)}")
        self._expect_room(indices, out.dtype)

    def _expect_room(self, indices: Tensor, found: dtype | None = None) -> None:
        if indices.numel() > self.capacity or found not in (None, self.dtype):
            says = f"expected <= {self.capacity} ids, rows of {self.dtype}"
            raise ValueError(f"{says}; {indices.numel()} ids, rows of {found or self.dtype}")

    def _work(self, count: int) -> Work:
        """A work of this number of ids, on the buffers."""
        rows = self.rows.data_ptr()
        return Work(
            size=ctypes.sizeof(Work),
            id_bytes=self.ids.element_size(),
            store=self.store.open_handle(),
            ids=self.ids.data_ptr(),
            count=count,
            weights=_bytes_at(rows),
            scales=_bytes_at(rows + count * WEIGHT_BYTES),
        )

    def _captured(self) -> bool:
        """Whether what is enqueued now goes into a graph, which then keeps this object."""
        import torch  # noqa: PLC0415 - as above

        if not self.cuda or not torch.cuda.is_current_stream_capturing():
            return False
        if self not in _CAPTURED:
            _CAPTURED.append(self)
        return True

    def _send_ids(self, indices: Tensor, count: int) -> None:
        flat = indices.reshape(-1)
        unknown = (flat < 0) | (flat >= self.store.total_rows)
        known = flat.masked_fill(unknown, -1).to(self.ids.dtype)
        self.ids[:count].copy_(known, non_blocking=self.cuda)

    def _launch(self, name: str, work: Work) -> None:
        import torch  # noqa: PLC0415 - as above

        stream = torch.cuda.current_stream(self.device).cuda_stream
        error = self.runtime.cudaLaunchHostFunc(
            ctypes.c_void_p(stream),
            ctypes.c_void_p(self.library.address(name)),
            ctypes.byref(work),
        )
        if error:
            raise RuntimeError(f"cudaLaunchHostFunc failed with error {error}")

    def _dequantize(self, count: int, out: Tensor) -> None:
        import torch  # noqa: PLC0415 - as above

        weights = self.arrived[: count * WEIGHT_BYTES].view(torch.float8_e4m3fn)
        scales = self.arrived[count * WEIGHT_BYTES : count * ROW_BYTES]
        weights, scales = weights.view(count, WEIGHT_BYTES), scales.view(count, SCALE_BYTES)
        dequantize(weights, scales, out=out.view(count, WEIGHT_BYTES))


def dequantize(weights: Tensor, scales: Tensor, *, out: Tensor) -> None:
    """Rows from their codes, bit for bit as engines do it: E4M3 value x 2**(scale - 127).

    In bfloat16, which holds every E4M3 value; a product is formed in float32 and rounded once, as
    when all of it is done in float32. Scale code 0 counts as zero, 255 as infinity: the code is put
    where the exponent is (0 there is zero, not 2**-127), as in the publisher's code.

    Args:
        weights: float8_e4m3fn [n, 256].
        scales: uint8 [n, 8].
        out: bfloat16 [n, 256], contiguous.
    """
    import torch  # noqa: PLC0415 - as above

    shape = (*scales.shape, BLOCK)
    factors = (scales.to(torch.int16) << 7).view(torch.bfloat16).unsqueeze(-1)
    torch.mul(weights.to(torch.bfloat16).view(shape), factors, out=out.view(shape))


def runtime() -> Any:
    """The CUDA runtime that this process has loaded, by ctypes: never a second one.

    Raises:
        RuntimeError: none is loaded.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    loaded = re.search(r"(/\S*libcudart\S*\.so\S*)", maps)
    if loaded is None:
        raise RuntimeError("no libcudart is loaded in this process")
    return ctypes.CDLL(loaded[1])


def _bytes_at(address: int) -> Any:
    return ctypes.cast(ctypes.c_void_p(address), ctypes.POINTER(ctypes.c_uint8))
