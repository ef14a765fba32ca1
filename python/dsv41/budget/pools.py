"""KV pools, NCCL buffers, CUDA graphs, prefill: the engines' formulas and published runs."""

from __future__ import annotations

from fractions import Fraction

from dsv41.budget.weights import GIB
from dsv41.geometry import REAL_ENGRAM, kv_bytes_per_token, kv_pool_bytes, kv_pool_tokens
from dsv41.profile import Profile

MIB = 1 << 20

# SGLang 0.5.23 takes 100 MB of the budget for image features (SGLANG_VLM_CACHE_SIZE_MB)
IMAGE_RESERVE = 100 * MIB
# boot lines: swa_fixed is 0.34 GB at 4 slots and 0.67 at 8; the release's formula stays below
WINDOW_BYTES_PER_SLOT = int(0.67 * GIB) // 8

# vLLM, the cycle's records: 0.85 -> 0.83 of memory took 902,964 tokens, and 10.94 GiB held
# 2,182,642 at 8 slots and 8,192 batched tokens, so 5.06 GiB do not grow with the context
VLLM_TOKEN_BYTES = 2894
VLLM_WINDOW_BYTES = int(10.94 * GIB) - 2_182_642 * VLLM_TOKEN_BYTES
VLLM_SLOTS, VLLM_BATCH = 8, 8192
# 16,384 batched tokens left 1.84 GiB where 8,192 left 8.39 (0.80 of memory, 300,000 tokens)
VLLM_BYTES_PER_BATCHED_TOKEN = int((8.39 - 1.84) * GIB) // (16384 - 8192)
# what is then missing from 10.94 GiB at 430,080 tokens is laid to workspaces of the context
VLLM_BYTES_PER_CONTEXT_TOKEN = 3649

GRAPH_BYTES = int(0.54 * GIB)  # vLLM at 8 streams (SR-PR261); SGLang publishes no figure
GRAPH_ESTIMATE_BYTES = int(1.52 * GIB)  # what vLLM's estimate reserves instead when it is on

# one NCCL connection buffer at NCCL's defaults: LL 8 lines x 512 threads x 8 steps x 16 B, LL128
# 120 x 640 x 8 x 8 B, Simple 4 MiB = 9.19 MiB; 512 of them at default channels (MIA-README)
LL_BUFFER, LL128_BUFFER, SIMPLE_BUFFER = 512 * 1024, 4_915_200, 4 * MIB
DEFAULT_BUFFERS = 512
# 139 MB with 1 MiB, 256 KiB and 8 channels (MIA-README) are 76 buffers of 1.75 MiB
BUFFERS_PER_CHANNEL = Fraction(76, 8)

INDEXER_BYTES = 14  # per chunk token and prefix token without the bounded indexer (MIA-README)
# with it: 4,096 x 1M went down to 6,029 MiB free, 4,096 x 262k to 7 GiB (MIA-README, four Sparks)
BOUNDED_BYTES_PER_CHUNK_TOKEN = int(2.607 * MIB)
BOUNDED_BYTES_PER_PAIR = Fraction(37, 100)

# rows of the next chunk (engram_ahead = 2): an id and a row of 264 B in each of four slots, and a
# cache of four chunks, 280 B a row (dsv41.adapters.chunks)
AHEAD_CHUNK, AHEAD = 2, 4
AHEAD_ID_BYTES, AHEAD_CACHED_BYTES = 8 + 264, 280


def nccl_bytes(profile: Profile) -> int:
    """Pinned buffers of one rank, from the buffer settings."""
    simple = profile.get("nccl_buffer_bytes") or SIMPLE_BUFFER
    ll128 = profile.get("nccl_ll128_bytes") or LL128_BUFFER
    channels = profile.get("nccl_max_channels")
    count = DEFAULT_BUFFERS if channels is None else BUFFERS_PER_CHANNEL * int(channels)
    return int((int(simple) + int(ll128) + LL_BUFFER) * count)


def rows_bytes(profile: Profile) -> int:
    """Engram rows kept in memory: the cache, and chunks read ahead."""
    ahead = 0
    cache = int(float(profile.get("row_cache_gib") or 0) * GIB)
    if profile.get("engram_ahead") == AHEAD_CHUNK:
        columns = -(-REAL_ENGRAM.columns // profile.integer("tp"))
        ids = AHEAD * len(REAL_ENGRAM.layer_ids) * columns * profile.integer("chunk")
        ahead, cache = ids * AHEAD_ID_BYTES, max(cache, ids * AHEAD_CACHED_BYTES)
    return cache + ahead


def graph_bytes(profile: Profile) -> int:
    """CUDA graphs of decode; none in eager mode."""
    if profile.on("eager"):
        return 0
    return GRAPH_ESTIMATE_BYTES if profile.on("estimate_cudagraphs") else GRAPH_BYTES


def prefill_bytes(profile: Profile, *, bounded: bool) -> int:
    """What one prefill chunk takes at the end of a full context, above what serving takes."""
    chunk = profile.integer("chunk")
    pairs = chunk * profile.integer("context")
    unbounded = INDEXER_BYTES * pairs
    if not bounded:
        return unbounded
    return min(
        unbounded, int(BOUNDED_BYTES_PER_CHUNK_TOKEN * chunk + BOUNDED_BYTES_PER_PAIR * pairs)
    )


def token_bytes(profile: Profile) -> Fraction:
    """Bytes of SGLang's full pool a token; the draft widens it by one layer in forty."""
    return kv_bytes_per_token(draft_layers=0 if profile["drafter"] == "off" else 1)


def sglang_pool(profile: Profile, *, left: int) -> tuple[int, int]:
    """(tokens, bytes) of SGLang's full pool when `left` bytes are left for both pools.

    The engine takes what was asked, or less where the formula gives less; 0 when nothing is left.
    """
    each = token_bytes(profile)
    room = kv_pool_tokens(max(left - window_bytes(profile), 0), per_token=each)
    tokens = min(profile.integer("pool_tokens"), room)
    return tokens, kv_pool_bytes(tokens, per_token=each)


def window_bytes(profile: Profile) -> int:
    """The sliding-window pool, which does not grow with the context."""
    slots = profile.integer("slots")
    if profile.engine == "vllm":
        batch = Fraction(profile.integer("chunk"), VLLM_BATCH)
        return int(VLLM_WINDOW_BYTES * Fraction(slots, VLLM_SLOTS) * batch)
    return WINDOW_BYTES_PER_SLOT * slots


def vllm_activation_bytes(profile: Profile) -> int:
    """What vLLM's memory profile finds beside weights and graphs."""
    batched = VLLM_BYTES_PER_BATCHED_TOKEN * profile.integer("chunk")
    return batched + VLLM_BYTES_PER_CONTEXT_TOKEN * profile.integer("context")


def vllm_pool(profile: Profile, *, left: int) -> tuple[int, int]:
    """(tokens, bytes) of vLLM's full groups when `left` bytes are left for the whole cache."""
    room = max(left - window_bytes(profile), 0)
    return room // VLLM_TOKEN_BYTES, room
