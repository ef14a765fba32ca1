"""Heads, output groups and draft experts padded to whole numbers a rank.

What: SGLang's V4.1 model and its DSpark draft are built from a copy of the configuration with
padded counts, and the checkpoint's tensors are padded to them before the engine cuts them: zero
rows of `wq_b` and `wo_a`, zero columns of `wo_b`, zeros in `attn_sink`, scales of 1.0, by the
functions of the local engine. Padded draft experts are zeros with a selection bias of -inf, so
that no router takes them. A tensor of another name or shape than expected ends the process.

Two layouts. `legal`: 96 heads in 12 groups at three ranks, 32 local heads, which the SM120 kernels
have. `balanced`: 72 in 9, so that the ranks hold 3, 3 and 2 real groups instead of 4, 4 and 0. No
kernel has its 24 local heads, so q alone is widened to 32 with zeros and the output cut: in decode
by the engine's own zeroed buffer (`_kernel_num_heads`, which would take 64), in prefill around the
kernel, since the engine's backend cuts q back to the layer's heads before it.

Why: 64 heads and 8 groups do not divide by three, and the engine's linears refuse that. What reads
the counts in 0.5.21 and 0.5.23 is `MqaAttentionBase` alone: both projections, the sink that
`_local_attn_sink` cuts, the view of wo_a. Not the indexers (their heads stand on every rank), the
cache pools (one key-value head) or the vision tower (whole on every rank). FP8 scales are padded
in blocks of 32x32 beside their weights; wo_a becomes bf16 inside `load_weights`, after this. The
draft's attention pads q to 64 by itself in every layout. ModelConfig keeps 64 heads, for metrics
and other backends. With EP 1 no draft expert is padded. 0.5.23 pads the vocabulary to a multiple
of the ranks (129,408 rows at three); 0.5.21 does so on CPUs alone, so its padding is widened here.

Effect: three ranks start at all: 51.0 tok/s for one stream with the three-Spark recipe's own
padding (MiaAI-Lab README). `balanced` is not measured; `dsv41 plan --why` says what it saves.

Off: DSV41_TP_PAD=0. DSV41_TP_PAD_LAYOUT is legal (also: legacy) or balanced.

Obsolete when: SGLang pads V4's attention heads and groups on GPUs as it pads the vocabulary.
"""

from __future__ import annotations

import copy
import logging
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import lcm
from typing import Any

from dsv41 import switches
from dsv41.adapters import padding, shard
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.errors import CheckFailed
from dsv41.geometry import LAYOUTS, LEGAL_LOCAL_HEADS

log = logging.getLogger(__name__)
VOCABULARY = "sglang.srt.layers.vocab_parallel_embedding.VocabParallelEmbedding"
TARGET = "sglang.srt.models.deepseek_v4.DeepseekV4ForCausalLM"
DRAFT = "sglang.srt.models.deepseek_v4_dspark.DeepseekV4ForCausalLMDSpark"
DECODE = "sglang.srt.models.deepseek_v4.MqaAttentionBase._kernel_num_heads"
KERNEL = "sglang.kernels.ops.attention.flash_mla_sm120.flash_mla_with_kvcache_sm120"

Arguments = tuple[tuple[object, ...], dict[str, object]]


def layout_of(environ: Mapping[str, str]) -> str:
    """The layout that is asked for; D151 for a word that is none."""
    word = switches.read_word(environ, "tp_pad_layout")
    layout = "legal" if word == "legacy" else word  # its name before there was another
    if layout not in LAYOUTS:
        raise _unpadded(f"the layout is {word!r}, expected one of {', '.join(LAYOUTS)}")
    return layout


def build(
    original: Callable[..., None], model: Any, config: Any, *args: object, **kwargs: object
) -> None:
    """Build a model from a padded copy of its configuration, and leave the counts on it."""
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - only where it is on

    parallel = get_parallel()
    tp, ep = parallel.attn_tp_size, parallel.moe_ep_size
    counts = padding.counts_for(config, tp=tp, ep=ep, layout=layout_of(os.environ))
    padded = copy.copy(config)  # the engine's own stays as published: the draft is built from it
    for key, value in counts.changes().items():
        old = getattr(config, key)
        log.info("DSV41 TP pad: %s %d -> %d (tp=%d, ep=%d)", key, old, value, tp, ep)
        setattr(padded, key, value)
    original(model, padded, *args, **kwargs)
    model.dsv41_counts = counts


