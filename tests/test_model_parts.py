"""Parts of the model, each against the rule written plainly."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.geometry import row_ids, windows
from dsv41.local.model.codec import fake_quant_fp4_e8m0
from dsv41.local.model.engram import Hasher, StoreReader, TableReader
from dsv41.local.model.hyper import Sinkhorn
from dsv41.local.model.indexer import Pick, Selector, index_scores, keep_best
from dsv41.local.model.moe import Experts
from dsv41.local.model.norm import RmsNorm
from dsv41.local.model.rope import Rope, frequencies, rotate
from dsv41.local.model.weights import load_shard
from rank_threads import Loader

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.local.model.config import ModelConfig


@pytest.fixture(scope="module")
def loader(checkpoint: Path, rows_dir: Path) -> Loader:
    torch.set_num_threads(1)
    return Loader(checkpoint=checkpoint, rows_dir=rows_dir)


@given(
    st.lists(
        st.lists(st.sampled_from([-math.inf, -1.0, 0.0, -0.0, 0.5, 2.0]), min_size=9, max_size=9),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 8),
)
def test_the_lowest_index_wins_among_equals(rows: list[list[float]], count: int) -> None:
    kept = keep_best(torch.tensor(rows), count)
    for row, found in zip(rows, kept, strict=True):
        best = sorted(range(9), key=lambda i: (-row[i], i))[:count]
        assert found.nonzero().flatten().tolist() == sorted(best)


def selection(config: ModelConfig, scores: list[float], kept: set[int]) -> list[int]:
    """The rule for one query, one entry at a time: top-k among the entries of `kept`."""
    best = sorted(kept, key=lambda i: (-scores[i], i))
    return sorted(best[: config.index_topk])


def chosen(pick: Pick) -> list[int]:
    return [int(i) for i, ok in zip(pick.index[0], pick.valid[0], strict=True) if ok]


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 90))
def test_candidates_bound_the_layers_after_their_source(
    loader: Loader, seed: int, visible: int
) -> None:
    config = loader.config  # top-k 8; 8 candidate blocks of 4
    draw = random.Random(seed)
    first, second = ([draw.choice([0.0, 0.0, 1.0, 2.0, 3.0]) for _ in range(96)] for _ in "ab")
    seen = torch.tensor([visible])
    pick, left = Selector(config, layer=4).best(torch.tensor([first]), seen, None)
    later, _ = Selector(config, layer=5).best(torch.tensor([second]), seen, left)
    everything = set(range(visible))
    blocks = {i // 4 for i in everything}
    newest = (visible - 1) // 4
    best = sorted(blocks - {newest}, key=lambda b: (-max(first[4 * b : 4 * b + 4]), b))
    allowed = {i for i in everything if i // 4 in {newest, *best[:7]}}
    assert chosen(pick) == selection(config, first, everything)
    assert chosen(later) == selection(config, second, allowed)


def test_scores_of_quantized_keys_are_exact() -> None:
    torch.manual_seed(0)
    queries = fake_quant_fp4_e8m0(torch.randn(3, 4, 32))
    keys = fake_quant_fp4_e8m0(torch.randn(50, 32))
    weights = torch.randn(3, 4)
    wanted = torch.einsum("nhd,td->nht", queries.double(), keys.double()).relu()
    found = index_scores(queries, keys, weights)
    assert torch.allclose(found.double(), (wanted * weights.double()[..., None]).sum(1), rtol=1e-6)
    assert (found == index_scores(queries[:1], keys, weights[:1])).any(1)[0]


def test_yarn_keeps_fast_pairs_and_slows_slow_ones(loader: Loader) -> None:
    scaling = loader.config.rope_scaling
    plain = frequencies(theta=160000.0, channels=64, scaling=None)
    slowed = frequencies(theta=160000.0, channels=64, scaling=scaling)
    ratio = slowed / plain
    assert plain[0] == 1.0
    assert plain[31] == pytest.approx(160000.0 ** (-62 / 64), rel=1e-12)
    assert ratio[0] == 1.0
    assert ratio[-1] == pytest.approx(1 / scaling.factor)
    assert (ratio.diff() <= 1e-12).all()
    # a pair keeps its rate while it turns 32 times or more within the original context
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    assert (ratio[turns >= scaling.beta_fast] == 1.0).all()


def test_rotation_turns_adjacent_pairs_of_the_last_channels(loader: Loader) -> None:
    positions = torch.tensor([0, 1, 5])
    phases = Rope(loader.config).phases(positions, compressed=False, dtype=torch.float64)
    values = torch.arange(3 * 2 * 32, dtype=torch.float64).view(3, 2, 32)
    turned = rotate(values.clone(), phases)
    assert torch.equal(turned[0], values[0])
    assert torch.equal(turned[..., :16], values[..., :16])
    angle = 5 * 10000.0 ** (-2 / 16)
    x, y = values[2, 1, 18], values[2, 1, 19]
    assert turned[2, 1, 18] == pytest.approx(float(x * math.cos(angle) - y * math.sin(angle)))
    assert turned[2, 1, 19] == pytest.approx(float(x * math.sin(angle) + y * math.cos(angle)))
    assert torch.allclose(rotate(turned, phases.conj()), values)


def test_sinkhorn_is_twenty_passes_over_columns_and_nineteen_over_rows() -> None:
    torch.manual_seed(1)
    matrices = torch.rand(5, 4, 4, dtype=torch.float64)
    wanted = matrices + 1e-6
    wanted = wanted / (wanted.sum(1, keepdim=True) + 1e-6)
    for _ in range(19):
        wanted = wanted / (wanted.sum(2, keepdim=True) + 1e-6)
        wanted = wanted / (wanted.sum(1, keepdim=True) + 1e-6)
    sinkhorn = Sinkhorn(streams=4, iterations=20, eps=1e-6, dtype=torch.float64)
    found = sinkhorn.normalize(matrices.view(5, 16)).view(5, 4, 4)
    assert torch.allclose(found, wanted, rtol=1e-13)
    assert torch.allclose(found.sum(2), torch.ones(5, 4, dtype=torch.float64), atol=1e-4)


def test_the_norm_is_the_root_of_the_mean_square() -> None:
    values = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-12, 0.0]], dtype=torch.float64)
    weight = torch.tensor([2.0, 1.0], dtype=torch.float64)
    found = RmsNorm(2, eps=1e-20, weight=weight)(values)
    wanted = values * torch.rsqrt(values.square().mean(1, keepdim=True) + 1e-20) * weight
    assert torch.allclose(found, wanted, rtol=1e-14, atol=0)
    assert torch.equal(found[1], torch.zeros(2, dtype=torch.float64))


def test_experts_are_those_that_the_router_selects(loader: Loader, checkpoint: Path) -> None:
    config, shard = loader.config, loader.alone
    weights = load_shard(checkpoint, config=config, shard=shard, dtype=torch.float64)
    torch.manual_seed(2)
    hidden = 4 * torch.randn(7, config.hidden_size, dtype=torch.float64)
    found = Experts(config, weights, layer=3)(hidden)

    def expert(name: str, row: Tensor, share: float) -> Tensor:
        w1, w2, w3 = (weights[f"layers.3.ffn.{name}.w{i}.weight"] for i in (1, 2, 3))
        gate, up = (w1 @ row).clamp(max=10), (w3 @ row).clamp(-10, 10)
        return w2 @ (gate * torch.sigmoid(gate) * up * share)

    assert (hidden @ weights["layers.3.ffn.experts.0.w1.weight"].t()).abs().max() > 10  # clamped
    for row, answer in zip(hidden, found, strict=True):
        scores = torch.log1p((weights["layers.3.ffn.gate.weight"] @ row).exp()).sqrt()
        order = (scores + weights["layers.3.ffn.gate.bias"]).argsort(descending=True)[:2].tolist()
        total = sum(float(scores[e]) for e in order)
        parts = [expert(f"experts.{e}", row, 1.5 * float(scores[e]) / total) for e in order]
        assert torch.allclose(answer, sum(parts, expert("shared_experts", row, 1.0)), rtol=1e-10)


def test_all_layers_are_hashed_at_once(loader: Loader) -> None:
    engram = loader.config.engram
    ids = [loader.token_map[token] for token in [671, 4787, 13769, 46012, 5, 5, 128799, 0, 1]]
    found = Hasher(engram).ids(windows(ids, engram=engram))
    for place, layer in enumerate(engram.layer_ids):
        assert found[place].tolist() == [
            list(r) for r in row_ids(ids, engram=engram, layer_id=layer)
        ]


def test_the_row_store_gives_the_rows_of_the_checkpoint(loader: Loader, checkpoint: Path) -> None:
    engram = loader.config.engram
    tables = TableReader.from_checkpoint(checkpoint, loader.config)
    for layer in engram.layer_ids:
        torch.manual_seed(layer)
        ids = torch.randint(0, engram.rows(layer), (9, engram.columns))
        ids[3, 5] = -1
        found = loader.stores(loader.alone).ask(layer, ids)()
        assert torch.equal(found, tables.ask(layer, ids)())
        assert found.shape == (9, 24, 256)
        assert not found[3, 5].any()
        assert found[3, 6].any()


def test_a_scale_without_a_value_is_no_row() -> None:
    class Store:
        rank, tp, partition = 0, 1, "weighted"

        def submit(self, ids: Any, weights: Any, scales: Any) -> Any:
            assert len(ids) == len(weights)
            weights[:], scales[:] = 0x38, 255  # 1.0 in E4M3; E8M0 has no number 255
            return self

        def wait(self) -> None:
            pass

    values = StoreReader({1: Store()}).ask(1, torch.zeros(1, 1, dtype=torch.int64))()
    assert values.isnan().all()
