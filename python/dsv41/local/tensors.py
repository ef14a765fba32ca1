"""Which tensors a checkpoint of the released form has: names, shapes, formats, scales of values.

Names and shapes: the released checkpoint of deepseek-ai/DeepSeek-V4.1-Flash (no `model.` prefix;
every FP8 or FP4 `.weight` has a `.scale` beside it). Scales of values are chosen so that attention,
experts and Engram add like amounts to the residual streams (fixture, 100 random tokens: spreads 0.5
to 1.5, streams 1.2 to 3.8) and the Engram gate stays within 0.1..0.9: each of them really changes
the result (final states change by 0.5 to 0.9 of their norm when one is left out).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from dsv41.local.grid import ITEM_BYTES, Dtype, Grid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41.local.config import ModelConfig

    Specs = Iterator["TensorSpec"]

BLOCK = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One tensor of the checkpoint. FP4 pairs are I8 of half the columns."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    grid: Grid

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.count * ITEM_BYTES[self.dtype]


# Mean squares of the integer grids, times 1.75 for exponents base + {-1, 0, 1}.
_FP8_SQUARE = 85 * 1.75
_FP4_SQUARE = 8.5625 * 1.75
_ODD255_SQUARE = 21845.0


def specs(config: ModelConfig) -> Specs:
    """All tensors of the checkpoint in file order; the output head comes last."""
    hidden = config.hidden_size
    yield _bf16("embed.weight", (config.vocab_size, hidden), Grid(kind="odd255", exponent=-7))
    for layer in range(config.num_hidden_layers):
        yield from _layer(config, layer)
    for name in ("image_start", "image_end", "image_newline"):
        yield _bf16(name, (hidden,), Grid(kind="odd255", exponent=-7))
    yield _norm("norm.weight", hidden)
    yield _bf16("head.weight", (config.vocab_size, hidden), _odd(hidden, gain=1))


def _layer(config: ModelConfig, layer: int) -> Specs:
    prefix = f"layers.{layer}."
    yield _norm(f"{prefix}attn_norm.weight", config.hidden_size)
    yield _norm(f"{prefix}ffn_norm.weight", config.hidden_size)
    yield from _hyper(f"{prefix}hc_attn_", config)
    yield from _hyper(f"{prefix}hc_ffn_", config)
    yield from _attention(f"{prefix}attn.", config)
    if layer in config.kv_source_layer_ids:
        yield from _source(f"{prefix}attn.", config, pooled=config.compress_ratios[layer] > 1)
    if layer in config.index_source_layer_ids:
        yield from _indexer(f"{prefix}attn.indexer.", config)
    yield from _experts(f"{prefix}ffn.", config)
    if layer in config.engram_layer_ids:
        place = config.engram_layer_ids.index(layer)
        yield from _engram(f"{prefix}engram.", config, rows=config.engram_num_embeddings[place])


def _hyper(prefix: str, config: ModelConfig) -> Specs:
    """Coefficients of the hyper-connections: pre and post of each stream, and the mixing matrix."""
    mult = config.hc_mult
    out, width = (2 + mult) * mult, mult * config.hidden_size
    yield _f32(f"{prefix}fn", (out, width), _odd(width))
    yield _f32(f"{prefix}base", (out,), Grid(kind="odd255", exponent=-9))  # spread 0.3
    yield _f32(f"{prefix}scale", (3,), Grid(kind="near_one"))


def _attention(prefix: str, config: ModelConfig) -> Specs:
    heads, dim, groups = config.num_attention_heads, config.head_dim, config.o_groups
    yield from _fp8(f"{prefix}wq_a", config.q_lora_rank, config.hidden_size)
    yield _norm(f"{prefix}q_norm.weight", config.q_lora_rank)
    yield from _fp8(f"{prefix}wq_b", heads * dim, config.q_lora_rank)
    yield from _fp8(f"{prefix}wkv", dim, config.hidden_size)
    yield _norm(f"{prefix}kv_norm.weight", dim)
    yield from _fp8(f"{prefix}wo_a", groups * config.o_lora_rank, heads // groups * dim)
    yield from _fp8(f"{prefix}wo_b", config.hidden_size, groups * config.o_lora_rank, gain=2)
    yield _f32(f"{prefix}attn_sink", (heads,), Grid(kind="odd255", exponent=-8))


def _source(prefix: str, config: ModelConfig, *, pooled: bool) -> Specs:
    """Compressor and index key of a layer that other layers read compressed keys from."""
    dim, hidden = config.head_dim, config.hidden_size
    yield _bf16(f"{prefix}compressor.wkv.weight", (dim, hidden), _odd(hidden))
    yield _norm(f"{prefix}compressor.norm.weight", dim)
    if pooled:
        yield _bf16(f"{prefix}compressor.wgate.weight", (dim, hidden), _odd(hidden))
    yield _bf16(f"{prefix}indexer.wk.weight", (config.index_head_dim, dim), _odd(dim))
    yield _norm(f"{prefix}indexer.k_norm.weight", config.index_head_dim)


def _indexer(prefix: str, config: ModelConfig) -> Specs:
    heads, hidden = config.index_n_heads, config.hidden_size
    yield from _fp8(f"{prefix}wq_b", heads * config.index_head_dim, config.q_lora_rank)
    yield _bf16(f"{prefix}weights_proj.weight", (heads, hidden), _odd(hidden))


def _experts(prefix: str, config: ModelConfig) -> Specs:
    count, hidden, inner = (
        config.n_routed_experts,
        config.hidden_size,
        config.moe_intermediate_size,
    )
    yield _bf16(f"{prefix}gate.weight", (count, hidden), _odd(hidden))
    for name in ("bias", "bias_vl"):
        yield _f32(f"{prefix}gate.{name}", (count,), Grid(kind="odd255", exponent=-12))
    for expert in range(count):
        yield from _fp4(f"{prefix}experts.{expert}.w1", inner, hidden)
        yield from _fp4(f"{prefix}experts.{expert}.w2", hidden, inner)
        yield from _fp4(f"{prefix}experts.{expert}.w3", inner, hidden)
    shared = inner * config.n_shared_experts
    yield from _fp8(f"{prefix}shared_experts.w1", shared, hidden)
    yield from _fp8(f"{prefix}shared_experts.w2", hidden, shared)
    yield from _fp8(f"{prefix}shared_experts.w3", shared, hidden)


def _engram(prefix: str, config: ModelConfig, *, rows: int) -> Specs:
    dim, streams = config.engram_head_dim, config.hc_mult
    width = (config.engram_max_ngram_size - 1) * config.engram_n_heads * dim
    yield _spec(f"{prefix}embed.weight", "F8_E4M3", (rows, dim), Grid(kind="e4m3"))
    yield _spec(f"{prefix}embed.scale", "F8_E8M0", (rows, dim // BLOCK), Grid(kind="codes"))
    # gain 2: a wrong row must change every answer (with gain 0 six of 14 conversations survived it)
    yield from _fp8(f"{prefix}wkv", (streams + 1) * config.hidden_size, width, gain=2)
    for name in ("q_weight", "k_weight"):
        yield _bf16(f"{prefix}{name}", (streams, config.hidden_size), Grid(kind="near_one"))


def _fp8(name: str, rows: int, columns: int, *, gain: int = 0) -> Specs:
    """A dense weight with its 32x32 block scales; values spread 2**gain * columns**-1/2."""
    powers = Grid(kind="powers", exponent=_exponent(_FP8_SQUARE * columns) + gain)
    yield _spec(f"{name}.weight", "F8_E4M3", (rows, columns), Grid(kind="odd15"))
    yield _spec(f"{name}.scale", "F8_E8M0", (_blocks(rows), _blocks(columns)), powers)


def _fp4(name: str, rows: int, columns: int) -> Specs:
    """An expert's weight, two values a byte, with a scale per 32 columns of a row."""
    powers = Grid(kind="powers", exponent=_exponent(_FP4_SQUARE * columns))
    yield _spec(f"{name}.weight", "I8", (rows, columns // 2), Grid(kind="nibbles"))
    yield _spec(f"{name}.scale", "F8_E8M0", (rows, _blocks(columns)), powers)


def _odd(columns: int, *, gain: int = 0) -> Grid:
    """Values that spread 2**gain * columns**-1/2."""
    return Grid(kind="odd255", exponent=_exponent(_ODD255_SQUARE * columns) + gain)


def _exponent(square: float) -> int:
    """The integer nearest to log2 of square**-1/2, without a logarithm's rounding."""
    return -(int(square).bit_length() // 2)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def _norm(name: str, size: int) -> TensorSpec:
    return _bf16(name, (size,), Grid(kind="near_one"))


def _bf16(name: str, shape: tuple[int, ...], grid: Grid) -> TensorSpec:
    return _spec(name, "BF16", shape, grid)


def _f32(name: str, shape: tuple[int, ...], grid: Grid) -> TensorSpec:
    return _spec(name, "F32", shape, grid)


def _spec(name: str, dtype: Dtype, shape: tuple[int, ...], grid: Grid) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape, grid=grid)
