"""Every adapter, by engine, in the order in which they are installed."""

from __future__ import annotations

from dsv41.adapters.adapter import Adapter
from dsv41.adapters.sglang import mxfp8_b12x, scale_repair, tp_pad

SGLANG: tuple[Adapter, ...] = (
    tp_pad.ADAPTER,
    scale_repair.ADAPTER,
    mxfp8_b12x.ADAPTER,
)
VLLM: tuple[Adapter, ...] = ()
TABLES: dict[str, tuple[Adapter, ...]] = {"sglang": SGLANG, "vllm": VLLM}
