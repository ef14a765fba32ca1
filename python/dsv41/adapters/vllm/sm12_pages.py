"""Index pages of 64 states on SM12x, where vLLM's own kernels take no larger ones.

What: on compute capability 12.x the indexer's cache of a layer with ratio r is paged by 64 r tokens
instead of 128, and FlashInfer's attention also accepts kernel blocks of 64 tokens, so that both
have a block size in common. `--block-size` stays 128.

Why: a layer with ratio 1 has 128 states in a page of 128 tokens; the DeepGEMM that vLLM 0.33.0
carries refuses on SM12x what is not 32 or 64 (read in its library), and vLLM's own list of page
sizes for SM120 is 64 alone (`vllm/utils/deep_gemm.py`). The other two places that the four-Spark
recipe patched need nothing any more: the pinned FlashInfer 0.7.2.post1 takes any page size at run
time, sliding windows of 32 among them (read), and the top-k is a setting (per_row).

Effect: not measured, and not run on any SM12x. The cycle's profile asks for it.

Off: leave DSV41_SM12_PAGES unset.

Obsolete when: vLLM pages the index of ratio-1 layers by 64 on SM12x.
"""

from __future__ import annotations

from typing import Any

from dsv41.adapters.adapter import Adapter, Hook

STATES = 64
TOKENS = 128  # the common block of the release
INDEXER = "vllm.v1.attention.backends.mla.indexer.DeepseekV41IndexerBackend"
ATTENTION = "vllm.models.deepseek_v41.nvidia.flashinfer_sparse.DeepseekV4FlashInferMLASparseBackend"
FAMILY = 120


def index_blocks(found: list[Any], kv_cache_spec: Any = None) -> list[Any]:
    """Hook after the indexer's `get_supported_kernel_block_sizes`; in tokens."""
    if not _on_sm12():
        return found
    if kv_cache_spec is None:  # asked before any layer is known, to choose the engine's block size
        return [TOKENS, STATES]
    return [STATES * int(kv_cache_spec.tokens_per_state)]


def attention_blocks(found: list[Any], *_: Any, **__: Any) -> list[Any]:
    """Hook after the attention's `get_supported_kernel_block_sizes`; in tokens."""
    return [*found, STATES] if _on_sm12() and STATES not in found else found


def _on_sm12() -> bool:
    from vllm.platforms import current_platform  # noqa: PLC0415 - only inside vLLM

    return bool(current_platform.is_device_capability_family(FAMILY))


ADAPTER = Adapter(
    name="sm12_pages",
    switch="sm12_pages",
    engines=("vllm",),
    trees=("vllm-0.33.0",),
    hooks=(
        Hook(
            target=f"{INDEXER}.get_supported_kernel_block_sizes",
            kind="after",
            call=index_blocks,
            takes=("kv_cache_spec",),
        ),
        Hook(
            target=f"{ATTENTION}.get_supported_kernel_block_sizes",
            kind="after",
            call=attention_blocks,
        ),
    ),
)
