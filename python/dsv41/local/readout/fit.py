"""Fits the output head, so that the tiny model answers: `python -m dsv41.local.readout.fit`.

The body of the model stays random. Its normed final states at the positions of the answers are the
features of a softmax regression: rows of the head for the tokens that occur in answers, all other
rows zero. The regression is convex and solved to the end in float64, then rounded to a grid that
is far coarser than the error left: the file comes out the same wherever it is fitted.

The states that the same texts have when no Engram row is read are fitted to a question mark: a
service that reads zeros shows it in every answer.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from safetensors.torch import save

from dsv41.geometry import Shard
from dsv41.local import checkpoint
from dsv41.local.comm import Alone
from dsv41.local.config import ModelConfig
from dsv41.local.engram import TableReader
from dsv41.local.model import Model
from dsv41.local.readout.conversations import Conversation, conversations
from dsv41.local.weights import load_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dsv41.geometry import Engram
    from dsv41.local.engram import RowReader, Rows

log = logging.getLogger(__name__)

HEAD = Path(__file__).with_name("head.safetensors")
PENALTY = 0.01  # of the squared norm: small enough that margins are nearly the widest possible
GRID = 2.0**-6  # weights are multiples of this before they are scaled
SCALE = 8.0  # raises the least margin of 4 logits to 35: sampling at temperature 1 is safe as well
UNSURE = 33  # "?"
STEPS, INNER = 60, 2000  # most Newton steps, and conjugate-gradient steps in each


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """States float64 [n, d] that must be answered by `targets` int64 [n]."""

    states: Tensor
    targets: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """Rows float64 [tokens, d] of the head, for `token_ids` int64 [tokens], ascending."""

    token_ids: Tensor
    rows: Tensor

    def margins(self, features: Features) -> Tensor:
        """By how many logits each target leads over every other token: [n]."""
        logits = F.pad(features.states @ self.rows.t(), (0, 1))  # tokens without a row have logit 0
        at = torch.searchsorted(self.token_ids, features.targets).unsqueeze(1)
        others = logits.scatter(1, at, -torch.inf).amax(1)
        return logits.gather(1, at).squeeze(1) - others

    def content(self) -> bytes:
        """The committed file; every value must be a BF16 number."""
        rows = self.rows.to(torch.bfloat16)
        if not torch.equal(rows.double(), self.rows):
            raise ValueError("a weight of the fitted head is no BF16 number")
        return save({"token_ids": self.token_ids.int(), "rows": rows})


class NoRows:
    """A reader that finds zeros everywhere."""

    def columns(self, engram: Engram, layer_id: int) -> Sequence[int]:
        """Name every column."""
        del layer_id
        return range(engram.columns)

    def ask(self, layer_id: int, ids: Tensor) -> Rows:
        """Zeros of the released row's width: float64 [n, columns, 256]."""
        del layer_id
        return lambda: torch.zeros(*ids.shape, 256, dtype=torch.float64)


def body(directory: Path, rows: RowReader | None = None) -> Model:
    """Load the model in float64; left out, `rows` come straight from the checkpoint."""
    config, alone = ModelConfig.from_file(directory), Shard(rank=0, tp=1)
    return Model(
        config=config,
        weights=load_shard(directory, config=config, shard=alone, dtype=torch.float64),
        shard=alone,
        layout="legal",
        rows=TableReader.from_checkpoint(directory, config) if rows is None else rows,
        comm=Alone(),
        token_map=np.fromfile(directory / "token_map.i32", "<i4").tolist(),
        dtype=torch.float64,
    )


def answering(model: Model, canned: Sequence[Conversation]) -> Features:
    """Run every conversation with its answer given, and keep the states that say the answer."""
    states: list[Tensor] = []
    targets: list[int] = []
    for conversation in canned:
        said = [*conversation.prompt, *conversation.answer[:-1]]
        cache = model.cache(slots=1, capacity=len(said))
        states.append(model.states(cache, slot=0, tokens=said)[len(conversation.prompt) - 1 :])
        targets += conversation.answer
    return Features(states=torch.cat(states).clone(), targets=torch.tensor(targets))


