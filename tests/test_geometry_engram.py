"""The Engram tables: goldens of the released model and of the publisher's fixture."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.errors import UsageError
from dsv41.geometry import MULTIPLIERS, REAL_ENGRAM, Engram, Shard, multipliers_of, prime_walk

RELEASED_CONFIG = {
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 16000000,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_compressed_vocab_size": 99092,
    "engram_pad_token_id": 2,
}
FIXTURE_CONFIG = RELEASED_CONFIG | {
    "engram_num_embeddings": [113, 253],
    "engram_vocab_size": 11,
    "engram_n_heads": 2,
    "engram_compressed_vocab_size": 6,
}
FIXTURE_TOKEN_MAP = (0, 1, 1, 1, 2, 2, 3, 4, 5)
LAST_DIGITS = {
    1: "057 079 081 097 121 129 133 183 189 207 211 253 277 289 307 321"
    " 339 381 393 399 403 409 447 463",
    14: "477 487 499 507 511 573 609 627 667 669 693 697 711 729 759 769"
    " 781 799 813 819 841 877 879 889",
}


def test_the_released_tables_have_the_published_rows() -> None:
    assert REAL_ENGRAM.rows(1) == 384_006_168
    assert REAL_ENGRAM.rows(14) == 384_016_682
    assert REAL_ENGRAM.columns == 24
    assert REAL_ENGRAM.row_bytes == 264
    assert [REAL_ENGRAM.order(c) for c in (0, 7, 8, 15, 16, 23)] == [2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("layer", [1, 14])
def test_the_released_primes(layer: int) -> None:
    expected = tuple(16_000_000 + int(last) for last in LAST_DIGITS[layer].split())
    assert REAL_ENGRAM.primes(layer) == expected


def test_the_released_offsets_are_running_sums_within_a_layer() -> None:
    assert REAL_ENGRAM.offsets(1)[:3] == (0, 16_000_057, 32_000_136)
    assert REAL_ENGRAM.offsets(14)[:2] == (0, 16_000_477)
    assert REAL_ENGRAM.offsets(14)[-1] + 16_000_889 == 384_016_682


def test_the_tables_take_189_gib() -> None:
    gib = [REAL_ENGRAM.rows(layer) * REAL_ENGRAM.row_bytes / 2**30 for layer in (1, 14)]
    assert [round(size, 2) for size in gib] == [94.42, 94.42]
    assert round(sum(gib), 1) == 188.8


def test_the_primes_of_the_publishers_fixture() -> None:
    fixture = Engram.from_config(FIXTURE_CONFIG, token_map=FIXTURE_TOKEN_MAP)
    assert fixture.primes(1) == (11, 13, 17, 19, 23, 29)
    assert fixture.primes(14) == (31, 37, 41, 43, 47, 53)
    assert (fixture.rows(1), fixture.rows(14)) == (112, 252)
    assert fixture.pad_id == 1


def test_the_official_keys_give_the_released_geometry() -> None:
    assert Engram.from_config(RELEASED_CONFIG) == REAL_ENGRAM
    assert REAL_ENGRAM.layer_multipliers(1) == (
        76632096046245,
        4839876093313,
        35959672319349,
        73987337458391,
    )
    assert REAL_ENGRAM.layer_multipliers(14) == (
        67716810739261,
        51510806800915,
        30921347202721,
        82619226485591,
    )


@pytest.mark.parametrize(("vocab", "layer"), sorted(MULTIPLIERS))
def test_numpy_still_draws_every_multiplier(vocab: int, layer: int) -> None:
    bound = max(1, (2**63 - 1) // vocab // 2)
    drawn = np.random.default_rng(10007 * layer).integers(0, bound, 4) * 2 + 1
    assert MULTIPLIERS[vocab, layer] == tuple(drawn.tolist())


def test_multipliers_of_the_local_fixture_are_known() -> None:
    assert multipliers_of(99_092, (1, 2)) == (MULTIPLIERS[99_092, 1], MULTIPLIERS[99_092, 2])
    assert multipliers_of(99_092, (1,), max_ngram=3) == ((MULTIPLIERS[99_092, 1])[:3],)


def test_a_small_model_with_the_released_vocabulary() -> None:
    small = RELEASED_CONFIG | {
        "engram_layer_ids": [1, 2],
        "engram_vocab_size": 5000,
        "engram_num_embeddings": [200_000, 200_000],
    }
    engram = Engram.from_config(small)
    assert engram.multipliers == (MULTIPLIERS[99_092, 1], MULTIPLIERS[99_092, 2])
    assert engram.primes(1)[:4] == (5003, 5009, 5011, 5021)
    assert engram.primes(2)[0] > engram.primes(1)[-1]
    assert 24 * 5000 < engram.rows(1) < engram.rows(2) < 24 * 6000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"engram_layer_ids": [1, 15]}, "layer 15"),
        ({"engram_layer_ids": [1, 1]}, "listed twice"),
        ({"engram_layer_ids": "1,14"}, "list of integers"),
        ({"engram_compressed_vocab_size": 99510}, "99510"),
        ({"engram_num_embeddings": [384006168, 384006168]}, "the primes need"),
        ({"engram_num_embeddings": [384006168]}, "the primes need"),
        ({"engram_vocab_size": None}, "engram_vocab_size"),
        ({"engram_n_heads": True}, "engram_n_heads"),
        ({"engram_max_ngram_size": 5}, "no 5 multipliers"),
        ({"engram_max_ngram_size": 1}, "longest n-gram"),
        ({"engram_n_heads": 0}, "positive"),
        ({"engram_pad_token_id": 3}, "pad token 3"),
    ],
)
def test_a_config_that_does_not_hold_together_is_refused(
    change: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as error:
        Engram.from_config(RELEASED_CONFIG | change)
    assert error.value.code == "D090"


def test_values_that_contradict_each_other_are_refused() -> None:
    for change, says in (
        ({"pad_id": 99_092}, "pad id"),
        ({"multipliers": ((1, 1, 1, 1),)}, "multipliers"),
        ({"compressed_vocab": 2**20}, "int64"),
    ):
        with pytest.raises(UsageError, match=says):
            replace(REAL_ENGRAM, **change)


def test_a_layer_without_a_table_is_named() -> None:
    with pytest.raises(UsageError, match="layer 2 has no Engram table"):
        REAL_ENGRAM.rows(2)


def test_a_fixture_with_other_ids_needs_its_token_map() -> None:
    with pytest.raises(UsageError, match="without a token map"):
        Engram.from_config(FIXTURE_CONFIG)


def _by_restarting(bucket: int, layers: int, orders: int, heads: int) -> list[int]:
    """The publisher's rule as it is worded: every order starts over and skips used primes."""
    seen: set[int] = set()
    taken = []
    for _ in range(layers * orders):
        current = bucket - 1
        for _ in range(heads):
            current += 1
            while current in seen or any(current % f == 0 for f in range(2, current)):
                current += 1
            seen.add(current)
            taken.append(current)
    return taken


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    bucket=st.integers(2, 400),
    layers=st.integers(1, 3),
    max_ngram=st.integers(2, 4),
    heads=st.integers(1, 8),
)
def test_one_walk_equals_the_rule_that_restarts(
    bucket: int, layers: int, max_ngram: int, heads: int
) -> None:
    engram = Engram(
        layer_ids=tuple(range(layers)),
        bucket=bucket,
        compressed_vocab=3,
        multipliers=((1,) * max_ngram,) * layers,
        max_ngram=max_ngram,
        heads=heads,
    )
    found = [prime for layer in range(layers) for prime in engram.primes(layer)]
    assert found == _by_restarting(bucket, layers, max_ngram - 1, heads)
    assert sum(found) == sum(engram.rows(layer) for layer in range(layers))


def test_the_walk_begins_at_the_bucket_itself_when_it_is_prime() -> None:
    assert prime_walk(11, 3) == (11, 13, 17)
    assert prime_walk(1, 3) == (2, 3, 5)
    assert prime_walk(24, 2) == (29, 31)  # 25 = 5 * 5: the square root itself is tried


def test_importing_geometry_loads_nothing_heavy() -> None:
    code = (
        "import sys, dsv41.geometry as g; g.REAL_ENGRAM.rows(1);"
        "print(sorted({'numpy', 'tokenizers', 'torch'} & set(sys.modules)))"
    )
    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(("rank", "tp"), [(3, 3), (-1, 3), (0, 0)])
def test_a_rank_that_does_not_exist_is_refused(rank: int, tp: int) -> None:
    with pytest.raises(UsageError, match="0 <= rank < tp") as error:
        Shard(rank=rank, tp=tp)
    assert error.value.code == "D091"
