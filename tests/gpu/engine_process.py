"""One vLLM engine in a process of its own, asked over a socket by the tests.

    python engine_process.py ADDRESS NAME

It connects to the address, sends ("ready", seconds) and then answers requests (name, arguments).
`NAME` is one of ENGINES; rows come from files where DSV41_PACKED_DIR is set.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Client
from typing import Any

# Answers are the same bits everywhere only with prefill chunks of up to 128 tokens and contexts
# below index_topk 512: larger ones differ between two runs of vLLM's own kernels.
COMMON: dict[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "block_size": 64,
    "limit_mm_per_prompt": {"image": 0},
    "enable_prefix_caching": False,
    "gpu_memory_utilization": 0.3,
    "kv_cache_memory_bytes": 3_000_000_000,
    "kernel_config": {"enable_jit_warmup": False},
    "seed": 0,
    "tokenizer_mode": "deepseek_v41",
    "disable_log_stats": False,
}
EAGER: dict[str, Any] = {"enforce_eager": True}
PIECEWISE: dict[str, Any] = {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}
FULL: dict[str, Any] = {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}}
DSPARK: dict[str, Any] = FULL | {
    "speculative_config": {"method": "dspark", "num_speculative_tokens": 5}
}
# NVLink multicast is left alone: NCCL carries every collective
TWO: dict[str, Any] = FULL | {"tensor_parallel_size": 2, "disable_custom_all_reduce": True}
MODES: dict[str, dict[str, Any]] = {
    "eager": EAGER,
    "piecewise": PIECEWISE,
    "full": FULL,
    "inline": FULL | {"engram_config": {"cpu_offload": False}},
    "dspark": DSPARK,
    "two": TWO,
    "two-dspark": TWO | DSPARK,
}


def settings(mode: str, model: str) -> dict[str, Any]:
    """Arguments of `LLM` for a mode."""
    return {"model": model, **COMMON, **MODES[mode]}


class Engine:
    """What the tests may ask."""

    def __init__(self, mode: str, model: str) -> None:
        from vllm import LLM  # noqa: PLC0415 - half a minute

        self.llm = LLM(**settings(mode, model))

    def answers(self, prompts: list[list[int]], tokens: int) -> list[Any]:
        """Greedy answers: for each prompt its token ids and, a token, the five best with logprobs.

        Logprobs are given in hexadecimal, so that they are compared to the last bit.
        """
        found = self._generate(prompts, tokens=tokens, logprobs=5)
        return [
            [
                list(one.token_ids),
                [
                    sorted((token, value.logprob.hex()) for token, value in step.items())
                    for step in one.logprobs
                ],
            ]
            for one in found
        ]

    def seconds(self, prompts: list[list[int]], tokens: int) -> float:
        """Wall time of one call."""
        begin = time.perf_counter()
        self._generate(prompts, tokens=tokens)
        return time.perf_counter() - begin

    def _generate(self, prompts: list[list[int]], *, tokens: int, **more: Any) -> list[Any]:
        from vllm import SamplingParams  # noqa: PLC0415 - as above

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, **more)
        asked: Any = [{"prompt_token_ids": ids} for ids in prompts]
        return [done.outputs[0] for done in self.llm.generate(asked, params, use_tqdm=False)]

    def _tables(self) -> list[Any]:
        """The Engram tables, in an engine whose worker is this process (one rank)."""
        engine: Any = self.llm.llm_engine
        model = engine.model_executor.driver_worker.worker.model_runner.get_model()
        return [part.embed_tokens for part in model.modules() if hasattr(part, "embed_tokens")]

    def tables(self) -> list[dict[str, Any]]:
        """Per Engram table: its class, its rows in memory, and what its store counted."""
        found = [table for table in self._tables() if hasattr(table, "part_n_hash_cols")]
        return [
            {
                "class": type(table).__name__,
                "resident": len(table.weight),
                "stats": table.file.store.stats() if hasattr(table, "file") else None,
            }
            for table in found
        ]

    def ahead(self) -> dict[str, int]:
        """What the rows read early came to; empty where nothing is read early."""
        (table, *_) = [table for table in self._tables() if hasattr(table, "part_n_hash_cols")]
        together = getattr(table, "together", None)
        if together is None:
            return {}
        counts = vars(together.chunks.counts) if together.chunks else {}
        return {"early": together.early, "alone": together.alone, **counts}

    def name_chunks(self, on: bool) -> None:
        """Turn the next chunk's rows on or off in a running engine that has them."""
        from dsv41.adapters.vllm import engram_ahead  # noqa: PLC0415 - as above

        (table, *_) = [table for table in self._tables() if hasattr(table, "part_n_hash_cols")]
        engram_ahead._chunks[:] = [table.together.chunks] if on else []

    def lookups(self, batches: int) -> list[str]:
        """Digests of what each table gives for the same random ids."""
        from hashlib import sha256  # noqa: PLC0415 - beside what it is for

        import torch  # noqa: PLC0415 - as above

        digests = []
        for table in [table for table in self._tables() if hasattr(table, "part_n_hash_cols")]:
            random = torch.Generator().manual_seed(11)
            digest = sha256()
            for _ in range(batches):
                # any row for any column, and ids below and beyond the table as in warm-up runs
                ids = torch.randint(-50, 128_500, (128, 24), generator=random, dtype=torch.int32)
                ids = ids.cuda()
                out = torch.full((128, table.part_n_hash_cols, 256), 7.0, dtype=torch.bfloat16)
                out = out.cuda()
                table.lookup(ids, out)
                digest.update(out.cpu().view(torch.int16).numpy().tobytes())
            digests.append(digest.hexdigest())
        return digests

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """The prompt's token ids as the engine's own chat template makes them."""
        from vllm import SamplingParams  # noqa: PLC0415 - as above

        asked: Any = messages
        (done,) = self.llm.chat(asked, SamplingParams(max_tokens=1), use_tqdm=False)
        return list(done.prompt_token_ids or ())

    def metrics(self) -> dict[str, float]:
        """Counters of speculative decoding."""
        return {
            metric.name: getattr(metric, "value", 0.0)
            for metric in self.llm.get_metrics()
            if "spec_decode" in metric.name
        }


def main() -> None:
    """Serve one test session."""
    address, mode = sys.argv[1:3]
    begin = time.perf_counter()
    with Client(address, "AF_UNIX") as connection:
        engine = Engine(mode, os.environ["DSV41_GPU_MODEL"])
        connection.send(("ready", time.perf_counter() - begin))
        while True:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            connection.send(getattr(engine, name)(*arguments))


if __name__ == "__main__":  # two ranks: workers import this file
    main()
