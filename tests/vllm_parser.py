"""Run by the Python that has SGLang, with vLLM's files on its path (make test-flags).

Reads {"argv": [[...], ...], "variables": [...]} from stdin, writes one JSON document to stdout.
"""
# ruff: noqa: T201 - a program of another environment

import json
import os
import sys
from importlib import import_module
from typing import Any

from sglang_parser import declare_torchvision_ops

SHOWN = (
    "model_tag",
    "headless",
    "served_model_name",
    "tensor_parallel_size",
    "nnodes",
    "node_rank",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "block_size",
    "enforce_eager",
    "language_model_only",
    "speculative_config",
    "limit_mm_per_prompt",
    "default_chat_template_kwargs",
    "tool_call_parser",
    "reasoning_parser",
    "api_key",
)


def shown(parsed: Any) -> dict[str, Any]:
    """The plain values, and out of the parsed configuration objects what was asked for."""
    found = {name: getattr(parsed, name) for name in SHOWN}
    graphs = parsed.compilation_config
    found["capture_sizes"] = graphs.cudagraph_capture_sizes
    found["indexer_topk"] = parsed.kernel_config.sparse_indexer_topk_backend
    found["engram_cpu_offload"] = parsed.engram_config.cpu_offload
    return found


def main() -> None:
    """Answer the question on stdin."""
    question = json.load(sys.stdin)
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    kept = declare_torchvision_ops()
    make: Any = import_module("vllm.entrypoints.common.cli_args").make_arg_parser
    parser = make(import_module("vllm.utils.argparse_utils").FlexibleArgumentParser())
    known = import_module("vllm.envs").environment_variables
    answer = {
        "parsed": [shown(parser.parse_args(argv)) for argv in question["argv"]],
        "variables": [name for name in question["variables"] if name in known],
    }
    print("\nANSWER " + json.dumps(answer))
    del kept


if __name__ == "__main__":
    main()
