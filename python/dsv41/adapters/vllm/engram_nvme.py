"""Engram tables on the node's NVMe instead of in memory.

What: takes the place of the table that `Engram._create_embedding` makes. It is a subclass of the
engine's own class whose two parameters have no rows; `lookup` reads this rank's rows from its row
file, on the stream that the engine chose, also inside captured graphs (dsv41.adapters.staging).
Columns are owned as the row files say; where that is not the engine's own contiguous rule, the
gathered columns are put back in order behind `Engram.embed`. The loader never reads a table.

Why: the tables are 189 GiB and vLLM 0.33.0 keeps them in device or pinned host memory; a node has
121.7 GiB. There is no mode for a disk (read in the released package).

Effect: answers are bit for bit those of the engine's own table, in every graph mode, with DSpark,
at one and two ranks (docs/evidence/gpu.md, two H200). Time on a GB10: not measured.

Off: unset DSV41_PACKED_DIR.

Obsolete when: vLLM reads Engram rows from a disk itself.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

from dsv41 import switches
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.adapters.chunks import cache_bytes
from dsv41.adapters.row_files import checkpoint_at, open_rows
from dsv41.adapters.row_stats import watch
from dsv41.adapters.staging import WEIGHT_BYTES, Lookup
from dsv41.adapters.vllm.columns import gathered_order, own_columns
from dsv41.adapters.vllm.refused import check_config, check_switches
from dsv41.errors import CheckFailed
from dsv41.geometry import Engram, column_owners

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.adapters.together import Together

log = logging.getLogger(__name__)
ENGRAM = "vllm.models.deepseek_v41.common.engram"
LOADER = "vllm.model_executor.model_loader.weight_utils"
TABLE_NAMES = ("engram.embed.weight", "engram.embed.scale")


def create_embedding(_original: Any, _layer: Any, layout: Any, layer_hash_index: int) -> Any:
    """Hook around `Engram._create_embedding`."""
    return embedding_class()(layout, layer_hash_index)


def restore_columns(rows: Tensor, module: Any, *_: Any, **__: Any) -> Tensor:
    """Hook after `Engram.embed`: [tokens, 24, 256] in the order of the hash columns."""
    order = getattr(module.embed_tokens, "order", None)
    return rows if order is None else rows.index_select(1, order)


def skip_tables(original: Any, weight_name: str, *args: Any, **kwargs: Any) -> bool:
    """Hook around the loader's question whether a tensor is left unread."""
    return weight_name.endswith(TABLE_NAMES) or original(weight_name, *args, **kwargs)


def check_ready(worker: Any, *_: Any) -> None:
    """Hook before `Worker.compile_or_warm_up_model`: rows are ready before any graph is made.

    Raises:
        CheckFailed: D160, when an Engram layer has another table, or one with rows in memory.
        RowsError: when rows cannot be read.
    """
    layer_class = importlib.import_module(ENGRAM).Engram
    model = worker.model_runner.get_model()
    tables = [part.embed_tokens for part in model.modules() if isinstance(part, layer_class)]
    for table in tables:
        resident = len(table.weight)
        if not isinstance(table, embedding_class()) or resident:
            says = f"engram_nvme: {type(table).__name__} holds {resident} rows in memory."
            raise CheckFailed("D160", says, fix="serve with the engine that the profile names")
        table.read_ends()
    if not tables:
        says = "engram_nvme: rows are asked for, and the model has no Engram layer."
        raise CheckFailed("D160", says, fix="unset DSV41_PACKED_DIR for this model")
    log.info("engram_nvme: %d tables lie on the disk, none in memory", len(tables))


def show_log() -> None:
    """Let vLLM's handlers write what this package logs: they serve only names below `vllm`."""
    logging.getLogger("dsv41").setLevel(logging.INFO)
    for handler in logging.getLogger("vllm").handlers:
        logging.getLogger("dsv41").addHandler(handler)  # none twice


