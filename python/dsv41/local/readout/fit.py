"""Fits the output head, so that the tiny model answers: `python -m dsv41.local.readout.fit`.

The body of the model stays random. Its normed final states at the positions of the answers are the
features of a softmax regression: rows of the head for the tokens that occur in answers, all other
rows zero. The regression is convex and solved to the end in float64, then rounded to a grid that
is far coarser than the error left: the file comes out the same wherever it is fitted.
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
from dsv41.local.readout.conversations import conversations
from dsv41.local.weights import load_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

log = logging.getLogger(__name__)

HEAD = Path(__file__).with_name("head.safetensors")
PENALTY = 0.01  # of the squared norm: small enough that margins are nearly the widest possible
GRID = 2.0**-6  # weights are multiples of this before they are scaled
SCALE = 4.0  # raises the least margin of 7 logits to 28: sampling at temperature 1 is safe as well
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


def body(directory: Path) -> tuple[Model, ModelConfig]:
    """Load the model in float64, its Engram rows straight from the checkpoint."""
    config, alone = ModelConfig.from_file(directory), Shard(rank=0, tp=1)
    weights = load_shard(directory, config=config, shard=alone, dtype=torch.float64)
    model = Model(
        config=config,
        weights=weights,
        shard=alone,
        layout="legal",
        rows=TableReader.from_checkpoint(directory, config),
        comm=Alone(),
        token_map=np.fromfile(directory / "token_map.i32", "<i4").tolist(),
        dtype=torch.float64,
    )
    return model, config


def features(model: Model, tokenizer: str) -> Features:
    """Run every conversation with its answer given, and keep the states that say the answer."""
    states: list[Tensor] = []
    targets: list[int] = []
    for conversation in conversations(tokenizer):
        said = [*conversation.prompt, *conversation.answer[:-1]]
        cache = model.cache(slots=1, capacity=len(said))
        states.append(model.states(cache, slot=0, tokens=said)[len(conversation.prompt) - 1 :])
        targets += conversation.answer
    return Features(states=torch.cat(states).clone(), targets=torch.tensor(targets))


def fit(found: Features) -> Fitted:
    """Solve the regression and round it."""
    distinct, inverse = np.unique(found.targets.numpy(), return_inverse=True)
    token_ids, classes = torch.from_numpy(distinct), torch.from_numpy(inverse)
    rows = Regression(found.states, classes, count=len(token_ids)).solve()
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
        model, _ = body(directory)
        found = features(model, (directory / "tokenizer.json").read_text(encoding="utf-8"))
    fitted = fit(found)
    margin = float(fitted.margins(found).min())
    positions, tokens = len(found.targets), len(fitted.token_ids)
    log.info("%d positions, %d tokens, least margin %.2f logits", positions, tokens, margin)
    if options.check:
        same = options.out.read_bytes() == fitted.content()
        log.info("%s %s", options.out, "is the same" if same else "differs")
        return int(not same)
    options.out.write_bytes(fitted.content())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
