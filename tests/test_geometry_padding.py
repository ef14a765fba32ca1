"""Padding of heads, groups, vocabulary and experts, and the bytes of the KV cache."""

from __future__ import annotations

from fractions import Fraction
from math import inf, isinf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.errors import UsageError
from dsv41.geometry import (
    LAYOUTS,
    LEGAL_LOCAL_HEADS,
    AttentionPadding,
    Shard,
    VocabPadding,
    index_key_bytes,
    kv_bytes_per_token,
    kv_pool_bytes,
    kv_pool_tokens,
    latent_bytes,
    pad_attention,
    pad_experts,
    pad_vocab,
    real_span,
    selection_bias,
)


def test_legal_heads_at_tp3() -> None:
    assert pad_attention(heads=64, groups=8, tp=3) == AttentionPadding(
        heads=64,
        groups=8,
        padded_heads=96,
        padded_groups=12,
        local_heads=32,
        local_groups=4,
        kernel_heads=32,
    )


def test_balanced_heads_at_tp3() -> None:
    assert pad_attention(heads=64, groups=8, tp=3, layout="balanced") == AttentionPadding(
        heads=64,
        groups=8,
        padded_heads=72,
        padded_groups=9,
        local_heads=24,
        local_groups=3,
        kernel_heads=32,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tp", "local"), [(1, 64), (2, 32), (4, 16), (8, 8)])
def test_ranks_that_divide_the_groups_need_no_padding(tp: int, local: int, layout: str) -> None:
    found = pad_attention(heads=64, groups=8, tp=tp, layout=layout)
    assert (found.padded_heads, found.padded_groups) == (64, 8)
    assert (found.local_heads, found.kernel_heads) == (local, local)


def test_heads_of_the_local_fixture_at_tp3() -> None:
    legal = pad_attention(heads=16, groups=8, tp=3)
    assert (legal.padded_groups, legal.padded_heads, legal.local_heads) == (12, 24, 8)
    balanced = pad_attention(heads=16, groups=8, tp=3, layout="balanced")
    assert (balanced.padded_groups, balanced.padded_heads, balanced.kernel_heads) == (9, 18, 8)


def test_rank_2_of_the_legal_layout_holds_only_padding() -> None:
    heads = [real_span(64, per_rank=32, shard=Shard(rank=rank, tp=3)) for rank in range(3)]
    assert heads == [range(32), range(32, 64), range(64, 64)]
    beyond = real_span(100, per_rank=64, shard=Shard(rank=2, tp=3))
    assert (beyond.start, beyond.stop) == (100, 100)


def test_vocabulary() -> None:
    assert pad_vocab(129_280, tp=3) == VocabPadding(real=129_280, padded=129_408, per_rank=43_136)
    assert 129_408 == 3 * 43_136
    last = real_span(129_280, per_rank=43_136, shard=Shard(rank=2, tp=3))
    assert (len(last), 43_136 - len(last)) == (43_008, 128)
    for tp in (1, 2, 4, 5, 8):
        assert pad_vocab(129_280, tp=tp).padded == 129_280


def test_experts() -> None:
    draft = pad_experts(128, tp=3)
    assert (draft.padded, draft.per_rank) == (129, 43)
    routed = pad_experts(384, tp=3)
    assert (routed.padded, routed.per_rank) == (384, 128)


def test_a_padded_expert_is_never_selected() -> None:
    padding = pad_experts(128, tp=3)
    assert selection_bias(padding) == (0.0,) * 128 + (-inf,)
    bias = selection_bias(padding, [-50.0] * 128)
    scores = [1e-30] * 128 + [1e30]
    ranked = sorted(range(129), key=lambda e: scores[e] + bias[e], reverse=True)
    assert ranked[-1] == 128
    with pytest.raises(UsageError, match="129 bias values for 128 experts"):
        selection_bias(padding, [0.0] * 129)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        ({"heads": 64, "groups": 7, "tp": 3}, "64 heads, 7 groups"),
        ({"heads": 0, "groups": 8, "tp": 3}, "0 heads"),
        ({"heads": 64, "groups": 8, "tp": 0}, "0 ranks"),
        ({"heads": 64, "groups": 8, "tp": 3, "layout": "plain"}, "known are legal, balanced"),
        ({"heads": 256, "groups": 8, "tp": 1}, "256 local heads"),
        ({"heads": 24, "groups": 8, "tp": 1}, "groups of 3"),
    ],
)
def test_padding_that_cannot_be_worked_out(ask: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        pad_attention(**ask)  # type: ignore[arg-type]
    assert error.value.code == "D092"


def test_counts_must_be_positive() -> None:
    for ask in (lambda: pad_vocab(0, tp=3), lambda: pad_experts(0, tp=3)):
        with pytest.raises(UsageError, match="0"):
            ask()
    with pytest.raises(UsageError, match="0 ranks"):
        pad_vocab(129_280, tp=0)


_tp = st.integers(1, 8)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(groups=st.integers(1, 16), per_group=st.sampled_from([1, 2, 4, 8]), tp=_tp)
def test_local_heads_are_legal_and_whole_groups(groups: int, per_group: int, tp: int) -> None:
    heads = groups * per_group
    legal = pad_attention(heads=heads, groups=groups, tp=tp)
    balanced = pad_attention(heads=heads, groups=groups, tp=tp, layout="balanced")
    assert legal.local_heads in LEGAL_LOCAL_HEADS
    assert legal.kernel_heads == legal.local_heads
    assert balanced.kernel_heads in LEGAL_LOCAL_HEADS
    assert balanced.local_heads <= balanced.kernel_heads <= legal.local_heads
    assert balanced.padded_groups - groups < tp
    for found in (legal, balanced):
        assert found.padded_heads == found.local_heads * tp >= heads
        assert found.padded_groups == found.local_groups * tp >= groups
        assert found.local_heads == found.local_groups * per_group


def _pad(values: list[int], padded: int) -> list[int | None]:
    return [*values, *[None] * (padded - len(values))]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    real=st.integers(1, 700),
    tp=_tp,
    multiple=st.sampled_from([1, 8, 64]),
)
def test_padding_then_cutting_is_the_identity(real: int, tp: int, multiple: int) -> None:
    values = list(range(real))
    for padding in (pad_vocab(real, tp=tp, multiple=multiple), pad_experts(real, tp=tp)):
        each = padding.per_rank
        assert each * tp == padding.padded >= real
        shards = [_pad(values, padding.padded)[r * each : (r + 1) * each] for r in range(tp)]
        spans = [real_span(real, per_rank=each, shard=Shard(rank=r, tp=tp)) for r in range(tp)]
        assert [v for shard in shards for v in shard if v is not None] == values
        assert [list(span) for span in spans] == [
            [v for v in shard if v is not None] for shard in shards
        ]


