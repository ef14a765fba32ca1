"""Padding at three ranks in the released engine: built, loaded, and equal to one rank."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharded_model as case
import torch
from hooked import hooked
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.models.deepseek_v4 import (
    DeepseekV4ForCausalLM,
    MqaAttentionBase,
    _apply_wo_a_bf16_matmul,
)
from sglang.srt.models.deepseek_v4_dspark import DeepseekV4ForCausalLMDSpark

from dsv41.adapters import padding
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
        along, real = ALONG[found[1]], whole.shape[ALONG[found[1]]]
        front = together.narrow(along, 0, real)
        rest = together.narrow(along, real, together.shape[along] - real)
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


def attended(q: torch.Tensor, attention: Any) -> torch.Tensor:
    """Stands for the attention kernel: q of a head, [T, heads, dim], and the head's sink.

    Like the kernel it gives a padded head something that is not zero.
    """
    sink = attention._local_attn_sink(attention.n_local_heads)
    found: torch.Tensor = q.round() + sink.to(q).round()[:, None] + 3
    return found.flatten(1)


def narrowed(o: torch.Tensor, wo_a: torch.Tensor, attention: Any) -> torch.Tensor:
    """The engine's grouped product of heads with wo_a."""
    groups: int = attention.n_local_groups
    grouped = o.reshape(len(o), groups, -1)
    weight = wo_a.to(o).reshape(groups, -1, wo_a.shape[1])
    product: torch.Tensor = _apply_wo_a_bf16_matmul(grouped, weight, is_decode=False)
    return product.flatten(1)


@pytest.mark.usefixtures("padded")
def test_summed_shares_of_loaded_ranks_equal_one_rank() -> None:
    """wq_b, sinks, wo_a, wo_b as loaded, in float64: on the fixture's grid sums are exact."""
    x = torch.randint(-3, 4, (5, 64), generator=torch.Generator().manual_seed(1)).double()
    outputs = {}
    for tp in (1, TP):
        outputs[tp] = torch.zeros(5, 64, dtype=torch.float64)
        for number in range(tp):
            model = case.built(DeepseekV4ForCausalLM, number, tp)
            part, name = case.parameters(model), "model.layers.3.self_attn"
            attention = model.model.layers[3].self_attn
            q = (x @ dequantized(part, f"{name}.wq_b").T).view(5, attention.n_local_heads, -1)
            narrow = narrowed(attended(q, attention), part[f"{name}.wo_a.weight"], attention)
            outputs[tp] += narrow @ dequantized(part, f"{name}.wo_b").T
    assert outputs[1].abs().max() > 1
    assert torch.equal(outputs[TP], outputs[1])


def test_summed_outputs_of_padded_linears_equal_one_rank(layout: str) -> None:
    """The engine's linears run: unquantized, because its FP8 products need a GPU."""
    x = torch.randint(-1, 2, (5, 64), generator=torch.Generator().manual_seed(1)).float()
    outputs = {}
    for tp in (1, TP):
        outputs[tp] = torch.zeros(5, 64)
        for number in range(tp):
            with case.rank(number, tp):
                attention = whole_numbers(layout, tp)
                q = attention.wq_b(x)[0].view(5, attention.n_local_heads, -1)
                narrow = narrowed(attended(q, attention), attention.wo_a.weight, attention)
                outputs[tp] += attention.wo_b(narrow, skip_all_reduce=True)[0]
    assert outputs[1].abs().max() > 1000
    assert torch.equal(outputs[TP], outputs[1])


def whole_numbers(layout: str, tp: int) -> Any:
    """The engine's attention of one rank, its weights -1, 0 or 1: float32 sums are exact."""
    config, made = case.config(), torch.Generator().manual_seed(5)
    counts = padding.counts_for(config, tp=tp, ep=1, layout=layout)
    shapes = {"wq_b": (512, 64), "wo_a": (256, 64), "wo_b": (64, 256), "attn_sink": (16,)}
    for key, value in counts.changes().items():
        setattr(config, key, value)
    attention = MqaAttentionBase(config, 0, None, "attention")
    widths = padding.Widths(hidden=64, head_dim=32, q_lora_rank=64, o_lora_rank=32)
    for name, parameter in attention.named_parameters():
        if (module := name.removesuffix(".weight")) in shapes:
            whole = torch.randint(-1, 2, shapes[module], generator=made).to(parameter.dtype)
            official = f"layers.0.attn.{name}"
            full = padding.pad_heads(official, whole, attention=counts.attention, widths=widths)
            loader = getattr(parameter, "weight_loader", default_weight_loader)
            loader(parameter, full)
    return attention


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


@pytest.mark.parametrize("numerics", ["v4", "v4.1"])
def test_the_router_kernel_of_gpus_never_takes_a_masked_expert(
    numerics: str, routed: dict[str, list[list[int]]]
) -> None:
    masked, plain = routed[numerics]
    assert 128 not in masked
    assert len(masked) > 10
    assert 128 in plain


@pytest.fixture(scope="module")
def routed() -> Any:
    """What router_kernel.py prints."""
    script = Path(__file__).with_name("router_kernel.py")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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
