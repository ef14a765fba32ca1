"""SGLang's own server, detokenizer, tokenizer manager and HTTP app, with a scheduler from a script.

`python scripted_sglang.py FOLDER PORT [ARGUMENTS]` starts it. Only the model is missing: requests,
their finish state, their cap and what is sent on are SGLang's own. The script answers

- a prompt with `LOOP:text|` by that text without end, five tokens a step as with drafts;
- one with `COUNT` by different tokens without end;
- any other by "Thought." after some reasoning, or "Plain.", as the prompt opened it.
"""
# ruff: noqa: PLC0415 - SGLang is imported in the order in which its own launcher does it

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import count, cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zmq  # type: ignore[import-not-found, unused-ignore]

import engine_cpu

STEP = 5  # tokens a speculative step brings
END = 1  # end of sentence
assert engine_cpu.OPERATORS is not None


def write_model(folder: Path) -> Path:
    """config.json and tokenizer of the local engine's fixture; there are no weights."""
    from dsv41.local.fixture import geometries, tokenizer_files

    folder.mkdir(parents=True, exist_ok=True)
    files = tokenizer_files.tokenizer_files(tokenizer_files.packed_tokenizer())
    files["config.json"] = json.dumps(geometries.config("fixture")).encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def answer(tokenizer: Any, prompt: list[int]) -> Iterator[int]:
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    if found := re.search(r"LOOP:(.*?)\|", text, re.DOTALL):
        return cycle(tokenizer.encode(found[1], add_special_tokens=False))
    if "COUNT" in text:
        return (1000 + number % 100_000 for number in count())
    reply = "Some reasoning.</think>Thought." if text.endswith("<think>") else "Plain."
    return iter([*tokenizer.encode(reply, add_special_tokens=False), END])


class Scheduler:
    """Answers one request after the other, each to its end."""

    def __init__(self, server_args: Any, port_args: Any) -> None:
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.environ import envs
        from sglang.srt.managers.io_struct import sock_send
        from sglang.srt.managers.scheduler_components.output_streamer import (
            SchedulerOutputStreamer,
        )
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        context = zmq.Context()
        self.incoming = context.socket(zmq.PULL)
        self.incoming.connect(port_args.scheduler_input_ipc_name)
        outgoing = context.socket(zmq.PUSH)
        outgoing.connect(port_args.detokenizer_ipc_name)
        self.tokenizer = get_tokenizer(server_args.model_path)
        self.streamer = SchedulerOutputStreamer(
            send_to_detokenizer=SimpleNamespace(
                send_output=lambda payload, *_: sock_send(outgoing, payload)
            ),
            tree_cache=None,
            server_args=server_args,
            is_generation=True,
            spec_algorithm=SpeculativeAlgorithm.from_string(None),
            disaggregation_mode=DisaggregationMode.NULL,
            enable_hicache_storage=lambda: False,
        )
        # what Scheduler.init_req_max_new_tokens reads
        self.limits = SimpleNamespace(
            max_new_tokens_limit=envs.SGLANG_MAX_NEW_TOKENS_LIMIT.get(),
            max_req_len=4096,
            max_total_num_tokens=65_536,
            kv_shard_widening=1,
            page_size=256,
            sliding_window_size=None,
            chunked_prefill_size=None,
            token_to_kv_pool_allocator=SimpleNamespace(
                max_new_tokens_for_memory=lambda _, wanted, **__: wanted
            ),
        )

    def run(self) -> None:
        from sglang.srt.managers.io_struct import sock_recv

        while True:
            message = sock_recv(self.incoming)
            for one in getattr(message, "batch", [message]):
                if type(one).__name__ == "TokenizedGenerateReqInput":
                    self.serve(one)

    def serve(self, received: Any) -> None:
        from sglang.srt.managers import scheduler
        from sglang.srt.managers.schedule_batch import Req

        req = Req(
            received.rid,
            received.input_text,
            received.input_ids,
            received.sampling_params,
            stream=received.stream,
            eos_token_ids={END},
            vocab_size=129_280,
            http_worker_ipc=received.http_worker_ipc,
            time_stats=received.time_stats,
        )
        req.tokenizer = self.tokenizer
        scheduler.Scheduler.init_req_max_new_tokens(self.limits, req)
        tokens = answer(self.tokenizer, list(req.origin_input_ids))
        while not req.finished():
            step = list(islice(tokens, STEP))
            req.output_ids.extend(step)
            req.update_finish_state(len(step))
            self.streamer.stream_output([req], return_logprob=False)


def run_scheduler(server_args: Any, port_args: Any, *rest: Any) -> None:
    from sglang.srt.managers.scheduler import SpawnRanks, publish, spawn_world_rank
    from sglang.srt.plugins import load_plugins

    load_plugins()
    world_rank = spawn_world_rank(server_args, tp_rank=0, pp_rank=0)
    ranks = SpawnRanks(world_rank=world_rank, dp_rank=None, gpu_id=0)
    publish(server_args, role="scheduler", ranks=ranks)
    scheduler = Scheduler(server_args, port_args)
    (pipe,) = [one for one in rest if isinstance(one, Connection)]
    ready = {"status": "ready", "max_total_num_tokens": 65_536, "max_req_input_len": 4000}
    pipe.send({**ready, "startup_time": 0.0})
    scheduler.run()


def main(folder: str, port: str, *flags: str) -> None:
    """As sglang/launch_server.py begins, then with the scheduler from above."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    argv = ["--model-path", folder, "--device", "cpu", "--host", "127.0.0.1", "--port", port]
    argv += ["--tool-call-parser", "deepseekv41", "--reasoning-parser", "deepseek-v41"]
    server_args = prepare_server_args([*argv, *flags])
    from sglang.srt.entrypoints.http_server import launch_server

    launch_server(server_args, run_scheduler_process_func=run_scheduler)


if __name__ == "__main__":
    main(*sys.argv[1:])
