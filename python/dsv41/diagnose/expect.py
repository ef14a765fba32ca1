"""What a profile promises, as far as captured text can show whether it was kept."""

from __future__ import annotations

from dataclasses import dataclass

from dsv41.geometry import DEFAULT_PARTITION

ENGINES = ("sglang", "vllm", "local")
LIMITS = ("pool_tokens", "slots", "chunk", "context", "draft_window")

# the whole repository at dba1be0a: 88 files, 48 shards (sparkring recipe deepseek-v41-flash-cycle)
CHECKPOINT_BYTES = 510_313_353_565


@dataclass(frozen=True, kw_only=True, slots=True)
class Expect:
    """The promises of one profile on one fleet. None: the profile says nothing about it.

    Attributes:
        profile: its name, for the commands in `fix`.
        engine: sglang, vllm or local; decides which log lines are looked for.
        tp: tensor-parallel ranks.
        pool_tokens: tokens of the KV pool (SGLang max_total_tokens).
        slots: requests at once (max_running_requests, max_num_seqs).
        chunk: prefill tokens of one step (chunked_prefill_size, max_num_batched_tokens).
        context: tokens of one request, prompt and answer (context_length, max_model_len).
        draft_window: tokens drafted a step (DSpark block size; 5).
        page_tokens: the pool is rounded down to whole pages (SGLang 256).
        revision: commit of the checkpoint that the profile was made with.
        partition: how the Engram rows are cut (dsv41.geometry.PARTITIONS).
        image: name of the engine image; with `image_digest` (sha256:...) its exact bytes.
        engine_bytes: memory that the plan gives to a rank, all items of its ledger.
        headroom_bytes: MemAvailable that the plan leaves while serving.
        checkpoint_bytes: size of the whole checkpoint on disk.
        needs_ring: NCCL must be the patched one and build rings only.
    """

    profile: str
    engine: str
    tp: int
    pool_tokens: int | None = None
    slots: int | None = None
    chunk: int | None = None
    context: int | None = None
    draft_window: int | None = None
    page_tokens: int = 256
    revision: str | None = None
    partition: str = DEFAULT_PARTITION
    image: str | None = None
    image_digest: str | None = None
    engine_bytes: int | None = None
    headroom_bytes: int | None = None
    checkpoint_bytes: int = CHECKPOINT_BYTES
    needs_ring: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine {self.engine!r} is not one of {ENGINES}")

    def limits(self) -> dict[str, int]:
        """The promised limits that are not None, by their names in `LIMITS`."""
        values = {name: getattr(self, name) for name in LIMITS}
        return {name: value for name, value in values.items() if value is not None}
