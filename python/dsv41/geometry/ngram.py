"""From compressed token ids to Engram rows: look-back windows and the n-gram hash.

Public source of the rule: the publisher's ``inference/engram.py``, as frozen in the tests of
nemo-automodel 0.7.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41.geometry.engram import Engram


def windows(
    ids: Sequence[int],
    *,
    engram: Engram,
    alive: Sequence[bool] | None = None,
    previous: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    """Look-back windows of consecutive positions of one sequence.

    Args:
        ids: compressed token ids.
        engram: gives the window's length and the pad id.
        alive: False marks an image or padding position; all positions are alive when left out.
        previous: the ids just before, oldest first, as :func:`carry` returned them; fewer than
            ``max_ngram - 1`` mean that the sequence (or what follows its last dead position)
            starts there.

    Returns:
        Per position ``(t_0, .., t_{max_ngram-1})``, t_k being the id k positions back. From the
        first look-back that passes the start or a dead position on, all are the pad id: blocking
        is sticky.
    """
    reach = engram.max_ngram
    history = list(previous)[-(reach - 1) :]
    found = []
    for position, token in enumerate(ids):
        if alive is not None and not alive[position]:
            history = []
            found.append((engram.pad_id,) * reach)
            continue
        history = [*history[-(reach - 1) :], token]
        blocked = reach - len(history)
        found.append((*reversed(history), *(engram.pad_id,) * blocked))
    return found


def carry(
    ids: Sequence[int],
    *,
    engram: Engram,
    alive: Sequence[bool] | None = None,
    previous: Sequence[int] = (),
) -> tuple[int, ...]:
    """What the next call of :func:`windows` on the same sequence needs as ``previous``.

    Returns:
        Up to ``max_ngram - 1`` compressed ids, oldest first; those after the last dead position.
    """
    start, history = 0, list(previous)
    if alive is not None and not all(alive):
        start, history = max(i for i, live in enumerate(alive) if not live) + 1, []
    return tuple([*history, *ids[start:]][-(engram.max_ngram - 1) :])


def hash_columns(
    terms: Sequence[Any],
    *,
    multipliers: Sequence[int],
    primes: Sequence[int],
    offsets: Sequence[int],
    columns: Sequence[int] | None = None,
) -> list[Any]:
    """Rows of the n-grams that end at a position, one per hash column.

    Args:
        terms: ``max_ngram`` operands, look-back 0 first: Python ints, numpy int64 arrays or torch
            int64 tensors of one shape.
        multipliers: ``max_ngram`` factors of the layer; products stay below 2**63.
        primes: rows of each column, order-major.
        offsets: first row of each column.
        columns: the columns that are wanted, ascending; all when left out.

    Returns:
        One row id (of the operands' type and shape) per column.
    """
    heads = len(primes) // (len(terms) - 1)
    wanted = set(range(len(primes)) if columns is None else columns)
    mixed = terms[0] * multipliers[0]
    rows = []
    for back in range(1, len(terms)):
        mixed = mixed ^ (terms[back] * multipliers[back])
        of_order = range((back - 1) * heads, back * heads)
        rows += [
            mixed % primes[column] + offsets[column] for column in of_order if column in wanted
        ]
    return rows


def row_ids(
    ids: Sequence[int],
    *,
    engram: Engram,
    layer_id: int,
    alive: Sequence[bool] | None = None,
    previous: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    """Rows of one layer that each position of a sequence reads: ``columns`` ids per position."""
    geometry = {
        "multipliers": engram.layer_multipliers(layer_id),
        "primes": engram.primes(layer_id),
        "offsets": engram.offsets(layer_id),
    }
    return [
        tuple(hash_columns(window, **geometry))
        for window in windows(ids, engram=engram, alive=alive, previous=previous)
    ]
