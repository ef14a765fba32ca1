"""Models that say anything that they may: what a constraint has to bear."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from dsv41.local.http.constraint import EOS, VOCAB, Formed
from tokenizing import ids_of

Ids = npt.NDArray[np.intp]
Choice = Callable[[Ids], int]


def noise(seed: int) -> Choice:
    """A model without preferences: any allowed token."""
    rng = np.random.default_rng(seed)
    return lambda ids: int(ids[rng.integers(len(ids))])


def stubborn(seed: int) -> Choice:
    """A model that always prefers the same tokens, as a random body does."""
    rank = np.random.default_rng(seed).permutation(VOCAB)
    return lambda ids: int(ids[np.argmax(rank[ids])])


def never_ending(_: int) -> Choice:
    """A model that goes on with letters and digits wherever it may."""
    rank = np.arange(VOCAB) + 10
    rank[[19, 27, 67, 68, 1457]] = range(5)  # 1 9 a b 100
    return lambda ids: int(ids[np.argmin(rank[ids])])


Make = Callable[[int], Choice]
MODELS: list[tuple[Make, int]] = [
    (noise, 0),
    (noise, 1),
    (stubborn, 0),
    (stubborn, 1),
    (stubborn, 3),
]
MODELS.append((never_ending, 0))
every_model = pytest.mark.parametrize(
    ("make", "seed"), MODELS, ids=[f"{make.__name__}{seed}" for make, seed in MODELS]
)


def allowed(formed: Formed) -> Ids:
    return np.nonzero(np.unpackbits(formed.mask().view(np.uint8), bitorder="little"))[0]


def answer(formed: Formed, choose: Choice, limit: int = 400) -> list[int]:
    """All tokens up to the end; fails when there is none."""
    out: list[int] = []
    while len(out) < limit:
        token = choose(allowed(formed))
        if token == EOS:
            return out
        out.append(token)
        if formed.accept(token):
            return out
    raise AssertionError(f"no end after {limit} tokens")


def follow(formed: Formed, text: str) -> None:
    """Write `text` as the tokenizer spells it; fails where that is not allowed, or not the end."""
    *tokens, last = ids_of(text)
    for token in tokens:
        assert token in allowed(formed)
        assert not formed.accept(token)
    assert last in allowed(formed)
    assert formed.accept(last)
