"""Padding at three ranks in the released engine: built, loaded, and equal to one rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import sharded_model as case
import torch
from hooked import hooked
from sglang.kernels.ops.attention import flash_mla_sm120
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.models.deepseek_v4 import (
    DeepseekV4ForCausalLM,
    MqaAttentionBase,
    _apply_wo_a_bf16_matmul,
)
from sglang.srt.models.deepseek_v4_dspark import DeepseekV4ForCausalLMDSpark
from sglang.srt.runtime_context import get_platform

from dsv41.adapters.sglang import tp_pad
from dsv41.errors import CheckFailed
from dsv41.geometry import pad_vocab

TP = 3
LAYOUTS = {"legal": (24, 12), "balanced": (18, 9)}  # from the fixture's 16 heads in 8 groups
MODELS = (DeepseekV4ForCausalLM, DeepseekV4ForCausalLMDSpark)
HOOKED = re.compile(r"self_attn\.(wq_b|wo_a|wo_b|attn_sink)")
ALONG = {"wq_b": 0, "wo_a": 0, "wo_b": 1, "attn_sink": 0}


@pytest.fixture(scope="module", autouse=True)
def published(tmp_path_factory: pytest.TempPathFactory) -> None:
    case.publish(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    case.stand_aside(monkeypatch)


@pytest.fixture(scope="module")
def alone() -> dict[Any, dict[str, torch.Tensor]]:
    """Parameters of both models on one rank, with nothing hooked."""
    with pytest.MonkeyPatch.context() as patch:
        case.stand_aside(patch)
        return {model: case.parameters(case.built(model, 0, 1)) for model in MODELS}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, alone: object) -> Iterator[str]:
    """The padding is in the engine, in this layout."""
    assert alone
    with hooked(tp_pad.ADAPTER, DSV41_TP_PAD="1", DSV41_TP_PAD_LAYOUT=request.param):
        yield request.param


@pytest.fixture
def padded(layout: str) -> None:
    """The same, for tests that do not ask which."""


def test_the_engine_alone_refuses_three_ranks() -> None:
    with pytest.raises(AssertionError, match="is not divisible by 3"):
        case.built(DeepseekV4ForCausalLM, 0, TP)


@pytest.mark.parametrize("model", MODELS, ids=["target", "draft"])
def test_loaded_ranks_hold_the_real_tensors_and_then_padding(
    model: Any, layout: str, alone: Any
) -> None:
    """Everything of one rank, in order, over the three; what follows is zeros, scales of 1.0."""
    heads, groups = LAYOUTS[layout]
    ranks = [case.built(model, number, TP) for number in range(TP)]
    assert (ranks[0].config.num_attention_heads, ranks[0].config.o_groups) == (heads, groups)
    held = [case.parameters(rank) for rank in ranks]
    seen = set()
    for name, whole in alone[model].items():
        found = HOOKED.search(name)
        if found is None:
            continue
        seen.add(name)
        if found[1] == "attn_sink":  # whole on every rank: the engine cuts it at its first use
            assert all(torch.equal(part[name], held[0][name]) for part in held)
            together = held[0][name]
        else:
            together = torch.cat([part[name] for part in held], dim=ALONG[found[1]])
        real = whole.shape[ALONG[found[1]]]
        front, rest = together.split(
            [real, together.shape[ALONG[found[1]]] - real], ALONG[found[1]]
        )
        assert torch.equal(front, whole), name
        assert rest.numel() > 0
        assert (rest == float(name.endswith("weight_scale_inv"))).all(), name
    assert len(seen) == len(re.findall(r"attn_sink", " ".join(alone[model]))) * 6


@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize("model", MODELS, ids=["target", "draft"])
def test_all_else_is_loaded_as_on_one_rank(model: Any, alone: Any) -> None:
    rank = case.parameters(case.built(model, 1, TP))
    same = [n for n, whole in alone[model].items() if whole.shape == rank[n].shape]
    others = [n for n in same if not HOOKED.search(n) and is_loaded(n)]
    assert len(others) > 40
    for name in others:
        assert torch.equal(rank[name], alone[model][name]), name


def is_loaded(name: str) -> bool:
    """Not what the checkpoint of these tests leaves out."""
    return not re.search(r"\.experts\.|embed_tokens|lm_head|markov|[kv]_scale|confidence", name)


def dequantized(parameters: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    weight = parameters[f"{name}.weight"].view(torch.float8_e4m3fn).double()
    scale = parameters[f"{name}.weight_scale_inv"].double()
    return weight * scale.repeat_interleave(32, 0).repeat_interleave(32, 1)


def attend(part: Any, attention: Any, x: torch.Tensor) -> torch.Tensor:
    """q of a rank's heads, a function of q and sink a head, wo_a, wo_b: one rank's share.

    In float64 on the fixture's grid, where sums are exact in any order. The function stands for
    the attention kernel: like it, it gives a padded head something that is not zero.
    """
    name, heads = "model.layers.3.self_attn", attention.n_local_heads
    q = (x @ dequantized(part, f"{name}.wq_b").T).unflatten(-1, (heads, -1))
    sink = attention._local_attn_sink(heads).double()
    o = q.round() + (sink * 128).round()[:, None] + 3
    wo_a = part[f"{name}.wo_a.weight"].double().unflatten(0, (attention.n_local_groups, -1))
    narrow = _apply_wo_a_bf16_matmul(o.unflatten(1, (len(wo_a), -1)).flatten(2), wo_a, False)
    return narrow.flatten(1) @ dequantized(part, f"{name}.wo_b").T


@pytest.mark.usefixtures("padded")
def test_summed_shares_equal_the_output_of_one_rank() -> None:
    x = torch.randint(-3, 4, (5, 64), generator=torch.Generator().manual_seed(1)).double()
    outputs = {}
    for tp in (1, TP):
        models = [case.built(DeepseekV4ForCausalLM, number, tp) for number in range(tp)]
        shares = [attend(case.parameters(m), m.model.layers[3].self_attn, x) for m in models]
        outputs[tp] = sum(shares)
    assert outputs[1].abs().max() > 1
    assert torch.equal(outputs[TP], outputs[1])


@pytest.mark.usefixtures("padded")
def test_one_rank_is_left_as_it_is(alone: Any) -> None:
    """Nothing to pad: the same shapes and the same bytes."""
    for model in MODELS:
        built = case.parameters(case.built(model, 0, 1))
        assert built.keys() == alone[model].keys()
        assert all(torch.equal(built[n], alone[model][n]) for n in built if is_loaded(n))


@pytest.mark.usefixtures("padded")
def test_draft_experts_are_padded_and_never_selected() -> None:
    """Four draft experts on three ranks: six, of which the engine's router takes four."""
    draft = case.built(DeepseekV4ForCausalLMDSpark, 2, TP, ep=TP)
    moe = draft.stages[1].mlp
    assert moe.experts.w13_weight.shape[0] == 2  # experts 4 and 5, both padding
    assert not moe.experts.w13_weight.any()
    assert (moe.experts.w13_weight_scale_inv == 1).all()
    assert not draft.stages[1].mlp.gate.weight[4:].any()
    bias = moe.gate.e_score_correction_bias
    assert torch.isneginf(bias[4:]).all()
    # gates that say no to every real expert: an unmasked padded one, with its 0.83, would win
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(2))
    logits = torch.nn.functional.linear(x, moe.gate.weight)
    logits[:, :4] -= 4
    assert chosen(moe.topk, x, logits) <= {0, 1, 2, 3}
    with torch.no_grad():
        bias[4:] = 0
    assert chosen(moe.topk, x, logits) & {4, 5}


