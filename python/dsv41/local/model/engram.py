"""Engram: memory rows chosen by the last tokens, added to the residual streams through a gate.

All of a step's rows are known before any layer runs: ids come from tokens alone. So a step begins
with reading the rows of all Engram layers at once, and what it sums over the ranks is not the rows
(24 x 256 values a token and layer) but their projection (5 x hidden): each rank projects the rows
that it owns, rows of other ranks being zero, and a sum of projections is the projection of the sum.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from safetensors import safe_open

from dsv41.geometry import hash_columns, partition
from dsv41.local.model.codec import E4M3_VALUES, ROW_BLOCK
from dsv41.local.model.norm import RmsNorm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from dsv41.geometry import Engram
    from dsv41.local.model.config import ModelConfig

FOREIGN = -1  # an id that no rank owns: its row reads as zeros


Rows = Callable[[], "Tensor"]  # waits for float [n, columns, head_dim]


class RowReader(Protocol):
    """Where the rows of the Engram tables come from."""

    def columns(self, engram: Engram, layer_id: int) -> Sequence[int]:
        """Name the hash columns of which this reader owns any row; of all others it owns none."""

    def ask(self, layer_id: int, ids: Tensor) -> Rows:
        """Begin to read rows: int64 [n, columns]; foreign ones are 0."""


class Store(Protocol):
    """What a reader needs of `dsv41_rows.RowStore`."""

    @property
    def rank(self) -> int:
        """Rank whose rows the file has."""

    @property
    def tp(self) -> int:
        """How many ranks share the table."""

    @property
    def partition(self) -> str:
        """Name of the rule by which they do."""

    def submit(self, ids: Any, weights: Any, scales: Any) -> Any:
        """Begin to fill uint8 [n, 256] and uint8 [n, 8] for int64 [n]; the ticket has `wait()`."""


class StoreReader:
    """Rows from the row store: E4M3 bytes times 2**(scale code - 127), in float32."""

    def __init__(self, stores: Mapping[int, Store]) -> None:
        self._stores = stores
        self._scales = torch.ldexp(torch.ones(256), torch.arange(256) - 127)
        self._scales[255] = torch.nan  # E8M0 has no 2**128

    def columns(self, engram: Engram, layer_id: int) -> Sequence[int]:
        """Hash columns whose rows the store's ranges touch."""
        store = self._stores[layer_id]
        split = partition(store.partition, engram=engram, layer_id=layer_id, tp=store.tp)
        ranges = split.ranges(store.rank)
        spans = zip(engram.offsets(layer_id), engram.primes(layer_id), strict=True)
        return [
            column
            for column, (first, count) in enumerate(spans)
            if any(part.lo < first + count and first < part.hi for part in ranges)
        ]

    def ask(self, layer_id: int, ids: Tensor) -> Rows:
        """Submit int64 [n, columns]; the wait gives float32 [n, columns, 256]."""
        count = ids.numel()
        weights = torch.empty(count, 256, dtype=torch.uint8)
        scales = torch.empty(count, 256 // ROW_BLOCK, dtype=torch.uint8)
        flat = ids.reshape(-1).numpy()
        ticket = self._stores[layer_id].submit(flat, weights.numpy(), scales.numpy())

        def rows() -> Tensor:
            ticket.wait()
            return self._decode(weights, scales).view(*ids.shape, -1)

        return rows

    def _decode(self, weights: Tensor, scales: Tensor) -> Tensor:
        """uint8 [n, 256] and [n, 8] -> float32 [n, 256]."""
        # by table: half the time of torch's conversion from float8
        values = torch.from_numpy(E4M3_VALUES.take(weights.numpy()))
        values.view(*scales.shape, ROW_BLOCK).mul_(self._scales[scales.int()].unsqueeze(-1))
        return values


class TableReader:
    """Rows from whole tables in memory: the reference of the row store in tests."""

    def __init__(self, tables: Mapping[int, Tensor]) -> None:
        self._tables = tables

    @classmethod
    def from_checkpoint(cls, directory: Path, config: ModelConfig) -> TableReader:
        """Decode the whole tables of a checkpoint folder; 125 MB a layer in the fixture."""
        index = json.loads((directory / "model.safetensors.index.json").read_text("utf-8"))

        def read(name: str) -> Tensor:
            with safe_open(directory / index["weight_map"][name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor

        tables = {}
        for layer in config.engram_layer_ids:
            prefix = f"layers.{layer}.engram.embed."
            codes, scales = read(prefix + "weight"), read(prefix + "scale").to(torch.float32)
            values = codes.to(torch.float32).view(len(codes), -1, ROW_BLOCK)
            tables[layer] = values.mul_(scales.unsqueeze(-1)).flatten(1)
        return cls(tables)

    def columns(self, engram: Engram, layer_id: int) -> Sequence[int]:
        """Name every column."""
        del layer_id
        return range(engram.columns)

    def ask(self, layer_id: int, ids: Tensor) -> Rows:
        """Look up int64 [n, columns]: [n, columns, head_dim] of the table's dtype."""
        found = self._tables[layer_id][ids.clamp_min(0)]
        found.masked_fill_((ids < 0).unsqueeze(-1), 0)
        return lambda: found


class Hasher:
    """Row ids of all Engram layers at once."""

    def __init__(self, engram: Engram) -> None:
        self._orders = engram.max_ngram - 1
        layers = engram.layer_ids
        factors = [engram.layer_multipliers(layer) for layer in layers]
        # axes of all operands: look-back or order, layer, token, head
        self._multipliers = np.array(factors, np.int64).T[:, :, None, None]
        self._primes = self._by_order([engram.primes(layer) for layer in layers])
        self._offsets = self._by_order([engram.offsets(layer) for layer in layers])

    def ids(self, windows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of n look-back windows (t_0 first): int64 [layers, n, columns]."""
        terms = np.array(windows, np.int64).T[:, None, :, None]
        by_order = hash_columns(
            terms,  # type: ignore[arg-type]  # arrays stand for the integers: one call for all
            multipliers=cast("Sequence[int]", self._multipliers),
            primes=cast("Sequence[int]", self._primes),
            offsets=cast("Sequence[int]", self._offsets),
        )
        return torch.from_numpy(np.concatenate(by_order, axis=-1))

    def _by_order(
        self, rows: list[tuple[int, ...]]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """[layers][columns] -> [orders, layers, 1, heads]."""
        table = np.array(rows, np.int64).reshape(len(rows), self._orders, 1, -1)
        return table.transpose(1, 0, 2, 3)


class EngramLayer:
    """Projection and gate of one layer.

    Of the projection only the part stays that meets columns which `rows` owns anything of: at three
    ranks a third, and with it a third of the memory traffic of a step.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], *, layer: int, rows: RowReader
    ) -> None:
        prefix = f"layers.{layer}.engram."
        self._layer, self._rows = layer, rows
        self._hidden = config.hidden_size
        self._norm = RmsNorm(self._hidden, eps=config.rms_norm_eps)
        self._columns = torch.tensor(list(rows.columns(config.engram, layer)), dtype=torch.int64)
        whole = weights[prefix + "wkv.weight"]
        by_column = whole.view(len(whole), config.engram.columns, -1)
        self._wkv = by_column[:, self._columns].flatten(1)
        # the dot product uses q and k only together; 1/sqrt(d) goes with them
        product = weights[prefix + "q_weight"] * weights[prefix + "k_weight"]
        self._dot_weight = product * self._hidden**-0.5

    @property
    def columns(self) -> int:
        """How many rows a token has on this rank."""
        return len(self._columns)

    def ask(self, ids: Tensor) -> Rows:
        """Begin to read the rows int64 [n, all columns] of this layer."""
        return self._rows.ask(self._layer, ids[:, self._columns])

    def project(self, rows: Rows) -> Tensor:
        """Wait for rows; keys of the streams and a value, this rank's part: [n, (m + 1) * d]."""
        found = rows()
        # this way round it takes an eighth less than F.linear does with eight rows
        return torch.mm(self._wkv, found.flatten(1).to(self._wkv.dtype).t()).t()

    def add(self, streams: Tensor, projected: Tensor) -> Tensor:
        """Give the streams [n, m, d] with the memory [n, (m + 1) * d] added; a new tensor."""
        both = projected.view(len(projected), -1, self._hidden)
        key, value = both[:, :-1], both[:, -1:]
        dot = self._norm(streams).mul_(self._norm(key)).mul_(self._dot_weight)
        strength = dot.sum(-1, keepdim=True)
        gate = strength.abs().clamp_min_(1e-6).sqrt_().copysign_(strength).sigmoid_()
        return torch.addcmul(streams, gate, value)
