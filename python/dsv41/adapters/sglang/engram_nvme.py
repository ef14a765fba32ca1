"""Engram tables on the node's NVMe instead of in memory.

What: takes the place of `EngramEmbedding`. A rank reads the rows it owns from its row file through
the C library, and the engine's own all-reduce adds the ranks' answers up, as it does for its own
shards; so any partition is right as long as one rank owns each row, and every rank joins the reduce
of every batch. Kept, because the engine reads them: the parameters `weight` and `scale` (zero
rows; the loader wants the names and the dtypes), `dim`, `rows`, `row_start`, `tp_size`,
`host_table` and `peer` (None), `staged_by_scheduler` and `shared_host_table_without_ats` (False: no
row is staged by the scheduler), `finish_load`, `new_rows`, `forward` with all its collectives. The
loader never touches a table's bytes: a mapped table is dropped unread, and where mapping is
off (--weight-loader-disable-mmap) or files are read ahead, the files that hold tables are excepted.

Why: the tables are 189 GiB; a node has 121.7. The engine keeps them in device memory, in pinned
host memory or in peers' memory, and has no mode for a disk (read in 0.5.21 and 0.5.23).

Effect: the model fits. Bits are those of the engine's CPU lookup (tests/engines). Time on a
GB10: not measured.

Off: unset DSV41_PACKED_DIR. DSV41_ENGRAM_CHECK=1 (eager only: --disable-cuda-graph) reads every row
a second time, without the library, and ends the engine at the first difference.

Obsolete when: SGLang reads Engram rows from a disk itself.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dsv41 import switches
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.adapters.row_files import SecondReader, checkpoint_at, open_rows
from dsv41.adapters.row_stats import watch
from dsv41.adapters.sglang import engram_loader
from dsv41.adapters.sglang.engram_loader import most_tokens, published
from dsv41.adapters.staging import WEIGHT_BYTES, Lookup
from dsv41.errors import CheckFailed, EngineFailed, UsageError
from dsv41.geometry import PARTITIONS

if TYPE_CHECKING:
    from torch import Tensor, device

    from dsv41.adapters.sglang.engram_prefetch import Ahead

log = logging.getLogger(__name__)
ENGRAM = "sglang.srt.layers.engram"
TREES = ("sglang-0.5.23", "sglang-branch", "sglang-base")
COLUMNS = 24  # hash columns of the released model, for a tree that does not tell
# Most ids of one read; longer batches go in pieces. Larger reads are no faster: a drive is busy at
# 128 reads under way, and each id costs 532 bytes of staging, twice.
PIECE = 32_768
# What would keep the tables in memory after all.
MEMORY_MODES = ("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE", "SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS")
OFF = ("", "0", "false", "no", "n", "off")

TABLES: weakref.WeakValueDictionary[int, NvmeRows] = weakref.WeakValueDictionary()  # by layer


class NvmeRows:
    """What stands before the engine's class: the same answers, from this rank's row file."""

    def __init__(
        self,
        num_embeddings: int,
        dim: int,
        layer_id: int,
        column_bounds: tuple[int, ...] | None = None,  # 0.5.21 gives none
    ) -> None:
        import torch  # noqa: PLC0415 - the plugin must not import torch where it is off
        from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - as above

        module: Any = torch.nn.Module
        module.__init__(self)  # and not the engine's, which would allocate
        self.layer_id, self.table_rows, self.dim = layer_id, num_embeddings, dim
        self.columns = len(column_bounds) - 1 if column_bounds else COLUMNS
        self.tp_size, self.row_start = get_parallel().tp_size, 0
        self.host_table = self.peer = None
        self.staged_by_scheduler = self._sort_host_reads = False
        kinds = {"weight": (dim, torch.float8_e4m3fn), "scale": (dim // 32, torch.float8_e8m0fnu)}
        for name, (width, dtype) in kinds.items():
            values = torch.empty(0, width, dtype=dtype)
            parameter = torch.nn.Parameter(values, requires_grad=False)
            parameter.weight_loader = self._load_rows  # type: ignore[attr-defined]
            setattr(self, name, parameter)
        self.loaded = False
        self.staging: Lookup | None = None
        self.of_graphs: Lookup | None = None
        self.ahead: Ahead | None = None
        self._open(get_parallel().tp_rank, os.environ)
        TABLES[layer_id] = self

    def _open(self, rank: int, environ: Mapping[str, str]) -> None:
        import torch  # noqa: PLC0415 - as above

        if self.dim != WEIGHT_BYTES:
            says = f"engram_nvme: expected rows of {WEIGHT_BYTES} values, found {self.dim}."
            raise CheckFailed("D146", says, fix="serve a checkpoint with the released row size")
        engram_loader.check_format(published("model", "load_format"))
        path = published("model", "model_path")
        check = switches.read(environ, "engram_check") != 0
        self.file = open_rows(
            layer=self.layer_id,
            rank=rank,
            tp=self.tp_size,
            total_rows=self.table_rows,
            checkpoint=checkpoint_at(path) if path else None,
            # Only a host function cannot raise: without one, and where every row is checked, errors
            # go up through the engine, which ends as well.
            production=torch.cuda.is_available() and not check,
            environ=environ,
        )
        self.rows = self.file.store.local_rows
        self.second = SecondReader(self.file) if check else None
        watch(self.file.store, seconds=switches.read(environ, "row_stats_seconds"))

    def _load_rows(self, param: Any, loaded_weight: Tensor) -> None:
        """Drop a table of the checkpoint unread: only its shape and dtype are looked at."""
        if self.loaded:
            raise engram_loader.replaced()
        expected = ((self.table_rows, param.shape[1]), param.dtype)
        if (tuple(loaded_weight.shape), loaded_weight.dtype) != expected:
            found = f"{list(loaded_weight.shape)} {loaded_weight.dtype}"
            wanted = f"{list(expected[0])} {expected[1]}"
            says = f"engram_nvme: layer {self.layer_id}: expected a table {wanted}, found {found}."
            raise CheckFailed("D149", says, fix="compare the checkpoint with its published hashes")

    def finish_load(self, label: str) -> None:
        """Make the staging buffers, before any graph is captured; the engine calls it once."""
        staging = self._staging(self.weight.device)  # type: ignore[attr-defined]
        self.loaded = True
        log.info(
            "engram_nvme %s: %s: %d of %d rows, engine %s, staging of %d ids",
            label,
            self.file.path,
            self.rows,
            self.table_rows,
            self.file.store.stats()["engine"],
            staging.capacity,
        )

    def _owned_rows(self, indices: Tensor) -> Tensor:
        """Rows of this rank, zero for all others: bfloat16 [*indices.shape, 256]."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.join()  # before anything else may use the same buffers
            if ahead.answers(indices):
                return ahead.rows
        return self.read(indices, self.new_rows(indices))

    def new_rows(self, indices: Tensor) -> Tensor:
        """Room for the rows of these ids; 0.5.21 has it under another name."""
        import torch  # noqa: PLC0415 - as above

        shape = (*indices.shape, self.dim)
        return torch.empty(shape, dtype=torch.bfloat16, device=indices.device)

    def read(self, indices: Tensor, found: Tensor) -> Tensor:
        """Look rows up on the current stream, in pieces of at most PIECE ids; gives `found`."""
        ids, rows = indices.reshape(-1), found.view(-1, self.dim)
        staging = self._staging(indices.device)
        with self.file.errors():
            for start in range(0, len(ids), staging.capacity):
                piece = slice(start, start + staging.capacity)
                staging.enqueue(ids[piece], rows[piece])
        if self.second is not None:
            self._check(ids, rows, self.second)
        return found

    def _staging(self, where: device) -> Lookup:
        """The buffers of this pass; a graph has its own."""
        # a replay waits for no pass before it, which may have left a lookup on the side stream
        if self.staging is None or self.of_graphs is None:
            if capturing(where):
                says = f"engram_nvme: layer {self.layer_id} was first looked up inside a graph."
                raise EngineFailed("D148", says, fix="report it; --disable-cuda-graph avoids it")
            ids = min(most_tokens(PIECE) * self.columns, PIECE // self.columns * self.columns)
            make = partial(Lookup, library=self.file.library, store=self.file.store)
            self.staging, self.of_graphs = (make(ids=ids, device=where) for _ in range(2))
        return self.of_graphs if capturing(where) else self.staging

    def _check(self, ids: Tensor, rows: Tensor, second: SecondReader) -> None:
        if capturing(ids.device):
            says = "engram_nvme: DSV41_ENGRAM_CHECK reads rows in Python, which a graph cannot."
            raise UsageError("D147", says, fix="add --disable-cuda-graph, or unset the variable")
        found = rows.cpu()  # waits for the lookup
        with self.file.errors():
            self._staging(ids.device).check()
        second.compare(ids.cpu(), found)


def replacement(original: type) -> type:
    """The engine's class with our lookup before it; still an instance of the engine's own."""
    return type("NvmeEngramEmbedding", (NvmeRows, original), {"__module__": __name__})


def capturing(where: device) -> bool:
    """Whether the current stream of a device is being captured into a graph."""
    import torch  # noqa: PLC0415 - as above

    return where.type == "cuda" and torch.cuda.is_current_stream_capturing()


def check(environ: Mapping[str, str]) -> None:
    """Refuse settings that contradict rows on a disk.

    Raises:
        UsageError: D147.
    """
    name = switches.read_word(environ, "engram_partition")
    wrong = [mode for mode in MEMORY_MODES if environ.get(mode, "").lower() not in OFF]
    if wrong:
        says, fix = f"{wrong[0]} asks for tables in memory", f"unset {wrong[0]}"
    elif switches.read(environ, "resident_scales"):
        says, fix = "a row file holds scales beside weights", "unset DSV41_RESIDENT_SCALES"
    elif name not in PARTITIONS:
        says, fix = f"there is no partition {name!r}", f"use one of {', '.join(PARTITIONS)}"
    else:
        return
    raise UsageError("D147", f"engram_nvme: {says}.", fix=fix)


ADAPTER = Adapter(
    name="engram_nvme",
    switch="engram_dir",
    engines=("sglang",),
    trees=TREES,
    hooks=(
        Hook(
            target=f"{ENGRAM}.EngramEmbedding",
            kind="replace",
            call=replacement,
            takes=("num_embeddings", "dim", "layer_id"),
        ),
        *engram_loader.HOOKS,
    ),
    # what the class takes over from the engine's: gone or renamed is drift
    needs=(
        f"{ENGRAM}.EngramEmbedding._owned_rows",
        f"{ENGRAM}.EngramEmbedding._lookup",
        f"{ENGRAM}.EngramEmbedding._load_rows",
        f"{ENGRAM}.EngramEmbedding.finish_load",
        f"{ENGRAM}.tensor_model_parallel_all_reduce",
    ),
    check=check,
)