@settings(max_examples=100, derandomize=True, deadline=None)
@given(real=st.integers(1, 700), tp=_tp, multiple=st.sampled_from([1, 8, 64]))
def test_padding_is_the_least_that_divides(real: int, tp: int, multiple: int) -> None:
    padded = pad_vocab(real, tp=tp, multiple=multiple).padded
    candidates = [n for n in range(real, padded + 1) if n % multiple == 0 and n % tp == 0]
    assert candidates == [padded]
    assert pad_experts(real, tp=tp).padded - real < tp


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    bias=st.lists(st.floats(-100, 100), min_size=1, max_size=40),
    scores=st.lists(st.floats(0, 1e6), min_size=48, max_size=48),
    tp=_tp,
)
def test_selection_prefers_every_real_expert(
    bias: list[float], scores: list[float], tp: int
) -> None:
    padding = pad_experts(len(bias), tp=tp)
    full = selection_bias(padding, bias)
    assert len(full) == padding.padded
    assert full[: padding.real] == tuple(bias)
    keys = [score + extra for score, extra in zip(scores, full, strict=False)]
    ranked = sorted(range(len(keys)), key=lambda e: (-keys[e], e))
    assert set(ranked[: padding.real]) == set(range(padding.real))
    assert all(isinf(keys[e]) for e in ranked[padding.real :])


def test_kv_bytes_of_a_token() -> None:
    assert (latent_bytes(), index_key_bytes()) == (584, 68)
    assert kv_bytes_per_token() == Fraction(6683, 4)
    assert float(kv_bytes_per_token()) == 1670.75
    assert kv_bytes_per_token(draft_layers=0) == 1630


def test_kv_pools_that_others_saw() -> None:
    assert kv_pool_bytes(8_000_000) == 13_366_000_000
    assert round(kv_pool_bytes(750_000) / 1e9, 2) == 1.25
    assert round(kv_pool_bytes(2**20) / 1e9, 2) == 1.75
    assert kv_pool_bytes(1) == 1671
    # a boot line with 26.71 GB available, 0.67 GB fixed, full_token=16735744; it rounds to 0.01 GiB
    seen = kv_pool_tokens(int((26.71 - 0.67) * 2**30))
    assert abs(seen - 16_735_744) < 0.01 * 2**30 / 1670.75
    assert kv_pool_tokens(kv_pool_bytes(16_735_744)) == 16_735_744
    assert kv_pool_tokens(kv_pool_bytes(10_029_056)) == 10_029_056


@settings(max_examples=100, derandomize=True, deadline=None)
@given(tokens=st.integers(0, 2**34))
def test_a_pool_holds_what_it_was_sized_for(tokens: int) -> None:
    size = kv_pool_bytes(tokens)
    assert size - 1 < tokens * kv_bytes_per_token() <= size
    assert 0 <= tokens - kv_pool_tokens(size) < 256
