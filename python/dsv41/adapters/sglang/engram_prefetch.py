"""Engram rows read early, on a side stream, while the layers before them compute.

What: as soon as the hash ids of a batch exist, the lookups of all Engram layers are put on a side
stream, and each layer waits for its own. Inside a captured graph the side stream is forked from
and joined to the captured one by events, so a replay overlaps the same way. Where the prefill runs
in a breakable graph the ids are made between its segments and copied into a buffer of the graph,
whose own lookup then reads: nothing is read early there. Neither with attention data parallelism
or prefill context parallelism, where a rank looks other ids up than it hashed.

Why: layer 1 needs its rows at once, layer 14 has thirteen layers of time; on one stream both stop
the device for as long as the drive takes.

Effect: not measured on a GB10. Answers are the same, bit for bit: a lookup that was made early is
used for exactly the ids it was made for, and any other is made anew.

Off: DSV41_ENGRAM_PREFETCH=0.

Obsolete when: SGLang stages Engram rows early for a table on a disk, in decode graphs too.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv41 import switches
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.adapters.sglang import engram_nvme
from dsv41.adapters.sglang.engram_nvme import ENGRAM, TABLES, TREES, capturing
from dsv41.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch.cuda import Event, Stream

GRAPHS = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.context"
_streams: dict[device, Stream] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ahead:
    """A lookup under way: of which ids, where its rows come, and when they are there.

    `done` is None on a CPU, where they are there already. `captured`: the event is part of a graph.
    """

    ids: Tensor
    rows: Tensor
    done: Event | None
    captured: bool

    def join(self) -> None:
        """Let the current stream wait; an event of a graph means something in that graph only."""
        import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

        if self.done is not None and self.captured == capturing(self.ids.device):
            torch.cuda.current_stream(self.ids.device).wait_event(self.done)

    def answers(self, indices: Tensor) -> bool:
        """Whether these are the ids: the same memory, which is ours as long as `ids` is held."""
        ours = (self.ids.data_ptr(), self.ids.shape, self.ids.stride(), self.ids.dtype)
        return ours == (indices.data_ptr(), indices.shape, indices.stride(), indices.dtype)


def read_ahead(hash_ids: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
    """After `EngramHasher.forward`: begin the lookups of every Engram layer.

    Args:
        hash_ids: int64 [tokens, layers, columns], row ids of each layer's table.

    Returns:
        hash_ids, unchanged.
    """
    tables = [TABLES[layer] for layer in sorted(TABLES)]
    for table in tables:
        if table.ahead is not None:  # a pass that ended before the layer
            table.ahead.join()
            table.ahead = None
    if not len(hash_ids) or not tables or not _reads_what_it_hashed():
        return hash_ids
    if len(tables) != hash_ids.shape[1]:
        says = f"engram_prefetch: expected ids of {len(tables)} layers, found {hash_ids.shape[1]}."
        raise CheckFailed("D146", says, fix="set DSV41_ENGRAM_PREFETCH=0 and report it")
    for place, table in enumerate(tables):
        table.ahead = _begin(table, hash_ids[:, place])
    return hash_ids


def _begin(table: engram_nvme.NvmeRows, ids: Tensor) -> Ahead:
    import torch  # noqa: PLC0415 - as above

    if ids.device.type != "cuda":
        rows = table.read(ids, table.new_rows(ids))
        return Ahead(ids=ids, rows=rows, done=None, captured=False)
    captured = capturing(ids.device)
    main, side = torch.cuda.current_stream(ids.device), _side(ids.device)
    side.wait_event(main.record_event())
    rows = table.new_rows(ids)  # of the stream that will use them
    with torch.cuda.stream(side):
        table.read(ids, rows)
        done = side.record_event()
    if not captured:  # the allocator must know, should nobody ever join
        for tensor in (ids, rows):
            tensor.record_stream(side)
    return Ahead(ids=ids, rows=rows, done=done, captured=captured)


def _side(where: device) -> Stream:
    import torch  # noqa: PLC0415 - as above

    if where not in _streams:
        _streams[where] = torch.cuda.Stream(where)  # type: ignore[no-untyped-call]
    return _streams[where]


def _reads_what_it_hashed() -> bool:
    """Whether the layers will look up, in Python, the very ids that were just hashed."""
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - as above

    parallel = get_parallel()
    in_segments = importlib.import_module(GRAPHS).is_in_breakable_cuda_graph()
    return not in_segments and parallel.attn_dp_size == 1 and parallel.attn_cp_size == 1


def check(environ: Mapping[str, str]) -> None:
    """Refuse to read early what is not read from a disk; UsageError D147."""
    if not switches.read_word(environ, "engram_dir"):
        says = "engram_prefetch: DSV41_PACKED_DIR is not set, so no rows are read from a disk."
        raise UsageError("D147", says, fix="set it, or unset DSV41_ENGRAM_PREFETCH")


ADAPTER = Adapter(
    name="engram_prefetch",
    switch="engram_prefetch",
    engines=("sglang",),
    trees=TREES,
    hooks=(
        Hook(
            target=f"{ENGRAM}.EngramHasher.forward",
            kind="after",
            call=read_ahead,
            takes=("input_ids", "forward_batch"),
        ),
    ),
    needs=(f"{GRAPHS}.is_in_breakable_cuda_graph", "sglang.srt.runtime_context.get_parallel"),
    check=check,
)
