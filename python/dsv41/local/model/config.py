"""The model's configuration: the official keys of config.json, typed, whatever their values.

Keys and composite form (text_config, vision_config, quantization_config): config.json of
deepseek-ai/DeepSeek-V4.1-Flash.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dsv41.errors import UsageError
from dsv41.geometry import Engram

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FIX = "put the whole checkpoint folder in place; the fixture is remade when its folder is removed"


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """YaRN of the layers with compressed keys; it changes frequencies only."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Every value the model needs, under its official name; `raw` is the whole file.

    `compress_ratios` may hold draft entries behind the layers': the first `num_hidden_layers`
    entries are the layers'.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling
    sliding_window: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_vocab_size: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @cached_property
    def engram(self) -> Engram:
        """The Engram geometry that the text configuration describes."""
        return Engram.from_config(self.raw["text_config"])

    @classmethod
    def from_file(cls, directory: Path) -> ModelConfig:
        """Read `config.json` of a checkpoint folder.

        Raises UsageError D042 when the file is missing, is no JSON or lacks a key.
        """
        path = directory / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError("D042", f"{path} cannot be read: {error}.", fix=FIX) from error
        return cls.from_dict(raw, source=str(path))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, source: str = "config.json") -> ModelConfig:
        """Build from the parsed composite form; `source` is named in errors.

        Raises UsageError D042 when a key is missing.
        """
        text = raw.get("text_config")
        if not isinstance(text, dict):
            raise UsageError(
                "D042", f"{source} has no text_config: not the composite form.", fix=FIX
            )
        wanted = [item.name for item in fields(cls) if item.name != "raw"]
        missing = [name for name in wanted if name not in text]
        if missing:
            raise UsageError(
                "D042", f"{source} lacks text_config keys: {', '.join(missing)}.", fix=FIX
            )
        return cls(**{name: _typed(name, text[name]) for name in wanted}, raw=raw)


def _typed(name: str, value: Any) -> Any:
    """Lists become tuples; the rope table its type. JSON leaves everything else as it must be."""
    if name == "rope_scaling":
        return RopeScaling(**{item.name: value[item.name] for item in fields(RopeScaling)})
    return tuple(value) if isinstance(value, list) else value
