"""Windows and hash: the publisher's fixture, the released parameters, and three operand types."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.geometry import (
    REAL_ENGRAM,
    Engram,
    carry,
    hash_columns,
    multipliers_of,
    row_ids,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# from the test of nemo-automodel 0.7.0, frozen from the publisher's inference/engram.py
FIXTURE = Engram(
    layer_ids=(1, 14),
    bucket=11,
    heads=2,
    compressed_vocab=6,
    pad_id=1,
    multipliers=multipliers_of(6, (1, 14)),
)
FIXTURE_TOKEN_MAP = (0, 1, 1, 1, 2, 2, 3, 4, 5)
MASKED_IDS = (7, 1, 4, 3, 8, 7)
MASK = (True, True, False, False, True, True)
PLAIN_IDS = (2, 3, 1, 7, 5, 6)
BLOCKED = {1: (6, 13, 35, 57, 80, 103), 14: (22, 42, 98, 150, 171, 200)}
MASKED_ROWS = {
    1: [
        (10, 13, 39, 43, 71, 100),
        (9, 11, 32, 43, 72, 88),
        BLOCKED[1],
        BLOCKED[1],
        (1, 19, 37, 51, 80, 83),
        (6, 12, 32, 56, 61, 93),
    ],
    14: [
        (3, 34, 100, 141, 191, 245),
        (11, 65, 95, 111, 164, 244),
        BLOCKED[14],
        BLOCKED[14],
        (25, 60, 102, 116, 153, 214),
        (25, 58, 85, 135, 163, 214),
    ],
}
PLAIN_ROWS = {
    1: [
        *[BLOCKED[1]] * 3,
        (10, 13, 39, 43, 71, 100),
        (3, 22, 34, 48, 78, 97),
        (4, 19, 31, 55, 76, 94),
    ],
    14: [
        *[BLOCKED[14]] * 3,
        (3, 34, 100, 141, 191, 245),
        (28, 64, 84, 121, 184, 200),
        (5, 42, 106, 115, 181, 220),
    ],
}

# "The quick brown fox" under the released parameters, rows of the last token
FOX = (237, 4015, 9933, 18307)
FOX_ROWS = {
    1: "3548953 26746392 33486740 57016354 65667189 80645972 96403260 116433114 142773829"
    " 146939961 173196399 186576533 197596287 221273389 227497140 254140962 268216897"
    " 275597844 296976119 316210301 329234885 349074455 355156691 383971685",
    14: "7066053 21639727 34375865 54532367 64910242 83304513 101554919 116747382 134684653"
    " 159654242 175418612 178789319 200259596 213400461 234191580 243776623 258713936"
    " 272871846 293998006 306142277 328132331 341746444 358124153 376813552",
}


def _compressed(ids: Sequence[int]) -> list[int]:
    return [FIXTURE_TOKEN_MAP[token] for token in ids]


@pytest.mark.parametrize("layer", [1, 14])
def test_the_publishers_fixture_with_a_mask(layer: int) -> None:
    found = row_ids(_compressed(MASKED_IDS), engram=FIXTURE, layer_id=layer, alive=MASK)
    assert found == MASKED_ROWS[layer]


@pytest.mark.parametrize("layer", [1, 14])
def test_the_publishers_fixture_without_a_mask(layer: int) -> None:
    found = row_ids(_compressed(PLAIN_IDS), engram=FIXTURE, layer_id=layer)
    assert found == PLAIN_ROWS[layer]


@pytest.mark.parametrize("layer", [1, 14])
def test_the_released_parameters(layer: int) -> None:
    expected = tuple(int(row) for row in FOX_ROWS[layer].split())
    assert row_ids(FOX, engram=REAL_ENGRAM, layer_id=layer)[-1] == expected


def test_vectors_at_the_edges_of_the_vocabulary() -> None:
    engram = replace(REAL_ENGRAM, pad_id=7)
    ids = (5, 17, 99091, 0, 42)
    first = row_ids(ids, engram=engram, layer_id=1)
    assert first[0][:9] == (
        6961830,
        31143904,
        34796895,
        48021142,
        75858929,
        90471933,
        97778503,
        125113896,
        138376174,
    )
    assert first[0][-1] == 373055409
    assert first[4][:4] == (7905795, 30439965, 44125553, 57613403)
    assert first[4][-1] == 374224477
    second = row_ids(ids, engram=engram, layer_id=14)
    assert second[3][:3] == (13474695, 28825723, 39710019)
    assert second[3][-1] == 371800352


def test_blocking_is_sticky() -> None:
    engram = replace(REAL_ENGRAM, pad_id=9)
    found = windows((1, 2, 3, 4, 5), engram=engram, alive=(True, False, True, True, True))
    assert found == [(1, 9, 9, 9), (9, 9, 9, 9), (3, 9, 9, 9), (4, 3, 9, 9), (5, 4, 3, 9)]


def test_history_is_carried_until_a_dead_position_cuts_it() -> None:
    assert windows((4,), engram=REAL_ENGRAM, previous=(1, 2, 3)) == [(4, 3, 2, 1)]
    assert windows((4,), engram=REAL_ENGRAM, previous=(0, 1, 2, 3)) == [(4, 3, 2, 1)]
    assert windows((4,), engram=REAL_ENGRAM, previous=(3,)) == [(4, 3, 2, 2)]
    assert carry((1, 2, 3, 4), engram=REAL_ENGRAM) == (2, 3, 4)
    assert carry((4,), engram=REAL_ENGRAM, previous=(1, 2, 3)) == (2, 3, 4)
    assert carry((4, 5), engram=REAL_ENGRAM, previous=(3,), alive=(False, True)) == (5,)
    assert carry((4, 5), engram=REAL_ENGRAM, previous=(3,), alive=(True, False)) == ()
    assert carry((), engram=REAL_ENGRAM, previous=(1, 2)) == (1, 2)


_tokens = st.lists(st.tuples(st.integers(0, 99_091), st.booleans()), max_size=24)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(tokens=_tokens, cuts=st.lists(st.integers(0, 24), max_size=4))
def test_any_chunks_give_the_windows_of_the_whole(
    tokens: list[tuple[int, bool]], cuts: list[int]
) -> None:
    ids = [token for token, _ in tokens]
    alive = [live for _, live in tokens]
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    previous: tuple[int, ...] = ()
    chunked = []
    for start, stop in pairwise(bounds):
        part, mask = ids[start:stop], alive[start:stop]
        chunked += windows(part, engram=REAL_ENGRAM, alive=mask, previous=previous)
        previous = carry(part, engram=REAL_ENGRAM, alive=mask, previous=previous)
    assert chunked == windows(ids, engram=REAL_ENGRAM, alive=alive)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    ids=st.lists(st.integers(0, 99_091), min_size=1, max_size=12),
    layer=st.sampled_from(REAL_ENGRAM.layer_ids),
)
def test_ints_numpy_and_torch_agree_and_stay_in_their_columns(ids: list[int], layer: int) -> None:
    terms = list(zip(*windows(ids, engram=REAL_ENGRAM), strict=True))
    primes, offsets = REAL_ENGRAM.primes(layer), REAL_ENGRAM.offsets(layer)
    geometry = {
        "multipliers": REAL_ENGRAM.layer_multipliers(layer),
        "primes": primes,
        "offsets": offsets,
    }
    plain = np.array(row_ids(ids, engram=REAL_ENGRAM, layer_id=layer)).T
    arrays = hash_columns([np.array(term, dtype=np.int64) for term in terms], **geometry)
    tensors = hash_columns([torch.tensor(term, dtype=torch.int64) for term in terms], **geometry)
    assert all(array.dtype == np.int64 for array in arrays)
    assert all(tensor.dtype == torch.int64 for tensor in tensors)
    assert (np.stack(arrays) == plain).all()
    assert (torch.stack(tensors).numpy() == plain).all()
    lows, highs = np.array(offsets), np.array(offsets) + np.array(primes)
    assert ((plain >= lows[:, None]) & (plain < highs[:, None])).all()