def chosen(topk: Any, x: torch.Tensor, logits: torch.Tensor) -> set[int]:
    return set(topk.forward_native(x, logits).topk_ids.unique().tolist())


@pytest.mark.usefixtures("padded")
def test_without_expert_parallel_no_draft_expert_is_padded() -> None:
    draft = case.built(DeepseekV4ForCausalLMDSpark, 0, TP)
    assert draft.stages[0].mlp.experts.w13_weight.shape[0] == 4
    assert torch.isfinite(draft.stages[0].mlp.gate.e_score_correction_bias).all()


@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize("kind", [VocabParallelEmbedding, ParallelLMHead])
def test_the_vocabulary_divides_over_three_ranks(kind: Any) -> None:
    expected = pad_vocab(129280, tp=TP)
    for number in range(TP):
        with case.rank(number, TP):
            layer = kind(129280, 8)
        assert layer.num_embeddings_padded == expected.padded == 129408
        assert layer.weight.shape[0] == expected.per_rank == 43136


@pytest.mark.usefixtures("padded")
def test_an_unknown_shape_ends_the_load() -> None:
    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in case.checkpoint(experts=False):
            yield name, tensor[:-32] if name == "layers.2.attn.wo_a.weight" else tensor

    with case.rank(0, TP):
        model = DeepseekV4ForCausalLM(case.config(), case.quantization())
        with pytest.raises(CheckFailed, match=r"layers\.2\.attn\.wo_a\.weight .*256.*224") as error:
            model.load_weights(stream())
    assert error.value.code == "D150"


