"""The output cap: no answer runs to the end of the context because a client named no limit.

A request without `max_tokens` once ran 714,106 tokens in 9,509 s on two Sparks
(MiaAI-Lab/DeepSeek-V4.1-Flash-2xDGX-Spark#18, VIS-04); the recipe's answer is
`DSV41_MAX_NEW_TOKENS`, 32,768 tokens by default, 0 for none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Cap:
    """The two limits of a request after the cap, in tokens, and what the cap did."""

    max_tokens: int | None
    max_completion_tokens: int | None
    filled: bool = False
    clamped: bool = False

    @property
    def in_force(self) -> int | None:
        """The limit that counts: `max_completion_tokens` where the client sent it."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens


def cap(*, max_tokens: int | None, max_completion_tokens: int | None, limit: int) -> Cap:
    """Fill the missing limit and lower a larger one; `limit` <= 0 leaves both as they are.

    Only the field in force changes: `max_completion_tokens` when it is given, else `max_tokens`.
    A value of 0 or less is left for the engine to refuse.
    """
    asked = Cap(max_tokens=max_tokens, max_completion_tokens=max_completion_tokens)
    current = asked.in_force
    if limit <= 0 or (current is not None and current <= limit):
        return asked
    if max_completion_tokens is not None:
        return Cap(max_tokens=max_tokens, max_completion_tokens=limit, clamped=True)
    return Cap(
        max_tokens=limit,
        max_completion_tokens=None,
        filled=current is None,
        clamped=current is not None,
    )
