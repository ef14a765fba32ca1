"""The flags and environment of vLLM (`python3 -m vllm.entrypoints.cli.main serve`)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dsv41.engines import Launch, container, fabric, plugin
from dsv41.engines.trees import Tree, tree
from dsv41.fleet import Fleet
from dsv41.profile import Profile, Value

_VALUES: Mapping[str, str] = {
    "tp": "--tensor-parallel-size",
    "executor": "--distributed-executor-backend",
    "load_format": "--load-format",
    "context": "--max-model-len",
    "slots": "--max-num-seqs",
    "chunk": "--max-num-batched-tokens",
    "mem_fraction": "--gpu-memory-utilization",
    "block_size": "--block-size",
    "tool_call_parser": "--tool-call-parser",
    "reasoning_parser": "--reasoning-parser",
}
_VARIABLES: Mapping[str, str] = {
    "estimate_cudagraphs": "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
    "rust_frontend": "VLLM_USE_RUST_FRONTEND",
    "flashinfer_cubin": "VLLM_HAS_FLASHINFER_CUBIN",
    "flashinfer_sampler": "VLLM_USE_FLASHINFER_SAMPLER",
    "flashinfer_arch": "FLASHINFER_CUDA_ARCH_LIST",
    "build_jobs": "MAX_JOBS",
    "nvcc_threads": "FLASHINFER_NVCC_THREADS",
    "ready_seconds": "VLLM_ENGINE_READY_TIMEOUT_S",
    "async_error_handling": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "hub_offline": "HF_HUB_OFFLINE",
}


def render(profile: Profile, fleet: Fleet, rank: int) -> Launch:
    """One rank's launch; workers add --headless and differ in --node-rank and their network."""
    build = tree(profile.tree, engine="vllm", where=profile.where)
    program = (build.python, "-m", "vllm.entrypoints.cli.main", "serve", container.MODEL)
    return Launch(
        argv=(*program, *_flags(profile, fleet, rank)),
        env=_environment(profile, fleet, rank, build),
        mounts=container.mounts(fleet, rank, tree=build),
        options=container.options(profile),
        own_flags=frozenset({"--node-rank", plugin.KEY_VARIABLE}) | fabric.OWN,
        own_switches=frozenset({"--headless"}),
        cache=container.CACHE,
    )


def capture_sizes(*, window: int, slots: int) -> list[int]:
    """The graph sizes that decode needs: k n and (k + 1) n rows for n streams and k drafts.

    Exact sizes leave no padded speculative row, which FlashInfer hangs on (its issue 5015). Without
    drafts (window 0) a step has n rows.
    """
    streams = range(1, slots + 1)
    return sorted({width * n for width in (window, window + 1) if width for n in streams})


def _flags(profile: Profile, fleet: Fleet, rank: int) -> list[str]:
    argv = ["--host", fleet.api_host, "--port", str(fleet.api_port)]
    argv += ["--served-model-name", *str(profile["served_names"]).split()]
    for knob, flag in _VALUES.items():
        value = profile.get(knob)
        if value is not None:
            argv += [flag, str(value)]
    argv += ["--enable-auto-tool-choice"]
    if profile["ep"] != 1:
        argv += ["--enable-expert-parallel"]
    argv += _configs(profile) + _images(profile)
    argv += ["--nnodes", str(len(fleet.nodes)), "--node-rank", str(rank)]
    argv += ["--master-addr", fleet.nodes[0].address, "--master-port", str(fleet.master_port)]
    return [*argv, "--headless"] if rank else argv


def _configs(profile: Profile) -> list[str]:
    """The flags whose value is JSON."""
    template = {"thinking": profile["thinking_default"]}
    found = ["--engram-config", _json({"cpu_offload": profile["engram_cpu_offload"]})]
    found += ["--kernel-config", _json({"sparse_indexer_topk_backend": profile["indexer_topk"]})]
    found += ["--default-chat-template-kwargs", _json(template)]
    window = 0
    if profile["drafter"] != "off":
        window = profile.integer("draft_window")
        found += ["--speculative-config", _json(_speculation(profile))]
    if profile.on("eager"):
        return [*found, "--enforce-eager"]
    sizes = capture_sizes(window=window, slots=profile.integer("slots"))
    graphs = {"cudagraph_mode": profile["cudagraph_mode"], "cudagraph_capture_sizes": sizes}
    return [*found, "--compilation-config", _json(graphs)]


def _speculation(profile: Profile) -> dict[str, Value]:
    return {
        "method": profile["drafter"],
        "num_speculative_tokens": profile["draft_window"],
        "draft_sample_method": profile["draft_sample"],
        "rejection_sample_method": "block" if profile.on("block_verify") else "standard",
        "enable_adaptive_verification": profile["adaptive_verify"],
    }


def _images(profile: Profile) -> list[str]:
    if profile.on("text_only"):
        return ["--language-model-only"]
    limit = _json({"image": profile["images_per_prompt"]})
    cache = str(profile["mm_cache_gib"])
    return ["--limit-mm-per-prompt", limit, "--mm-processor-cache-gb", cache]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _environment(profile: Profile, fleet: Fleet, rank: int, build: Tree) -> dict[str, str]:
    node = fleet.nodes[rank]
    expandable = bool(profile.get("expandable_segments"))
    found = {
        **container.CACHE_ENVIRONMENT,
        "VLLM_CACHE_ROOT": f"{container.CACHE}/vllm",
        "HF_HOME": f"{container.CACHE}/huggingface",
        "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": node.address,
        "TP_SOCKET_IFNAME": node.socket_ifname,
        **fabric.environment(profile, node),
        **fabric.variables(profile, _VARIABLES),
        **plugin.environment(profile, fleet, rank, build),
    }
    if profile.on("hub_offline"):
        found["TRANSFORMERS_OFFLINE"] = "1"
    if profile.get("flashinfer_arch"):
        found["TORCH_CUDA_ARCH_LIST"] = str(profile["flashinfer_arch"])
    if profile.get("flashinfer_version_check") is False:
        found["FLASHINFER_DISABLE_VERSION_CHECK"] = "1"
    if profile.on("breakable_cudagraph") and not profile.on("eager"):
        found["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"
    return found
