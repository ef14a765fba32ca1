"""How hard the model is asked to think: every spelling of it as one budget from 1 to 100.

The prompt says `Reasoning Effort: 75 (range 1-100, ...)`. The publisher's tiers for V4.1 are low
50, high 75 and max 100 (deepseek-recipe 0.2.0, which adds minimal, medium, xhigh and ultra);
engines that copied the tiers of an earlier encoder halve them (sgl-project/sglang#39909).
"""

from __future__ import annotations

DEFAULT_BUDGET = 75
TIERS = {
    "minimal": 50,
    "low": 50,
    "medium": 75,
    "high": 75,
    "xhigh": 75,
    "ultra": 100,
    "max": 100,
}
OFF = "none"  # thinking off when sent alone; the default budget where thinking is asked for


def budget(value: object) -> int:
    """Give the budget, 1 to 100, that a tier, an integer or a fraction below 1 stands for.

    An integer may come as digits or as a whole float (75.0); a fraction is a share of 100, at least
    1. Anything else raises ValueError with a sentence for the client.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        if word in TIERS:
            return TIERS[word]
        if word.isascii() and word.isdigit():
            return _in_range(int(word), value)
    elif isinstance(value, float):
        return _from_float(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        return _in_range(value, value)
    raise ValueError(_refusal(value))


def budget_or(value: object, default: int = DEFAULT_BUDGET) -> tuple[int, str | None]:
    """Give the budget, or `default` and a warning: for an engine that must not refuse requests."""
    if value is None or value == OFF:
        return default, None
    try:
        return budget(value), None
    except ValueError as error:
        return default, f"{error} {default} is used."


def _from_float(value: float) -> int:
    if 0 <= value < 1:
        return max(1, round(value * 100))
    if value != 1.0 and value.is_integer():  # 1.0 could mean all or next to nothing
        return _in_range(int(value), value)
    raise ValueError(_refusal(value))


def _in_range(number: int, value: object) -> int:
    if not 1 <= number <= 100:
        raise ValueError(_refusal(value))
    return number


def _refusal(value: object) -> str:
    tiers = ", ".join(TIERS)
    return (
        f"reasoning effort must be one of none, {tiers}, an integer from 1 to 100 "
        f"or a fraction from 0 to 0.99, not {value!r}."
    )