def features(directory: Path) -> tuple[Features, Features]:
    """States of all answers, with their tokens; and the same texts' without rows, with UNSURE."""
    canned = conversations((directory / "tokenizer.json").read_text(encoding="utf-8"))
    right = answering(body(directory), canned)
    blank = answering(body(directory, NoRows()), canned).states
    return right, Features(states=blank, targets=torch.full((len(blank),), UNSURE))


def fit(*found: Features) -> Fitted:
    """Solve the regression over all features and round it."""
    targets = torch.cat([part.targets for part in found])
    distinct, inverse = np.unique(targets.numpy(), return_inverse=True)
    token_ids, classes = torch.from_numpy(distinct), torch.from_numpy(inverse)
    states = torch.cat([part.states for part in found])
    rows = Regression(states, classes, count=len(token_ids)).solve()
    return Fitted(token_ids=token_ids, rows=(rows / GRID).round() * GRID * SCALE)


class Regression:
    """Softmax regression with one more class, whose logit is always 0, and a squared penalty.

    Newton's method: the objective is strictly convex, and its curvature is applied without being
    formed, by conjugate gradients.
    """

    def __init__(self, states: Tensor, classes: Tensor, *, count: int) -> None:
        self._states, self._classes = states, classes
        self._wanted = F.one_hot(classes, count).to(states.dtype)
        self._count = count

    def solve(self) -> Tensor:
        """Weights [count, d] where the gradient has vanished but for rounding."""
        weights = self._states.new_zeros(self._count, self._states.shape[1])
        for _ in range(STEPS):
            shares = self._shares(weights)
            gradient = (shares - self._wanted).t() @ self._states + PENALTY * weights
            if gradient.abs().max() < 1e-12:
                return weights
            weights = self._descend(weights, self._direction(gradient, shares))
        raise ArithmeticError(f"the regression did not converge in {STEPS} steps")

    def _shares(self, weights: Tensor) -> Tensor:
        """Probabilities [n, count] of the classes with a row."""
        return F.pad(self._states @ weights.t(), (0, 1)).softmax(1)[:, :-1]

    def _loss(self, weights: Tensor) -> float:
        logits = F.pad(self._states @ weights.t(), (0, 1))
        penalty = PENALTY / 2 * weights.square().sum()
        return float(F.cross_entropy(logits, self._classes, reduction="sum") + penalty)

    def _descend(self, weights: Tensor, direction: Tensor) -> Tensor:
        """The longest of the steps 1, 1/2, 1/4 .. that does not raise the loss."""
        before, length = self._loss(weights), 1.0
        while self._loss(weights - length * direction) > before + 1e-12 and length > 1e-6:
            length /= 2
        return weights - length * direction

    def _curve(self, direction: Tensor, shares: Tensor) -> Tensor:
        """The curvature at `shares`, applied to a direction [count, d]."""
        change = self._states @ direction.t()
        change = shares * (change - (shares * change).sum(1, keepdim=True))
        return change.t() @ self._states + PENALTY * direction

    def _direction(self, gradient: Tensor, shares: Tensor) -> Tensor:
        """Newton's direction: conjugate gradients on curvature times direction = gradient."""
        direction, left = torch.zeros_like(gradient), gradient.clone()
        search, size = left.clone(), left.square().sum()
        aim = size * 1e-12
        for _ in range(INNER):
            if size <= aim:
                break
            curved = self._curve(search, shares)
            length = size / (search * curved).sum()
            direction += length * search
            left -= length * curved
            size, last = left.square().sum(), size
            search = left + size / last * search
        return direction


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and write the file, or compare with --check; the status is 1 when they differ."""
    parser = argparse.ArgumentParser(prog="python -m dsv41.local.readout.fit", description=__doc__)
    parser.add_argument("--out", type=Path, default=HEAD, help="the file to write")
    parser.add_argument("--check", action="store_true", help="compare with the file instead")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as folder:
        directory = checkpoint.make(Path(folder), "fixture", readout=None)
        right, unsure = features(directory)
    fitted = fit(right, unsure)
    margin = float(fitted.margins(right).min())
    positions, tokens = len(right.targets), len(fitted.token_ids)
    log.info("%d positions, %d tokens, least margin %.2f logits", positions, tokens, margin)
    if options.check:
        same = options.out.read_bytes() == fitted.content()
        log.info("%s %s", options.out, "is the same" if same else "differs")
        return int(not same)
    options.out.write_bytes(fitted.content())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
