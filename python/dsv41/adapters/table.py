"""Every adapter, by engine, in the order in which they are installed."""

from __future__ import annotations

from dsv41.adapters.adapter import Adapter

SGLANG: tuple[Adapter, ...] = ()
VLLM: tuple[Adapter, ...] = ()
TABLES: dict[str, tuple[Adapter, ...]] = {"sglang": SGLANG, "vllm": VLLM}
