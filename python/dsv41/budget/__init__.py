"""What a rank needs of its node's memory, before anything boots: a ledger and a verdict.

A Spark has one memory for everything. The ledger adds up the model, the pools by the engine's own
formula, buffers, graphs and the largest prefill, against MemTotal; constants that could only be
taken from published runs name the run. Pure: reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsv41.budget import pools, weights
from dsv41.budget.weights import GIB
from dsv41.engines.trees import ABSENT, tree
from dsv41.fleet import SPARK_GIB, Node
from dsv41.profile import Profile

FITS, TIGHT, REFUSED = "fits", "tight", "refused"

# MemAvailable at start was 111.5 of 121.69 GiB (MIA-README): the rest is the system's
SYSTEM_BYTES = int((SPARK_GIB - 111.5) * GIB)
# The line between 1024 x 208k, which ran on three Sparks without the bounded indexer, and
# 1024 x 256k, which failed, is chunk x prefix = 2.2e8; this is what the ledger then leaves
FLOOR_BYTES = 2_437_094_916
# the leanest published run called normal went down to 6,029 MiB (four Sparks, a million tokens)
TIGHT_BYTES = 5500 * (1 << 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One line of a rank's memory ledger, in bytes."""

    item: str
    bytes: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """What one rank takes of `memory`; `pool_tokens` is what its full KV pool will hold."""

    items: tuple[Item, ...]
    memory: int
    pool_tokens: int
    context: int
    asked_tokens: int | None

    @property
    def used(self) -> int:
        """The sum of the items."""
        return sum(item.bytes for item in self.items)

    @property
    def free(self) -> int:
        """MemAvailable at the low point, below zero when it does not go."""
        return self.memory - self.used

    @property
    def clamped(self) -> bool:
        """Whether the engine will make a smaller pool than it is asked for."""
        return self.asked_tokens is not None and self.pool_tokens < self.asked_tokens

    @property
    def verdict(self) -> str:
        """fits, tight or refused."""
        if self.pool_tokens < self.context or self.free < FLOOR_BYTES:
            return REFUSED
        return TIGHT if self.clamped or self.free < TIGHT_BYTES else FITS


def ledger(profile: Profile, node: Node | None = None) -> Ledger | None:
    """The ledger of a rank on a node (a Spark with nothing else on it when None).

    None for an engine that needs no budget.
    """
    if profile.engine == "local":
        return None
    memory = int((node.memory_gib if node else SPARK_GIB) * GIB)
    reserve = int(node.reserve_gib * GIB) if node else 0
    return _LEDGERS[profile.engine](profile, memory, reserve)


def _shared(profile: Profile, reserve: int) -> list[Item]:
    shm = f"a limit of {profile['shm_gib']} GiB, no allocation: a lone rank puts nothing there"
    return [
        _item(
            "system",
            SYSTEM_BYTES,
            "firmware, OS and host programs: 111.5 of 121.69 GiB are free at start",
        ),
        _item("reserve", reserve, "reserve_gib of the node, for other programs"),
        _item(
            "nccl",
            pools.nccl_bytes(profile),
            "connection buffers, from the buffer settings and channels",
        ),
        _item(
            "rows", pools.rows_bytes(profile), "Engram rows kept in memory; the tables lie on NVMe"
        ),
        _item("shm", 0, shm),
    ]


def _model(profile: Profile) -> list[Item]:
    found = weights.of_rank(
        engine=profile.engine,
        tp=profile.integer("tp"),
        layout=str(profile.get("layout") or "legal"),
        text_only=profile.on("text_only"),
    )
    draft = 0 if profile["drafter"] == "off" else found.draft
    overhead = (
        f"{found.overhead / GIB:.1f} GiB of it beyond the tensors, as published at four ranks"
    )
    items = [
        _item("weights", found.loaded, f"tensors from their shapes, padded; {overhead}"),
        _item("draft", draft, "three draft layers and their experts; 0 when drafting is off"),
    ]
    return [*items, *_padding(profile)]


def _padding(profile: Profile) -> list[Item]:
    """What the other layout of padded heads would change; its bytes are in weights and draft."""
    tp = profile.integer("tp")
    saved = weights.balanced_saves(tp)
    if not profile.get("tp_pad") or not saved:
        return []
    verb = "saves" if profile["layout"] == "balanced" else "would save"
    why = (
        f"in weights and draft; balanced instead of legal {verb} {saved:,} bytes on each rank, "
        f"{saved * tp:,} on all {tp}, not measured on a GB10"
    )
    return [_item("padding", 0, why)]


def _sglang(profile: Profile, memory: int, reserve: int) -> Ledger:
    """The pools get what is free after loading, less (1 - fraction) of what was free before."""
    items = _shared(profile, reserve) + _model(profile)
    before = memory - sum(i.bytes for i in items if i.item in ("system", "reserve", "nccl"))
    # the row cache fills while serving, long after the pools are made
    after = memory - sum(i.bytes for i in items if i.item != "rows")
    left = after - int((1 - float(profile["mem_fraction"])) * before) - pools.IMAGE_RESERVE
    tokens, taken = pools.sglang_pool(profile, left=left)
    return _closed(profile, memory, items, tokens, taken, [_graphs(profile), _prefill(profile)])


def _vllm(profile: Profile, memory: int, reserve: int) -> Ledger:
    """The cache gets what gpu_memory_utilization of the whole memory leaves beside the rest."""
    items = _shared(profile, reserve) + _model(profile)
    activations = pools.vllm_activation_bytes(profile)
    working = [
        _graphs(profile),
        _item(
            "activations",
            activations,
            "what the engine's memory profile finds, by batch and context",
        ),
    ]
    own = sum(i.bytes for i in items if i.item in ("weights", "draft"))
    left = int(float(profile["mem_fraction"]) * memory) - own - sum(i.bytes for i in working)
    tokens, taken = pools.vllm_pool(profile, left=left)
    return _closed(profile, memory, items, tokens, taken, working)


_LEDGERS = {"sglang": _sglang, "vllm": _vllm}


def _closed(
    profile: Profile, memory: int, items: list[Item], tokens: int, taken: int, working: list[Item]
) -> Ledger:
    window = pools.window_bytes(profile) if tokens else 0
    asked = profile.get("pool_tokens")
    pool = [
        _item("kv", taken, f"full pool, {tokens:,} tokens by the engine's formula"),
        _item("window", window, "sliding-window pool, which does not grow with the context"),
    ]
    return Ledger(
        items=(*items, *pool, *working),
        memory=memory,
        pool_tokens=tokens,
        context=profile.integer("context"),
        asked_tokens=None if asked is None else int(asked) // 256 * 256,
    )


def _graphs(profile: Profile) -> Item:
    return _item(
        "graphs",
        pools.graph_bytes(profile),
        "CUDA graphs of decode (0.54 GiB published, vLLM, 8 streams)",
    )


def _prefill(profile: Profile) -> Item:
    build = tree(profile.tree, engine=profile.engine, where=profile.where)
    bounded = build.can("bounded_indexer") != ABSENT
    how = (
        "bounded indexer"
        if bounded
        else "14 B x chunk x prefix: this tree's indexer is not bounded"
    )
    return _item(
        "prefill",
        pools.prefill_bytes(profile, bounded=bounded),
        f"one chunk at the end of a full context; {how}",
    )


def _item(name: str, size: int, why: str) -> Item:
    return Item(item=name, bytes=size, why=why)
