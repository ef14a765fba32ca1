"""Engram tables: hash columns, their primes, offsets and multipliers.

An Engram layer has one hash column per n-gram order (2 .. max_ngram) and head, order-major. A
column owns as many consecutive rows of the layer's table as its prime says. Public source: the
model's config.json and the rule of its publisher's ``inference/engram.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING, Any, Self

from dsv41.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RELEASED_COMPRESSED_VOCAB = 99_092
SCALE_BLOCK = 32  # values of a row that share one E8M0 scale byte
INT64_LIMIT = 2**63

# Odd factors of look-back 0..3 by (compressed vocabulary, layer). The publisher draws 4 integers
# below max(1, (2**63 - 1) // vocabulary // 2) from numpy's default_rng seeded with 10007 * layer,
# doubles them and adds 1. They stand here as constants because numpy does not promise its stream; a
# test holds numpy to them.
MULTIPLIERS: dict[tuple[int, int], tuple[int, int, int, int]] = {
    (99_092, 1): (76632096046245, 4839876093313, 35959672319349, 73987337458391),
    (99_092, 2): (76507469730479, 37097805264573, 22647385550623, 71424551940645),
    (99_092, 3): (27526976048817, 81659241234921, 10877931191531, 70296943813729),
    (99_092, 14): (67716810739261, 51510806800915, 30921347202721, 82619226485591),
    (6, 1): (
        1265604610235772205,
        79932166973103877,
        593885974911493955,
        1221925540571170885,
    ),
    (6, 14): (
        1118365701629147841,
        850718144586061385,
        510676356168679127,
        1364484065151725665,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Engram:
    """Geometry of the Engram tables of one model.

    Args:
        layer_ids: layers that own a table, in the order of the config.
        bucket: ``engram_vocab_size``; every prime is at least this.
        compressed_vocab: number of compressed token ids.
        multipliers: per layer, ``max_ngram`` odd factors, look-back 0 first.
        max_ngram: longest n-gram; orders are 2 .. max_ngram.
        heads: hash columns per order.
        head_dim: values of one row (one byte each, E4M3).
        pad_id: compressed id of the pad token; it stands for a blocked look-back.

    Raises:
        UsageError: D090, when the values contradict each other.
    """

    layer_ids: tuple[int, ...]
    bucket: int
    compressed_vocab: int
    multipliers: tuple[tuple[int, ...], ...]
    max_ngram: int = 4
    heads: int = 8
    head_dim: int = 256
    pad_id: int = 2

    def __post_init__(self) -> None:
        _require(min(self.bucket, self.heads, self.head_dim) >= 1, "sizes must be positive")
        _require(self.max_ngram >= 2, f"the longest n-gram must be >= 2, found {self.max_ngram}")
        _require(
            len(set(self.layer_ids)) == len(self.layer_ids),
            f"a layer is listed twice in {list(self.layer_ids)}",
        )
        _require(
            0 <= self.pad_id < self.compressed_vocab,
            f"pad id {self.pad_id} is not below the compressed vocabulary {self.compressed_vocab}",
        )
        _require(
            [len(row) for row in self.multipliers] == [self.max_ngram] * len(self.layer_ids),
            f"expected {self.max_ngram} multipliers for each of {len(self.layer_ids)} layers",
        )
        largest = max((factor for row in self.multipliers for factor in row), default=0)
        _require(
            largest * (self.compressed_vocab - 1) < INT64_LIMIT,
            f"multiplier {largest} times a compressed id does not fit in int64",
        )

    @classmethod
    def from_config(
        cls, text_config: Mapping[str, Any], *, token_map: Sequence[int] | None = None
    ) -> Self:
        """Read the geometry from the ``text_config`` of an official config.json.

        Args:
            text_config: the ``engram_*`` keys are read.
            token_map: token id -> compressed id. May be left out for the released vocabulary of
                99,092 compressed ids, where the pad token 2 keeps its number.

        Raises:
            UsageError: D090, when a key is missing, no multipliers are known for the vocabulary, or
                ``engram_num_embeddings`` says a table has fewer rows than its primes need.
        """
        vocab = _integer(text_config, "engram_compressed_vocab_size")
        layer_ids = tuple(_integers(text_config, "engram_layer_ids"))
        max_ngram = _integer(text_config, "engram_max_ngram_size")
        engram = cls(
            layer_ids=layer_ids,
            bucket=_integer(text_config, "engram_vocab_size"),
            compressed_vocab=vocab,
            multipliers=multipliers_of(vocab, layer_ids, max_ngram=max_ngram),
            max_ngram=max_ngram,
            heads=_integer(text_config, "engram_n_heads"),
            head_dim=_integer(text_config, "engram_head_dim"),
            pad_id=_pad_id(_integer(text_config, "engram_pad_token_id"), vocab, token_map),
        )
        engram._check_tables(_integers(text_config, "engram_num_embeddings"))
        return engram

    @property
    def columns(self) -> int:
        """Hash columns of a layer: column = (order - 2) * heads + head."""
        return (self.max_ngram - 1) * self.heads

    @property
    def scales(self) -> int:
        """Scale bytes of a row: one E8M0 code per 32 values."""
        return self.head_dim // SCALE_BLOCK

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: values, then scales (256 + 8 = 264 in the released model)."""
        return self.head_dim + self.scales

    def order(self, column: int) -> int:
        """N-gram order (2 .. max_ngram) of a hash column."""
        return 2 + column // self.heads

    def layer_multipliers(self, layer_id: int) -> tuple[int, ...]:
        """Factors of look-back 0 .. max_ngram - 1 of one layer."""
        return self.multipliers[self._place(layer_id)]

    def primes(self, layer_id: int) -> tuple[int, ...]:
        """Rows of each hash column of a layer."""
        first = self._place(layer_id) * self.columns
        walk = prime_walk(self.bucket, self.columns * len(self.layer_ids))
        return walk[first : first + self.columns]

    def offsets(self, layer_id: int) -> tuple[int, ...]:
        """First row of each hash column in the layer's table."""
        return (0, *accumulate(self.primes(layer_id)[:-1]))

    def rows(self, layer_id: int) -> int:
        """Rows of the layer's table that the hash can reach: the sum of the primes."""
        return sum(self.primes(layer_id))

    def _place(self, layer_id: int) -> int:
        if layer_id not in self.layer_ids:
            raise _refusal(
                f"layer {layer_id} has no Engram table; layers {list(self.layer_ids)} have"
            )
        return self.layer_ids.index(layer_id)

    def _check_tables(self, stored: Sequence[int]) -> None:
        needed = [self.rows(layer) for layer in self.layer_ids]
        # The publisher's own test fixture stores one row more than the primes need, so only a
        # table that is too short is wrong.
        _require(
            len(stored) == len(needed) and all(a >= b for a, b in zip(stored, needed, strict=True)),
            f"engram_num_embeddings is {list(stored)}, the primes need {needed}",
        )


