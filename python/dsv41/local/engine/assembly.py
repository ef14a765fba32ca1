"""From a rank's options to a rank that can step: rows, weights, group and model, in this order.

What can be refused is refused before the group forms, so that a wrong file on one rank is that
rank's error and not a timeout of all others.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dsv41 import rows
from dsv41.errors import CheckFailed, EngineFailed
from dsv41.local.engine.steps import Meter, Metered, Runner
from dsv41.local.model.ahead import Early
from dsv41.local.model.comm import Alone, Comm, Gloo
from dsv41.local.model.config import ModelConfig
from dsv41.local.model.engram import StoreReader
from dsv41.local.model.transformer import Model
from dsv41.local.model.weights import load_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dsv41_rows import RowStore

    from dsv41.geometry import Shard

_MAKE_AGAIN = "remove the checkpoint's folder, then run the same command again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Where a rank finds what it needs, and its size; defaults are those of profile local."""

    shard: Shard
    checkpoint: Path
    rows: Path
    partition: str
    layout: str = "legal"
    row_engine: str = "auto"
    slots: int = 8
    context: int = 4096
    ahead: bool = True


class Peers(Gloo):
    """A group whose ranks may take long to come together, but must answer quickly from then on."""

    def __init__(
        self, master: str, *, shard: Shard, join: float, answer: float, group: str
    ) -> None:
        super().__init__(master, shard.rank, shard.tp, join, group=group)
        self._timeout = answer
        self._group.set_timeout(timedelta(seconds=answer))

    def _failure(self, error: RuntimeError, doing: str) -> EngineFailed:
        """Say it without the transport's source line before and its advice behind."""
        text = re.sub(r"^\[[^]]*\] ", "", str(error)).split(" This is typically")[0]
        return super()._failure(RuntimeError(text), doing)


@dataclass(kw_only=True, slots=True)
class Assembled:
    """A rank that can step, and its row stores by layer."""

    runner: Runner
    stores: Mapping[int, RowStore]
    comm: Comm = field(repr=False)

    def row_stats(self) -> dict[int, dict[str, Any]]:
        """Counters of every layer's row store."""
        return {layer: store.stats() for layer, store in self.stores.items()}

    def close(self) -> None:
        """Leave the group and end the stores."""
        self.comm.close()
        for store in self.stores.values():
            store.close()


def assemble(
    parts: Parts, *, join: Callable[[], Comm] = Alone, say: Callable[[str], None] = lambda _: None
) -> Assembled:
    """Load one rank; `join` is called when it has loaded and gives the group.

    Raises what the rooms raise: D020-D039 for row files, D040-D049 for the checkpoint, D061 when
    the ranks do not come together.
    """
    began = time.monotonic()
    config = ModelConfig.from_file(parts.checkpoint)
    stores = rows.open_shard(
        rows_dir=parts.rows,
        engram=config.engram,
        partition=parts.partition,
        shard=parts.shard,
        checkpoint=parts.checkpoint,
        engine=parts.row_engine,
    )
    weights = load_shard(parts.checkpoint, config=config, shard=parts.shard, layout=parts.layout)
    say(f"loaded rows and weights in {time.monotonic() - began:.1f} s")
    comm = join()
    meter = Meter()
    metered = Metered(comm, meter)
    model = Model(
        config=config,
        weights=weights,
        shard=parts.shard,
        layout=parts.layout,
        rows=StoreReader(cast("Any", stores)),
        comm=metered,
        token_map=_token_map(parts.checkpoint, config),
        early=Early(meter.ahead),
    )
    runner = Runner(
        model,
        metered,
        slots=parts.slots,
        context=parts.context,
        chunk=model.chunk,
        meter=meter,
        ahead=parts.ahead,
    )
    return Assembled(runner=runner, stores=stores, comm=comm)


def _token_map(checkpoint: Path, config: ModelConfig) -> list[int]:
    """Read token_map.i32: int32 little-endian, one compressed id per token id."""
    path = checkpoint / "token_map.i32"
    try:
        table = np.fromfile(path, dtype="<i4")
    except OSError as error:
        raise CheckFailed(
            "D044", f"{path} cannot be read: {error.strerror}.", fix=_MAKE_AGAIN
        ) from error
    if table.size != config.vocab_size:
        raise CheckFailed(
            "D044",
            f"{path} has {table.size} ids; the vocabulary has {config.vocab_size}.",
            fix=_MAKE_AGAIN,
        )
    return [int(value) for value in table]
