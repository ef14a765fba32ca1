"""Boot logs as the engines write them, made from the lines of published boots, rank by rank."""

from dataclasses import dataclass

DAY = "2026-09-11"
SGLANG_REQUEST = (
    "server_args={{'model_path': '/models/DeepSeek-V4.1-Flash', 'context_length': {context}, "
    "'max_running_requests': {slots}, 'max_queued_requests': None, 'max_total_tokens': {pool}, "
    "'chunked_prefill_size': {chunk}, 'max_prefill_tokens': 16384, 'page_size': 256, "
    "'api_key': 'sk-very-secret', 'speculative_dspark_block_size': 5, 'tp_size': {tp}}}"
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    pool: int = 750_000
    slots: int = 4
    chunk: int = 768
    context: int = 262_144
    tp: int = 3


SGLANG = """\
{request}
Init torch distributed begin.
sglang is using nccl==2.30.7
CustomAllreduce is disabled because this process group spans across nodes.
Init torch distributed ends. elapsed=1.33 s, mem usage=0.61 GB
Load weight begin. avail mem=111.47 GB
\rMulti-thread loading shards:  88% Completed | 42/48 [00:56<00:03,  1.50it/s]\r\
Multi-thread loading shards: 100% Completed | 48/48 [00:56<00:00,  1.18s/it]
Load weight end. elapsed=541.76 s, type=DeepseekV4ForCausalLM, avail mem=17.47 GB.
Initialized DSpark draft runner. attention_backend=dsv4, gamma={window}, \
verify_num_draft_tokens={verify}, query_token_num={window}
DSV4 memory calculation: bytes_per_full_token=1670.75, available_bytes=8.84 GB, \
c128_state_fixed=0.00 GB, swa_fixed=0.30 GB, full_token=5491200
Memory pool end. avail mem=9.90 GB
Running FlashInfer autotune with cache: /root/.cache/sglang/rank_tp0_pp0_dp0.json
FlashInfer autotune completed.
Capture target verify CUDA graph begin. backend=full, bs=[1, 2, 3, 4], avail mem=8.20 GB
Capture target verify CUDA graph end. elapsed=13.48 s, mem usage=0.58 GB.
max_total_num_tokens={pool}, chunked_prefill_size={chunk}, max_prefill_tokens=16384, \
max_running_requests={slots}, context_len={context}, available_gpu_mem=7.68 GB
INFO:     Uvicorn running on http://0.0.0.0:8888 (Press CTRL+C to quit)
The server is fired up and ready to roll!
"""
VLLM = """\
(APIServer pid=1) INFO 09-10 18:46:27 [utils.py:233] non-default args: \
{{'api_key': ['sk-very-secret'], 'max_model_len': 430080, 'max_num_seqs': {slots}, \
'max_num_batched_tokens': 8192, 'speculative_config': {{'num_speculative_tokens': 5}}}}
(EngineCore pid=80) INFO [core.py:114] Initializing a V1 LLM engine (v0.33.0) with config: \
model='/models/DeepSeek-V4.1-Flash', speculative_config=SpeculativeConfig(method='dspark', \
num_spec_tokens=5), max_seq_len={context}, tensor_parallel_size=4
(EngineCore pid=80) INFO Chunked prefill is enabled with max_num_batched_tokens=8192.
(Worker_TP0 pid=83) INFO [parallel_state.py:1208] world_size=4 rank=0 local_rank=0 \
distributed_init_method=tcp://10.0.0.1:29541 backend=nccl
(Worker_TP0 pid=83) INFO rank 0 in world size 4 is assigned as DP rank 0, PP rank 0, TP rank 0
(Worker_TP0 pid=83) INFO Starting to load model /models/DeepSeek-V4.1-Flash...
Loading safetensors checkpoint shards: 100% Completed | 48/48 [04:01<00:00,  5.0s/it]
(Worker_TP0 pid=83) INFO Model loading took 85.71 GiB memory and 301.2 seconds
(Worker_TP0 pid=83) INFO Available KV cache memory: 10.94 GiB
(EngineCore pid=80) INFO GPU KV cache size: {pool} tokens, \
Maximum concurrency for 430,080 tokens per request: 5.07x
Capturing CUDA graphs (decode, FULL): 100%
(Worker_TP0 pid=83) INFO Graph capturing finished in 45 secs, took 0.54 GiB
(APIServer pid=1) INFO Starting vLLM server on http://0.0.0.0:8000
(APIServer pid=1) INFO:     Application startup complete.
"""


def sglang(
    asked: Asked | None = None, *, pool: int = 749_824, slots: int = 4, window: int = 5
) -> str:
    """The head's log of a boot that became ready; `pool` and `slots` are what came out."""
    asked = asked or Asked()
    came = {"pool": pool, "slots": slots, "chunk": asked.chunk, "context": asked.context}
    request = SGLANG_REQUEST.format(**vars(asked))
    text = SGLANG.format(request=request, window=window, verify=window + 1, **came)
    return stamped(text.split("\n")[:-1], rank=0)


def sglang_worker(rank: int) -> str:
    """A worker's log: no limits, no HTTP server, a dummy health server at the end."""
    kept = [line for line in sglang().split("\n") if "max_total_num" not in line]
    text = "\n".join(kept[:-3]).replace("TP0 EP0", f"TP{rank} EP{rank}")
    return f"{text}\n[{DAY} 23:46:51] Dummy health check server started in background thread\n"


def stamped(lines: list[str], *, rank: int) -> str:
    stamp = f"[{DAY} 23:34:{{:02}} TP{rank} EP{rank}] "
    return "".join(f"{stamp.format(n)}{line}\n" for n, line in enumerate(lines))


def vllm(*, context: int = 430_080, pool: str = "2,182,642", slots: int = 8) -> str:
    """The head's log of a cycle boot that became ready."""
    return VLLM.format(context=context, pool=pool, slots=slots)
