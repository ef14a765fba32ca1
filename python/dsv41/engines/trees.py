"""What each engine tree can do: by itself (flag), by our plugin (adapter), or not at all (absent).

One table. `plan` refuses a knob that asks for something absent; the budget reads it, because a
tree without the bounded indexer pays for its transient. FLAG covers whatever the tree does itself,
by a command-line flag, an environment variable or its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsv41.errors import UsageError

FLAG, ADAPTER, ABSENT = "flag", "adapter", "absent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """One engine build.

    `slice_multiple` is what the routed experts' width of one rank must be a multiple of;
    `nccl_path` is the one libnccl of its image, where a patched one would be mounted over; `maker`
    the module of its image that makes the checkpoint, where it is not a published one.
    """

    name: str
    engine: str
    says: str
    python: str = "python3"
    nccl_path: str = ""
    maker: str = ""
    slice_multiple: int = 1
    capabilities: Mapping[str, str]

    def can(self, capability: str) -> str:
        """How the tree does it: flag, adapter or absent; what the table does not name is absent."""
        return self.capabilities.get(capability, ABSENT)


_OWN = "/opt/dsv41/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
_UPSTREAM = "/opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"

# what the plugin brings to every SGLang tree
_SGLANG_ADAPTERS = dict.fromkeys(
    (
        "engram_nvme",
        "engram_prefetch",
        "tp_pad",
        "scale_repair",
        "mxfp8_b12x",
        "prefill_empty_cache",
        "loop_abort",
        "thinking_alias",
        "api_keys",
    ),
    ADAPTER,
)

# SGLANG_MAX_NEW_TOKENS_LIMIT (sglang #22591): read in 0.5.16 (July 2026), 0.5.17, 0.5.19, 0.5.20,
# 0.5.21 and 0.5.23, so the recipes' two builds, of the 10th and 16th of September, have it as well
_SGLANG_OWN = {"output_cap": FLAG}

# the patched library replaces the wheel's file in the image, so NCCL's ring is the image's affair
_NCCL = {"nccl_ring": FLAG, "nccl_dual_domain": FLAG}

_TREES = (
    Tree(
        name="sglang-0.5.23",
        engine="sglang",
        says="the release, from locked wheels, with our plugin",
        nccl_path=_OWN,
        # Mxfp4FlashinferCutlassMoEMethod.create_weights of 0.5.23 raises for any other width
        slice_multiple=128,
        capabilities={
            **_SGLANG_ADAPTERS,
            **_SGLANG_OWN,
            **_NCCL,
            "verify_cap": ADAPTER,
            "draft_tau": ADAPTER,
            "wo_a_w8": ADAPTER,
            "draft_head_fp8": ADAPTER,
            "shared_pad_k": ADAPTER,
            "fast_load": ADAPTER,
            "block_verify": FLAG,  # --speculative-use-block-verification
            "bounded_indexer": FLAG,  # sglang #40217, a default
            "decoder_replay": FLAG,
            "min_free_slots": FLAG,
            "autotune_keep": FLAG,  # caches that differ between ranks are dropped by themselves
            "flash_mla_sm120": FLAG,
            "image_text": FLAG,  # the publisher's own encoder, deepseek-recipe 0.2.0
            "effort_tiers": FLAG,
            "metrics": FLAG,
        },
    ),
    Tree(
        name="sglang-branch",
        engine="sglang",
        says="the four-Spark recipe's stack: pinned base image, branch f80c91a4, overlays",
        nccl_path=_UPSTREAM,
        slice_multiple=128,
        capabilities={
            **_SGLANG_ADAPTERS,
            **_SGLANG_OWN,
            **_NCCL,
            "image_text": ADAPTER,
            "decoder_replay": FLAG,
            "min_free_slots": FLAG,
            "flash_mla_sm120": FLAG,  # the pinned override file in the image
            "folded_sampling": FLAG,
            "roce": FLAG,  # the pinned overlay of rhys101, SGLANG_ROCE_ALLREDUCE
            "metrics": FLAG,
        },
    ),
    Tree(
        name="sglang-base",
        engine="sglang",
        says="the three-Spark recipe's stack: the pinned base image as it is",
        nccl_path=_UPSTREAM,
        slice_multiple=128,
        capabilities={
            **_SGLANG_ADAPTERS,
            **_SGLANG_OWN,
            **_NCCL,
            "image_text": ADAPTER,
            "decoder_replay": FLAG,
            "min_free_slots": FLAG,
            "flash_mla_sm120": FLAG,
            "metrics": FLAG,
        },
    ),
    Tree(
        name="vllm-0.33.0",
        engine="vllm",
        says="the release, from locked wheels, with our plugin",
        nccl_path=_OWN,
        slice_multiple=64,
        capabilities={
            **_NCCL,
            "engram_nvme": ADAPTER,
            "engram_prefetch": FLAG,  # its own side stream reads while earlier layers compute
            "engram_ahead": ADAPTER,
            "sm12_pages": ADAPTER,
            "api_keys": ADAPTER,
            "block_verify": FLAG,  # rejection_sample_method block
            "bounded_indexer": FLAG,  # its workspace is measured inside gpu_memory_utilization
        },
    ),
    Tree(
        name="local",
        engine="local",
        says="our CPU engine",
        python="python",
        maker="dsv41.local.fixture",
        capabilities={},
    ),
)
TREES: Mapping[str, Tree] = {tree.name: tree for tree in _TREES}


def tree(name: str, *, engine: str, where: str) -> Tree:
    """The tree of a profile; UsageError D103 when there is none of that name for the engine."""
    found = TREES.get(name)
    if found is None or found.engine != engine:
        known = ", ".join(t.name for t in _TREES if t.engine == engine)
        fix = f"give --tree one of {known}" if where == "--tree" else f"edit tree in {where}"
        says = f"{where}: tree is {name!r}; {engine} has {known or 'no trees'}."
        raise UsageError("D103", says, fix=fix)
    return found