def multipliers_of(
    compressed_vocab: int, layer_ids: Sequence[int], *, max_ngram: int = 4
) -> tuple[tuple[int, ...], ...]:
    """Known multipliers of each layer.

    Raises:
        UsageError: D090, when the table has none for this vocabulary and layer.
    """
    found = []
    for layer in layer_ids:
        row = MULTIPLIERS.get((compressed_vocab, layer), ())
        _require(
            len(row) >= max_ngram,
            f"no {max_ngram} multipliers are known for compressed vocabulary {compressed_vocab},"
            f" layer {layer}; known (vocabulary, layer) are {sorted(MULTIPLIERS)}",
        )
        found.append(row[:max_ngram])
    return tuple(found)


@lru_cache(maxsize=256)
def prime_walk(bucket: int, count: int) -> tuple[int, ...]:
    """The first ``count`` primes >= bucket.

    The publisher's rule restarts at ``bucket - 1`` for each order and takes the next primes that no
    order of any layer has used; what is used is always the beginning of this walk, so the columns
    of all orders and layers, one after the other, take consecutive primes.
    """
    primes: list[int] = []
    candidate = max(bucket, 2)
    while len(primes) < count:
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return tuple(primes)


def _is_prime(number: int) -> bool:
    if number % 2 == 0:
        return number == 2
    return all(number % factor for factor in range(3, isqrt(number) + 1, 2))


def _pad_id(pad_token: int, vocab: int, token_map: Sequence[int] | None) -> int:
    if token_map is not None:
        return token_map[pad_token]
    _require(
        vocab == RELEASED_COMPRESSED_VOCAB and pad_token == 2,
        f"the compressed id of pad token {pad_token} is not known for {vocab} compressed ids"
        " without a token map",
    )
    return 2


def _integer(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    _require(type(value) is int, f"{key} must be an integer, found {value!r}")
    return int(value)  # type: ignore[arg-type]


def _integers(config: Mapping[str, Any], key: str) -> list[int]:
    value = config.get(key)
    if not isinstance(value, list | tuple) or any(type(item) is not int for item in value):
        raise _refusal(f"{key} must be a list of integers, found {value!r}")
    return list(value)


def _require(met: bool, says: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not met:
        raise _refusal(says)


def _refusal(says: str) -> UsageError:
    return UsageError(
        "D090",
        f"Engram geometry: {says}.",
        fix="compare the engram_* keys of the checkpoint's config.json with the released ones",
    )


REAL_ENGRAM = Engram(
    layer_ids=(1, 14),
    bucket=16_000_000,
    compressed_vocab=RELEASED_COMPRESSED_VOCAB,
    multipliers=multipliers_of(RELEASED_COMPRESSED_VOCAB, (1, 14)),
)
