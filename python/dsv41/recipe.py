"""The cycle's Plan in the fields of sparkring-recipe/v1, for who reviews such recipes.

Field names are those of recipes/deepseek-v41-flash-cycle.json (sparkring pull request 261).
"""

from __future__ import annotations

from typing import Any

from dsv41.engines.vllm import capture_sizes
from dsv41.fleet import Fleet
from dsv41.plan import Plan
from dsv41.profile import Profile

SCHEMA = "sparkring-recipe/v1"
MODEL = "deepseek-ai/DeepSeek-V4.1-Flash"
NOT_RUN = "This recipe was planned, not run: no figure here was measured with it."


def document(made: Plan, profile: Profile, fleet: Fleet) -> dict[str, Any]:
    """The recipe; `evidence` says that it is none."""
    return {
        "schema": SCHEMA,
        "recipe_id": f"dsv41-{profile.name}",
        "status": "implemented",
        "hardware": {
            "platform": "linux/arm64",
            "cuda_arch": "sm_121",
            "ranks": len(made.ranks),
            "topology": f"direct-cycle-{len(fleet.nodes)}",
        },
        "model": {
            "repository": MODEL,
            "revision": profile["revision"],
            "identity_status": "recorded",
            "identity_note": profile.knobs["revision"].why,
        },
        "runtime": _runtime(made, profile),
        "serving": _serving(profile),
        "evidence": {
            "status": "none",
            "conditions": made.digest,
            "result": NOT_RUN,
            "conclusion": NOT_RUN,
            "limitations": [f"{entry['knob']}: {entry['reason']}" for entry in made.omitted],
        },
    }


def _runtime(made: Plan, profile: Profile) -> dict[str, Any]:
    head = made.ranks[0]
    return {
        "image": head.image,
        "image_note": profile.tree,
        "patches": [],
        "nccl": profile["nccl_build"],
        "environment_template": dict(sorted(head.env.items())),
        "launcher": "dsv41 rank exec",
        "launcher_preflight_argument": "dsv41 plan",
        "launcher_run_argument": "dsv41 serve",
        "entrypoint": " ".join(head.argv[:4]),
    }


def _serving(profile: Profile) -> dict[str, Any]:
    window = 0 if profile["drafter"] == "off" else profile.integer("draft_window")
    return {
        "served_model_name": str(profile["served_names"]).split(),
        "tensor_parallel_size": profile["tp"],
        "node_count": profile["tp"],
        "distributed_executor_backend": profile["executor"],
        "load_format": profile["load_format"],
        "max_model_len": profile["context"],
        "max_num_seqs": profile["slots"],
        "max_num_batched_tokens": profile["chunk"],
        "gpu_memory_utilization": profile["mem_fraction"],
        "block_size": profile["block_size"],
        "engram": {
            "cpu_offload": profile["engram_cpu_offload"],
            "tables_on_disk": True,
            "column_assignment": profile["partition"],
            "packed_shards": True,
            "why": profile.knobs["partition"].why,
        },
        "speculation": {
            "method": profile["drafter"],
            "num_speculative_tokens": window,
            "draft_sample_method": profile["draft_sample"],
            "rejection_sample_method": "block" if profile.on("block_verify") else "standard",
            "enable_adaptive_verification": profile["adaptive_verify"],
        },
        "cuda_graphs": {
            "mode": "none" if profile.on("eager") else profile["cudagraph_mode"],
            "capture_sizes": []
            if profile.on("eager")
            else capture_sizes(window=window, slots=profile.integer("slots")),
        },
        "multimodal": {
            "images_per_prompt": 0 if profile.on("text_only") else profile["images_per_prompt"],
            "mm_processor_cache_gb": profile["mm_cache_gib"],
        },
        "tool_call_parser": profile["tool_call_parser"],
        "reasoning_parser": profile["reasoning_parser"],
        "default_chat_template_kwargs": {"thinking": profile["thinking_default"]},
        "external_kv_cache": False,
        "sizing_note": profile.knobs["mem_fraction"].why,
    }
