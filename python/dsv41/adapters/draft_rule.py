"""Which drafted tokens of a block stay alive, by the confidence in each: a rule and its word."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv41 import switches
from dsv41.adapters.adapter import OFF_WORDS
from dsv41.errors import CheckFailed

if TYPE_CHECKING:
    from torch import Tensor

MOST_DRAFTS = 5  # of a word that is a number: the block that the recipes draft


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Which drafts stay alive: `count` of them, or those above `thresholds`; `least` rows always.

    A row is the token that is verified anyway (the anchor) or a draft; `least` counts rows.
    """

    thresholds: tuple[float, ...] = ()
    count: int | None = None
    least: int = 1

    def live(self, confidence: Tensor) -> Tensor:
        """Rows that stay alive, int32 [requests], from confidences, [requests, drafts] in 0..1.

        Drafts live up to the first whose product of confidences so far is below its threshold.
        """
        import torch  # noqa: PLC0415 - the plugin must not import torch where it is off

        requests, drafts = confidence.shape
        if self.count is not None:
            rows = torch.full((requests,), self.count + 1, device=confidence.device)
        else:
            last = len(self.thresholds) - 1
            limits = tuple(self.thresholds[min(at, last)] for at in range(drafts))
            alive = confidence.float().cumprod(1) >= constant(limits, confidence.device)
            rows = 1 + alive.int().cumprod(1).sum(1)
        return rows.clamp(min(self.least, drafts + 1), drafts + 1).int()


def rule_of(environ: Mapping[str, str]) -> Rule | None:
    """The rule that is asked for, None for none; D480 for one that cannot be read."""
    word = switches.read_word(environ, "verify_cap").lower()
    least = switches.read_exactly(environ, "verify_cap_min")
    if word in OFF_WORDS:
        return None
    kind, _, numbers = word.partition(":")
    try:
        if kind == "conf":
            found = Rule(thresholds=tuple(float(n) for n in numbers.split(",")), least=least)
        else:
            found = Rule(count=int(word), least=least)
    except ValueError:
        raise _unread(word) from None
    in_range = all(0.0 <= limit <= 1.0 for limit in found.thresholds)
    if not in_range or not 1 <= (found.count or 1) <= MOST_DRAFTS or found.count == 0 or least < 1:
        raise _unread(f"{word} with at least {least} rows")
    return found


@functools.cache
def constant(values: tuple[float, ...], device: Any) -> Tensor:
    """Values that captured graphs read: one tensor a device, for as long as the process lives."""
    import torch  # noqa: PLC0415 - as above

    return torch.tensor(values, device=device)


def _unread(word: str) -> CheckFailed:
    return CheckFailed(
        "D480",
        f"The cap of verified drafts is {word!r}; expected conf:T, conf:A,B,... with thresholds "
        f"from 0 to 1, a number of drafts from 1 to {MOST_DRAFTS}, or off.",
        fix="set DSV41_VERIFY_CAP=conf:0.1",
    )
