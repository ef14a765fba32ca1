"""From the logits of one stream to its next token.

A draw depends on the logits, the request's sampling, its seed and the position alone, so the text
of a stream is the same whoever runs beside it and in whatever order requests came.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from dsv41.errors import EngineFailed

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from dsv41.local.engine.generation import Job, Sampling

    Mask = npt.NDArray[np.int32] | npt.NDArray[np.uint32] | npt.NDArray[np.bool_]
    Row = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def uniform(seed: int, position: int) -> float:
    """Give one number in [0, 1) with 53 random bits for a seed (taken modulo 2**64) and a position.

    The counter-based Philox4x64-10 (Salmon et al., SC 2011) needs no state between draws; its raw
    words are fixed by the algorithm, so the number is the same on every machine.
    """
    key = np.array([seed % 2**64, 0], dtype=np.uint64)
    source = np.random.Philox(key=key, counter=np.array([0, position, 0, 0], dtype=np.uint64))
    return float(int(source.random_raw()) >> 11) * 2.0**-53


def allowed(mask: Mask, vocab: int) -> npt.NDArray[np.bool_]:
    """Turn 32-bit words (lowest bit first) or bools into one bool per id; ids beyond are False."""
    if mask.dtype == np.bool_:
        flags = mask.reshape(-1)
    else:
        words = np.ascontiguousarray(mask).reshape(-1).astype("<i4", copy=False)
        flags = np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)
    out = np.zeros(vocab, dtype=np.bool_)
    out[: min(vocab, flags.size)] = flags[:vocab]
    return out


class Sampler:
    """Draws the tokens of one job; without a seed it takes 64 bits from the system."""

    def __init__(self, job: Job) -> None:
        self.sampling = job.sampling
        given = job.sampling.seed
        self.seed = secrets.randbits(64) if given is None else given
        self.banned = np.asarray(job.banned, dtype=np.int64)

    def draw(self, logits: torch.Tensor, *, position: int, mask: Mask | None = None) -> int:
        """Give the next id from `logits` [vocab]; `position` counts the drawn tokens before it.

        EngineFailed D054 when the logits are not finite or when the mask leaves nothing to draw.
        """
        row = logits.detach().numpy().copy()
        if not np.isfinite(row.max()):
            raise EngineFailed(
                "D054",
                "the logits are not finite; the model computed NaN or inf.",
                fix="check the rows and start again: dsv41 rows verify FILE...",
            )
        row[self.banned[self.banned < row.size]] = -np.inf
        if mask is not None:
            row[~allowed(mask, row.size)] = -np.inf
        top = int(np.argmax(row))  # the lowest id wins a tie
        if row[top] == -np.inf:
            raise EngineFailed(
                "D054",
                "the output constraint allows no token at all here.",
                fix="send the request with a schema that has an answer",
            )
        if self.sampling.temperature == 0.0:
            return top
        return pick(row, self.sampling, uniform(self.seed, position))


def pick(row: Row, sampling: Sampling, at: float) -> int:
    """Give the id where the cumulated probabilities of `row` [vocab] pass `at` in [0, 1).

    With top_p < 1 only the fewest ids that reach top_p together keep their weight; of equally
    likely ones the lower ids stay.
    """
    scaled = (row.astype(np.float64) - float(row.max())) / sampling.temperature
    # float32 halves exp and sort; e**-200 is 0 there, and -200 never overflows the cast
    weights = np.exp(np.maximum(scaled, -200.0).astype(np.float32))
    if sampling.top_p < 1.0:
        weights[~_nucleus(weights, sampling.top_p)] = 0.0
    sums = np.cumsum(weights.astype(np.float64))
    found = int(np.searchsorted(sums, at * sums[-1], side="right"))
    # at * total may round up to the total: then the last id of any weight is meant
    return min(found, int(np.searchsorted(sums, sums[-1], side="left")))


def _nucleus(weights: npt.NDArray[np.float32], top_p: float) -> npt.NDArray[np.bool_]:
    """Say which ids are in the nucleus; a sort of the values is 5 times quicker than one of ids."""
    falling = np.sort(weights)[::-1]
    sums = np.cumsum(falling.astype(np.float64))
    cut = int(np.searchsorted(sums, top_p * sums[-1], side="left"))
    least = falling[cut]
    kept: npt.NDArray[np.bool_] = weights > least
    kept[np.flatnonzero(weights == least)[: cut + 1 - int(kept.sum())]] = True
    return kept