@functools.cache
def embedding_class() -> Any:
    """The table's class; made when the engine is there to derive from."""
    import torch  # noqa: PLC0415 - the plugin must not import torch where it is off
    from vllm.config import get_current_vllm_config  # noqa: PLC0415 - as above

    class NvmeEmbedding(importlib.import_module(ENGRAM).ParallelEngramEmbedding):  # type: ignore[misc]
        """Rows of one layer from this rank's file; `order` as `gathered_order`, on the device."""

        def __init__(self, layout: Any, layer_hash_index: int) -> None:
            config: Any = get_current_vllm_config()
            check_config(config)
            show_log()
            sizes = tuple(size for order in layout.primes[layer_hash_index] for size in order)
            # with cpu_offload the engine's own would report a table in pinned memory; afterwards
            # the engine asks for it to choose the stream
            super().__init__(layout.num_embeddings[layer_hash_index], layout.head_dim, sizes)
            self.cpu_offload = config.engram_config.cpu_offload
            rank = self._get_shard_info()[1]
            engram = Engram.from_config(vars(config.model_config.hf_text_config))
            name = switches.read_word(os.environ, "engram_partition")
            owners = column_owners(name, engram=engram, tp=self.tp_size)
            self.columns, self.layer_id = (
                own_columns(owners, rank=rank),
                layout.layer_ids[layer_hash_index],
            )
            self._hold("picked", self.columns)
            self._hold("order", gathered_order(owners, tp=self.tp_size))
            self.together: Together | None = None  # with it, `place` among the layers
            self.place = 0
            self._open(config, rank=rank, rows=sum(sizes))

        def _hold(self, name: str, values: list[int] | None) -> None:
            held = None if values is None else torch.tensor(values)
            self.register_buffer(name, held, persistent=False)

        def _open(self, config: Any, *, rank: int, rows: int) -> None:
            device = torch.get_default_device()
            ids = config.scheduler_config.max_num_batched_tokens * self.part_n_hash_cols
            chunks = switches.read(os.environ, "engram_ahead") > 1
            self.file = open_rows(
                layer=self.layer_id,
                rank=rank,
                tp=self.tp_size,
                total_rows=rows,
                checkpoint=checkpoint_at(config.model_config.model),
                production=device.type == "cuda",  # a host function cannot raise
                environ=os.environ,
                least_cache=cache_bytes(ids) if chunks else 0,
            )
            self.reader = Lookup(
                library=self.file.library,
                store=self.file.store,
                ids=ids,
                device=device if device.type == "cuda" else "cpu",
            )
            watch(self.file.store, seconds=switches.read(os.environ, "row_stats_seconds"))

        def _allocate_weights(self) -> tuple[Tensor, Tensor]:
            self._weight_loader = _refuse_table
            weight = torch.empty(0, self.dim, dtype=torch.float8_e4m3fn)
            return weight, torch.empty(0, self.dim // self.block_size, dtype=torch.uint8)

        def lookup(self, indices: Tensor, out: Tensor, background: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - the engine's signature
            """Rows of this rank's columns: ids [tokens, 24] -> out [tokens, own columns, 256].

            Columns that pad the last ranks to equal width become zero rows.
            """
            if self.together is None:
                self.reader.enqueue(self.own(indices), out)
            else:
                self.together.lookup(self.place, indices, out)

        def own(self, indices: Tensor) -> Tensor:
            """Ids [tokens, 24] -> [tokens, own columns], -1 for columns that only pad."""
            own = indices.index_select(1, self.picked)
            short = self.part_n_hash_cols - own.shape[1]
            return torch.nn.functional.pad(own, (0, short), value=-1) if short else own

        def read_ends(self) -> None:
            """Read the first and last own row of each range, and wait for them."""
            ids = [row for lo, hi, _ in self.file.ranges for row in (lo, hi - 1)]
            device = self.reader.device
            out = torch.empty(len(ids), WEIGHT_BYTES, dtype=self.reader.dtype, device=device)
            self.reader.enqueue(torch.tensor(ids, device=device), out)
            if self.reader.cuda:
                torch.cuda.synchronize(device)
            self.reader.check()

    return NvmeEmbedding


def _refuse_table(param: Any, loaded: Tensor) -> None:
    """A table that the loader read all the same: 94 GiB each, twice what a node has left."""
    del param
    says = f"engram_nvme: the loader read a table of {len(loaded)} rows into memory."
    raise CheckFailed("D160", says, fix="serve with --load-format safetensors")


ADAPTER = Adapter(
    name="engram_nvme",
    switch="engram_dir",
    engines=("vllm",),
    trees=("vllm-0.33.0",),
    hooks=(
        Hook(
            target=f"{ENGRAM}.Engram._create_embedding",
            kind="around",
            call=create_embedding,
            takes=("layout", "layer_hash_index"),
        ),
        Hook(target=f"{ENGRAM}.Engram.embed", kind="after", call=restore_columns),
        Hook(
            target=f"{LOADER}.should_skip_weight",
            kind="around",
            call=skip_tables,
            takes=("weight_name",),
        ),
        Hook(
            target="vllm.v1.worker.gpu_worker.Worker.compile_or_warm_up_model",
            kind="before",
            call=check_ready,
        ),
    ),
    check=check_switches,
    needs=(
        f"{ENGRAM}.ParallelEngramEmbedding.lookup",
        f"{ENGRAM}.ParallelEngramEmbedding._allocate_weights",
        f"{ENGRAM}.ParallelEngramEmbedding._get_shard_info",
    ),
)