def test_the_published_configuration_is_left_alone(layout: str) -> None:
    config = case.config()
    with case.rank(0, TP):
        model = DeepseekV4ForCausalLM(config, case.quantization())
    assert (config.num_attention_heads, config.o_groups) == (16, 8)
    assert model.config.num_attention_heads == LAYOUTS[layout][0]


class Attention:
    """What `_kernel_num_heads` reads of a layer."""

    attn_tp_size = TP

    def __init__(self, local: int) -> None:
        self.n_local_heads, self.n_heads = local, local * TP


@pytest.fixture
def gb10(monkeypatch: pytest.MonkeyPatch, padded: None) -> None:
    """SM12x with FlashInfer's decode kernels, which this machine has not: their table alone."""
    del padded
    table = (64, frozenset({8, 16, 32, 64, 128}))  # of FlashInfer 0.7.2
    monkeypatch.setattr(flash_mla_sm120, "_flashinfer_dsv4_decode_capabilities", lambda: table)
    monkeypatch.setattr(type(get_platform()), "is_sm120", True, raising=False)


@pytest.mark.usefixtures("gb10")
@pytest.mark.parametrize(
    ("local", "tokens", "width", "stock"),
    [
        (24, 6, 32, 64),
        (24, 64, 32, 64),
        (24, 65, 24, 24),
        (32, 6, 32, 32),
        (32, 4096, 32, 32),
        (16, 6, 16, 16),
    ],
)
def test_decode_takes_the_next_kernel(local: int, tokens: int, width: int, stock: int) -> None:
    """24 local heads would go to 64; in prefill they stay, and the kernel's caller is widened."""
    heads: Any = MqaAttentionBase._kernel_num_heads
    assert heads(Attention(local), tokens) == width
    assert heads.__wrapped__(Attention(local), tokens) == stock


@pytest.mark.usefixtures("padded")
def test_other_devices_keep_their_width() -> None:
    heads: Any = MqaAttentionBase._kernel_num_heads
    assert heads(Attention(24), 6) == heads.__wrapped__(Attention(24), 6) == 64


@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize(("heads", "width"), [(18, 32), (24, 32), (32, 32), (64, 64)])
def test_the_kernel_sees_heads_that_it_has(
    heads: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the engine's own pure-torch kernel, which takes any number: the same comes out."""
    seen = []

    def kernel(q: torch.Tensor, *rest: Any) -> Any:
        seen.append((q.shape[-2], len(rest[3])))
        return stock(q, *rest)

    stock = flash_mla_sm120._sm120_sparse_decode_fwd
    monkeypatch.setattr(flash_mla_sm120, "_sm120_sparse_decode_fwd", kernel)
    monkeypatch.setattr(flash_mla_sm120, "_sm120_default_backend", "torch")
    call: Any = flash_mla_sm120.flash_mla_with_kvcache_sm120
    arguments = paged(heads)
    plain, widened = call.__wrapped__(**arguments)[0], call(**arguments)[0]
    assert seen == [(heads, heads), (width, width)]
    assert plain.shape == widened.shape == (3, 1, heads, 512)
    assert plain.float().abs().max() > 0
    assert torch.equal(widened, plain)


def paged(heads: int) -> dict[str, Any]:
    """Three tokens' q over four random pages of the engine's layout: 576 bytes, then 8 scales."""
    made = torch.Generator().manual_seed(heads)
    pages = torch.full((4, 256 * 584), 120, dtype=torch.uint8)  # scale code 120: 2**-7
    pages[:, : 256 * 576] = torch.randint(0, 56, (4, 256 * 576), generator=made).to(torch.uint8)
    return {
        "q": torch.randn(3, 1, heads, 512, generator=made).bfloat16(),
        "k_cache": pages.view(torch.float8_e4m3fn).view(4, 256, 1, 584),
        "indices": torch.randint(0, 1024, (3, 1, 64), generator=made, dtype=torch.int32),
        "topk_length": torch.tensor([64, 40, 1], dtype=torch.int32),
        "attn_sink": torch.randn(heads, generator=made),
        "head_dim_v": 512,
        "softmax_scale": 512**-0.5,
    }
