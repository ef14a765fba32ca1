"""The flags and environment of SGLang (`python3 -m sglang.launch_server`)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dsv41.engines import Launch, container, fabric, plugin
from dsv41.engines.trees import Tree, tree
from dsv41.fleet import Fleet
from dsv41.profile import Profile

# flags with a value
_VALUES: Mapping[str, str] = {
    "served_name": "--served-model-name",
    "load_format": "--load-format",
    "tp": "--tp-size",
    "ep": "--ep-size",
    "attention_backend": "--attention-backend",
    "moe_runner": "--moe-runner-backend",
    "fp8_gemm": "--fp8-gemm-backend",
    "mem_fraction": "--mem-fraction-static",
    "chunk": "--chunked-prefill-size",
    "context": "--context-length",
    "pool_tokens": "--max-total-tokens",
    "slots": "--max-running-requests",
    "graph_slots": "--cuda-graph-max-bs-decode",
    "random_seed": "--random-seed",
    "tool_call_parser": "--tool-call-parser",
    "reasoning_parser": "--reasoning-parser",
    "watchdog_seconds": "--watchdog-timeout",
    "min_free_slots": "--min-free-slots-delay",
}
# flags that are there or not
_SWITCHES: Mapping[str, tuple[str, ...]] = {
    "trust_remote_code": ("--trust-remote-code",),
    "decoder_replay": ("--enable-decoder-swa-bounded-replay",),
    "sleep_on_idle": ("--sleep-on-idle",),
    "fp4_indexer": ("--enable-deepseek-v4-fp4-indexer",),
    "cache_report": ("--enable-cache-report",),
    "metrics": ("--enable-metrics", "--enable-metrics-for-all-schedulers"),
}
_VARIABLES: Mapping[str, str] = {
    "fused_finalize": "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE",
    "engram_host_table": "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE",
    "rust_build": "SGLANG_RUST_BUILD_MODE",
    "ragged_verify": "SGLANG_RAGGED_VERIFY_MODE",
    "cuda_device_order": "CUDA_DEVICE_ORDER",
    "folded_sampling": "SGLANG_DSPARK_FOLDED_SAMPLING",
    "roce_allreduce": "SGLANG_ROCE_ALLREDUCE",
    "roce_max_size": "SGLANG_ROCE_MAX_SIZE",
}


def render(profile: Profile, fleet: Fleet, rank: int) -> Launch:
    """One rank's launch; ranks differ in --node-rank, their network and the key file."""
    build = tree(profile.tree, engine="sglang", where=profile.where)
    return Launch(
        argv=(build.python, "-m", "sglang.launch_server", *_flags(profile, fleet, rank)),
        env=_environment(profile, fleet, rank, build),
        mounts=container.mounts(fleet, rank, tree=build),
        options=container.options(profile),
        own_flags=frozenset({"--node-rank", plugin.KEY_VARIABLE}) | fabric.OWN,
        cache=container.CACHE,
    )


def _flags(profile: Profile, fleet: Fleet, rank: int) -> list[str]:
    argv = ["--model-path", container.MODEL]
    for knob, flag in _VALUES.items():
        value = profile.get(knob)
        if value is not None:
            argv += [flag, str(value)]
    for knob, flags in _SWITCHES.items():
        argv += flags if profile.on(knob) else ()
    argv += _loader(profile) + _drafts(profile, fleet)
    argv += ["--host", fleet.api_host, "--port", str(fleet.api_port)]
    head = fleet.nodes[0].address
    argv += ["--nnodes", str(len(fleet.nodes)), "--node-rank", str(rank)]
    return [*argv, "--dist-init-addr", f"{head}:{fleet.master_port}"]


def _loader(profile: Profile) -> list[str]:
    threads = profile.get("loader_threads")
    argv = []
    if threads is not None:
        config = json.dumps({"num_threads": threads}, separators=(",", ":"))
        argv += ["--model-loader-extra-config", config]
    if profile.get("loader_mmap") is False:
        argv += ["--weight-loader-disable-mmap"]
    return argv


def _drafts(profile: Profile, fleet: Fleet) -> list[str]:
    if profile["drafter"] == "off":
        return []
    argv = ["--speculative-algorithm", "DSPARK"]
    argv += ["--speculative-dspark-block-size", str(profile["draft_window"])]
    if profile.on("block_verify"):
        argv += ["--speculative-use-block-verification"]
    if fleet.sps_table:
        argv += ["--speculative-dspark-sps-table-path", container.TABLES["sps_table"]]
    if fleet.sts_table:
        argv += ["--speculative-dspark-confidence-sts-path", container.TABLES["sts_table"]]
    return argv


def _environment(profile: Profile, fleet: Fleet, rank: int, build: Tree) -> dict[str, str]:
    node = fleet.nodes[rank]
    expandable = bool(profile.get("expandable_segments"))
    roce = {"B12X_ROCE_CACHE_DIR": f"{container.CACHE}/b12x-roce"}
    return {
        **container.CACHE_ENVIRONMENT,
        "SGLANG_CACHE_DIR": f"{container.CACHE}/sglang",
        "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}",
        "HOST_IP": node.address,
        "SGLANG_HOST_IP": node.address,
        **fabric.environment(profile, node),
        **fabric.variables(profile, _VARIABLES),
        **plugin.environment(profile, fleet, rank, build),
        **_output_cap(profile),
        **(roce if profile.on("b12x_roce_cache") else {}),
    }


def _output_cap(profile: Profile) -> dict[str, str]:
    """The engine's own limit, for chats, completions and its native API; it has none for 0."""
    limit = profile.get("max_new_tokens")
    return {"SGLANG_MAX_NEW_TOKENS_LIMIT": str(limit)} if limit else {}
