"""The model's numbers and all shard arithmetic. Pure: no I/O, no third-party import at load."""

from __future__ import annotations

from dsv41.geometry.engram import (
    MULTIPLIERS,
    REAL_ENGRAM,
    Engram,
    multipliers_of,
    prime_walk,
)
from dsv41.geometry.kv import (
    index_key_bytes,
    kv_bytes_per_token,
    kv_pool_bytes,
    kv_pool_tokens,
    latent_bytes,
)
from dsv41.geometry.ngram import carry, hash_columns, row_ids, windows
from dsv41.geometry.padding import (
    LAYOUTS,
    LEGAL_LOCAL_HEADS,
    AttentionPadding,
    ExpertPadding,
    VocabPadding,
    pad_attention,
    pad_experts,
    pad_vocab,
    selection_bias,
)
from dsv41.geometry.partition import (
    DEFAULT_PARTITION,
    PARTITIONS,
    UNIQUE_PER_MILLE,
    Partition,
    Range,
    column_owners,
    expected_load,
    partition,
)
from dsv41.geometry.shard import Shard, real_span
from dsv41.geometry.token_map import (
    RELEASED_TOKEN_MAP,
    RENAMED_TOKENS,
    TokenMapDigest,
    check_token_map,
    normalizer,
    released_tokenizer,
    token_map,
    token_map_bytes,
    token_map_digest,
)

__all__ = [
    "DEFAULT_PARTITION",
    "LAYOUTS",
    "LEGAL_LOCAL_HEADS",
    "MULTIPLIERS",
    "PARTITIONS",
    "REAL_ENGRAM",
    "RELEASED_TOKEN_MAP",
    "RENAMED_TOKENS",
    "UNIQUE_PER_MILLE",
    "AttentionPadding",
    "Engram",
    "ExpertPadding",
    "Partition",
    "Range",
    "Shard",
    "TokenMapDigest",
    "VocabPadding",
    "carry",
    "check_token_map",
    "column_owners",
    "expected_load",
    "hash_columns",
    "index_key_bytes",
    "kv_bytes_per_token",
    "kv_pool_bytes",
    "kv_pool_tokens",
    "latent_bytes",
    "multipliers_of",
    "normalizer",
    "pad_attention",
    "pad_experts",
    "pad_vocab",
    "partition",
    "prime_walk",
    "real_span",
    "released_tokenizer",
    "row_ids",
    "selection_bias",
    "token_map",
    "token_map_bytes",
    "token_map_digest",
    "windows",
]
