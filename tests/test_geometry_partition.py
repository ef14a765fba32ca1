"""Ownership of rows: published ranges, and a bijection for any ranks and primes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.errors import UsageError
from dsv41.geometry import (
    DEFAULT_PARTITION,
    PARTITIONS,
    REAL_ENGRAM,
    UNIQUE_PER_MILLE,
    Engram,
    Partition,
    Range,
    column_owners,
    expected_load,
    partition,
)

RANKS = range(1, 9)


def _starts(name: str, layer: int, tp: int) -> list[int]:
    cut = partition(name, engram=REAL_ENGRAM, layer_id=layer, tp=tp)
    return [cut.ranges(rank)[0].lo for rank in range(tp)]


def _rows(name: str, layer: int, tp: int) -> list[int]:
    cut = partition(name, engram=REAL_ENGRAM, layer_id=layer, tp=tp)
    return [cut.local_rows(rank) for rank in range(tp)]


def test_contiguous_rows_is_sglangs_cut() -> None:
    assert _rows("contiguous-rows", 1, 2) == [192_003_084] * 2
    assert _rows("contiguous-rows", 1, 3) == [128_002_056] * 3
    assert _rows("contiguous-rows", 14, 3) == [128_005_560, 128_005_561, 128_005_561]
    assert _rows("contiguous-rows", 1, 4) == [96_001_542] * 4
    assert sorted(_rows("contiguous-rows", 14, 4)) == [96_004_170] * 2 + [96_004_171] * 2
    assert _starts("contiguous-rows", 1, 3) == [0, 128_002_056, 256_004_112]
    assert _starts("contiguous-rows", 1, 4) == [0, 96_001_542, 192_003_084, 288_004_626]


def test_contiguous_columns_is_vllms_cut() -> None:
    assert _starts("contiguous-columns", 1, 3) == [0, 128_000_880, 256_002_934]
    assert _starts("contiguous-columns", 1, 4) == [0, 96_000_564, 192_001_740, 288_003_654]
    assert _starts("contiguous-columns", 14, 3) == [0, 128_004_290, 256_009_984]
    assert _starts("contiguous-columns", 14, 4) == [0, 96_003_054, 192_007_016, 288_011_564]


def test_the_two_contiguous_cuts_differ_at_every_inner_bound() -> None:
    gaps = [
        abs(rows - columns)
        for layer in (1, 14)
        for tp in (2, 3, 4)
        for rows, columns in zip(
            _starts("contiguous-rows", layer, tp)[1:],
            _starts("contiguous-columns", layer, tp)[1:],
            strict=True,
        )
    ]
    assert 128_002_056 - 128_000_880 == 1_176
    assert (min(gaps), max(gaps)) == (947, 1_344)


@pytest.mark.parametrize(
    ("tp", "dense", "paged"), [(2, 94.42, 97.66), (3, 62.94, 65.11), (4, 47.21, 48.83)]
)
def test_disk_space_of_a_rank(tp: int, dense: float, paged: float) -> None:
    rows = [_rows("contiguous-rows", layer, tp)[0] for layer in (1, 14)]
    assert round(sum(rows) * 264 / 2**30, 2) == dense
    assert round(sum(-(-count // 15) * 4096 for count in rows) / 2**30, 2) == paged


def test_size_of_an_upstream_dense_file() -> None:
    assert 4096 + _rows("contiguous-rows", 1, 3)[0] * 264 == 33_792_546_880
    assert 4096 + _rows("contiguous-rows", 1, 4)[0] * 264 == 25_344_411_184


def _counts_by_order(name: str, tp: int) -> list[tuple[int, ...]]:
    owners = column_owners(name, engram=REAL_ENGRAM, tp=tp)
    return [
        tuple(owners[order * 8 : order * 8 + 8].count(rank) for order in range(3))
        for rank in range(tp)
    ]


def test_weighted_columns_per_order() -> None:
    assert DEFAULT_PARTITION == "weighted"
    assert _counts_by_order("weighted", 3) == [(3, 2, 3), (3, 2, 3), (2, 4, 2)]
    assert _counts_by_order("weighted", 4) == [(2, 2, 2)] * 4
    assert _counts_by_order("weighted", 8) == [(1, 1, 1)] * 8


def test_strided_gives_column_c_to_rank_c_mod_tp() -> None:
    owners = column_owners("strided", engram=REAL_ENGRAM, tp=5)
    assert owners == tuple(column % 5 for column in range(24))
    assert _counts_by_order("strided", 3) == [(3, 3, 2), (3, 2, 3), (2, 3, 3)]


@pytest.mark.parametrize(
    ("name", "tp", "low", "high"),
    [
        ("contiguous-columns", 3, 5.28, 5.28),
        ("contiguous-columns", 4, 5.28, 5.28),
        ("strided", 3, 1.17, 1.20),
        ("strided", 4, 1.00, 1.00),
        ("weighted", 3, 1.02, 1.07),
        ("weighted", 4, 1.00, 1.00),
    ],
)
def test_reads_after_dedupe_are_as_uneven_as_measured(
    name: str, tp: int, low: float, high: float
) -> None:
    ratios = []
    for trigram in (450, 550, 650):  # measured .45-.65
        loads = [
            bi * 161 + tri * trigram + four * 850 for bi, tri, four in _counts_by_order(name, tp)
        ]
        ratios.append(round(max(loads) / min(loads), 2))
    assert (min(ratios), max(ratios)) == (low, high)


def test_published_shares_of_distinct_ngrams() -> None:
    assert UNIQUE_PER_MILLE == {2: 161, 3: 550, 4: 850}


@pytest.mark.parametrize("tp", RANKS)
@pytest.mark.parametrize("name", PARTITIONS)
def test_released_tables_on_up_to_eight_ranks(name: str, tp: int) -> None:
    cut = partition(name, engram=REAL_ENGRAM, layer_id=14, tp=tp)
    assert sum(cut.local_rows(rank) for rank in range(tp)) == 384_016_682
    assert all(cut.local_rows(rank) > 0 for rank in range(tp))
    assert all(1 <= len(cut.ranges(rank)) <= 24 for rank in range(tp))
    for row in (0, 16_000_476, 16_000_477, 200_000_000, 384_016_681):
        assert cut.to_global(*cut.to_local(row)) == row


def test_adjacent_columns_are_one_range() -> None:
    cut = partition("contiguous-columns", engram=REAL_ENGRAM, layer_id=1, tp=3)
    assert cut.ranges(1) == (Range(lo=128_000_880, hi=256_002_934, base=0),)
    whole = partition("strided", engram=REAL_ENGRAM, layer_id=1, tp=1)
    assert whole.ranges(0) == (Range(lo=0, hi=384_006_168, base=0),)


def test_local_rows_of_a_weighted_shard() -> None:
    cut = partition("weighted", engram=REAL_ENGRAM, layer_id=1, tp=4)
    assert cut.ranges(1)[:2] == (
        Range(lo=16_000_057, hi=32_000_136, base=0),
        Range(lo=80_000_435, hi=96_000_564, base=16_000_079),
    )
    assert cut.to_local(80_000_440) == (1, 16_000_084)
    assert cut.owner(80_000_434) == 0


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda cut: cut.owner(-1), "row -1"),
        (lambda cut: cut.to_local(384_006_168), "outside the table of 384006168"),
        (lambda cut: cut.ranges(3), "Rank 3 of 3"),
        (lambda cut: cut.to_global(0, 128_002_056), "local row 128002056"),
        (lambda cut: cut.to_global(0, -1), "local row -1"),
    ],
)
def test_rows_and_ranks_that_do_not_exist(ask: object, says: str) -> None:
    cut = partition("contiguous-rows", engram=REAL_ENGRAM, layer_id=1, tp=3)
    assert callable(ask)
    with pytest.raises(UsageError, match=says) as error:
        ask(cut)
    assert error.value.code == "D091"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="contiguous-rows, contiguous-columns, strided, weighted"):
        partition("balanced", engram=REAL_ENGRAM, layer_id=1, tp=3)
    with pytest.raises(UsageError, match="whole"):
        column_owners("contiguous-rows", engram=REAL_ENGRAM, tp=3)
    with pytest.raises(UsageError, match="Rank 0 of 0"):
        partition("strided", engram=REAL_ENGRAM, layer_id=1, tp=0)


def _engram(*, heads: int, max_ngram: int = 4, bucket: int = 2) -> Engram:
    return Engram(
        layer_ids=(3, 5),
        bucket=bucket,
        compressed_vocab=3,
        multipliers=((1,) * max_ngram,) * 2,
        max_ngram=max_ngram,
        heads=heads,
    )


_cuts = st.builds(
    lambda name, engram, layer, tp: partition(name, engram=engram, layer_id=layer, tp=tp),
    st.sampled_from(PARTITIONS),
    st.builds(
        lambda heads, max_ngram, bucket: _engram(heads=heads, max_ngram=max_ngram, bucket=bucket),
        st.integers(1, 8),
        st.integers(2, 4),
        st.integers(2, 60),
    ),
    st.sampled_from((3, 5)),
    st.integers(1, 8),
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(cut=_cuts)
def test_every_row_is_in_exactly_one_rank(cut: Partition) -> None:
    owned = [
        row
        for rank in range(cut.tp)
        for part in cut.ranges(rank)
        for row in range(part.lo, part.hi)
    ]
    assert sorted(owned) == list(range(cut.total_rows))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(cut=_cuts)
def test_global_and_local_rows_are_a_bijection(cut: Partition) -> None:
    places = [cut.to_local(row) for row in range(cut.total_rows)]
    expected = {(rank, at) for rank in range(cut.tp) for at in range(cut.local_rows(rank))}
    assert set(places) == expected
    assert len(places) == len(expected)
    assert [cut.to_global(*place) for place in places] == list(range(cut.total_rows))
    assert [cut.owner(row) for row in range(cut.total_rows)] == [rank for rank, _ in places]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(cut=_cuts)
def test_range_tables_are_short_ascending_and_merged(cut: Partition) -> None:
    for rank in range(cut.tp):
        parts = cut.ranges(rank)
        assert len(parts) <= 24
        assert all(part.lo < part.hi for part in parts)
        assert all(before.hi < after.lo for before, after in pairwise(parts))
        bases = [0]
        for part in parts:
            assert part.base == bases[-1]
            bases.append(part.base + part.hi - part.lo)
        assert bases[-1] == cut.local_rows(rank)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(cut=_cuts, rank=st.integers(0, 7))
def test_arrays_and_tensors_answer_as_single_rows_do(cut: Partition, rank: int) -> None:
    rank %= cut.tp
    rows = np.arange(-2, cut.total_rows + 2, dtype=np.int64).reshape(-1, 1)
    expected = [
        local if 0 <= row < cut.total_rows and owner == rank else -1
        for row in rows[:, 0].tolist()
        for owner, local in [cut.to_local(min(max(row, 0), cut.total_rows - 1))]
    ]
    found = cut.locals_of(rank, rows)
    assert found.dtype == np.int64
    assert found.shape == rows.shape
    assert found[:, 0].tolist() == expected
    assert cut.locals_of(rank, torch.from_numpy(rows)).tolist() == found.tolist()
    assert cut.locals_of(rank, int(rows[5, 0])) == expected[5]

    inside = np.arange(-1, cut.local_rows(rank) + 1, dtype=np.int64)
    back = cut.globals_of(rank, inside)
    assert back[[0, -1]].tolist() == [-1, -1]
    assert back[1:-1].tolist() == [cut.to_global(rank, at) for at in inside[1:-1].tolist()]
    assert cut.globals_of(rank, torch.from_numpy(inside)).tolist() == back.tolist()


@pytest.mark.parametrize("tp", RANKS)
@pytest.mark.parametrize("max_ngram", [2, 3, 4, 5])
def test_weighted_is_never_worse_than_strided_and_within_one_column(
    max_ngram: int, tp: int
) -> None:
    heaviest = max(UNIQUE_PER_MILLE.get(order, 1000) for order in range(2, max_ngram + 1))
    for heads in range(1, 17):
        engram = _engram(heads=heads, max_ngram=max_ngram)
        owners = column_owners("weighted", engram=engram, tp=tp)
        loads = expected_load(engram, owners, tp=tp)
        strided = expected_load(engram, column_owners("strided", engram=engram, tp=tp), tp=tp)
        assert max(loads) <= max(strided)
        assert max(loads) - min(loads) <= heaviest
        assert max(owners.count(rank) for rank in range(tp)) <= -(-engram.columns // tp)