def pad_vocabulary(
    layer: object, num_embeddings: int, *args: object, **kwargs: Any
) -> Arguments | None:
    """Pad the vocabulary's rows so that they divide, as 0.5.23 does by itself."""
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - as above

    step, parallel = kwargs.get("padding_size", 64), get_parallel()
    group = parallel.attn_tp_size if kwargs.get("use_attn_tp_group") else parallel.tp_size
    tp = group if kwargs.get("enable_tp", True) else 1
    rows = kwargs.get("org_num_embeddings") or num_embeddings
    if -(-rows // step) * step % tp == 0:
        return None
    return (layer, num_embeddings, *args), {**kwargs, "padding_size": lcm(step, tp)}


def load_target(
    model: Any, weights: Iterable[padding.Named], *args: object, **kwargs: object
) -> Arguments:
    """Pad what the target model loads; the draft's tensors, which it skips, pass."""
    counts = _counts(model)
    if counts.pads_heads:
        weights = _heads(model, counts, weights, of_draft=False)
    return (model, weights, *args), kwargs


def load_draft(
    model: Any, weights: Iterable[padding.Named], *args: object, **kwargs: object
) -> Arguments:
    """Pad what the draft loads (`mtp.*`); all else, which it skips, passes."""
    counts = _counts(model)
    if counts.pads_heads:
        weights = _heads(model, counts, weights, of_draft=True)
    if counts.experts is not None and counts.pads_experts:
        weights = padding.pad_draft_experts(weights, experts=counts.experts)
    return (model, weights, *args), kwargs


def _counts(model: Any) -> padding.Counts:
    counts: padding.Counts | None = getattr(model, "dsv41_counts", None)
    if counts is None:
        raise _unpadded(f"{type(model).__name__} was not built from padded counts")
    return counts


def _heads(
    model: Any, counts: padding.Counts, weights: Iterable[padding.Named], *, of_draft: bool
) -> Iterator[padding.Named]:
    config, block = model.config, getattr(model.quant_config, "weight_block_size", None)
    widths = padding.Widths(
        hidden=config.hidden_size,
        head_dim=config.head_dim,
        q_lora_rank=config.q_lora_rank,
        o_lora_rank=config.o_lora_rank,
        block=(block[0], block[1]) if block else (shard.BLOCK, shard.BLOCK),
    )
    for name, tensor in weights:
        if name.startswith("mtp.") == of_draft:
            whole = padding.pad_heads(name, tensor, attention=counts.attention, widths=widths)
            yield name, whole
        else:
            yield name, tensor


def kernel_heads(heads: int) -> int:
    """The next count of local heads that the SM120 kernels have; itself beyond the largest."""
    return next((count for count in LEGAL_LOCAL_HEADS if count >= heads), heads)


def decode_heads(original: Callable[..., int], layer: Any, num_tokens: int) -> int:
    """Widen q in decode to the next kernel's heads only, where the engine takes its widest."""
    found, wanted = original(layer, num_tokens), kernel_heads(layer.n_local_heads)
    if found <= wanted:
        return found
    from sglang.kernels.ops.attention import flash_mla_sm120  # noqa: PLC0415 - as above
    from sglang.srt.environ import envs  # noqa: PLC0415
    from sglang.srt.runtime_context import get_platform  # noqa: PLC0415

    native = envs.SGLANG_SM120_FLASHMLA_BACKEND.get() == "flashinfer" and get_platform().is_sm120
    supports = flash_mla_sm120.flashinfer_dsv4_decode_supports_num_heads
    return wanted if native and supports(wanted, num_tokens) else found


def attend(original: Callable[..., Any], **kwargs: Any) -> Any:
    """Call the SM120 kernel with q and sink widened by zeros, and cut its output."""
    q, sink = kwargs["q"], kwargs.get("attn_sink")
    heads, wanted = q.shape[-2], kernel_heads(q.shape[-2])
    if wanted == heads:
        return original(**kwargs)
    from torch.nn.functional import pad  # noqa: PLC0415 - as above

    widened = {**kwargs, "q": pad(q, (0, 0, 0, wanted - heads))}
    if sink is not None:
        widened["attn_sink"] = pad(sink, (0, wanted - heads))
    output, *rest = original(**widened)
    return (output[..., :heads, :], *rest)


def check(environ: Mapping[str, str]) -> None:
    """The layout is known, and a balanced one finds the two places where q is widened."""
    if layout_of(environ) == "balanced":
        for target in (DECODE, KERNEL):
            try:
                pkgutil.resolve_name(target)
            except (ImportError, AttributeError) as error:
                raise _unpadded(f"the balanced layout needs {target}: {error}") from error


def _unpadded(says: str) -> CheckFailed:
    fix = "set DSV41_TP_PAD_LAYOUT=legal, or serve on a number of ranks that divides 64 heads"
    return CheckFailed("D151", f"Padding of heads cannot be applied: {says}.", fix=fix)


ADAPTER = Adapter(
    name="tp_pad",
    switch="tp_pad",
    engines=("sglang",),
    trees=("sglang-0.5.23", "sglang-branch", "sglang-base"),
    hooks=(
        Hook(
            target=f"{VOCABULARY}.__init__",
            kind="before",
            call=pad_vocabulary,
            takes=("num_embeddings", "padding_size", "enable_tp", "use_attn_tp_group"),
        ),
        Hook(target=f"{TARGET}.__init__", kind="around", call=build, takes=("config",)),
        Hook(target=f"{DRAFT}.__init__", kind="around", call=build, takes=("config",)),
        Hook(target=f"{TARGET}.load_weights", kind="before", call=load_target, takes=("weights",)),
        Hook(target=f"{DRAFT}.load_weights", kind="before", call=load_draft, takes=("weights",)),
        # only the balanced layout needs these two, and `check` then asks for them
        Hook(target=DECODE, kind="around", call=decode_heads, takes=("num_tokens",), optional=True),
        Hook(target=KERNEL, kind="around", call=attend, optional=True),
    ),
    check=check,
)
