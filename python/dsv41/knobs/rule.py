"""What one knob may be: a type, a closed set or a range or a pattern, and what it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

Value = bool | int | float | str

# the values with which a knob asks for nothing, so that it needs no capability of the engine
OFF: tuple[Value, ...] = (False, 0, 0.0, "", "off")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a knob's value may be: a type and a closed set, an inclusive range or a pattern.

    `needs` is the capability that the engine tree (`engines.trees`) must have when it is on.
    """

    kind: type
    among: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None
    pattern: str = ""
    needs: str = ""

    def allows(self, value: object) -> bool:
        """Whether `value` is of the kind (a bool is no int) and within set, range or pattern."""
        if type(value) is not self.kind:
            return False
        if self.among:
            return value in self.among
        if isinstance(value, str):
            return not self.pattern or re.fullmatch(self.pattern, value) is not None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def allowed(self) -> str:
        """The rule in words, for an error message."""
        if self.among:
            return "one of " + ", ".join(map(repr, self.among))
        if self.pattern:
            return f"a string like {self.pattern}"
        if self.low is not None:
            return f"{self.kind.__name__} from {self.low:g}" + (
                f" to {self.high:g}" if self.high is not None else " up"
            )
        return self.kind.__name__


def number(low: int, high: int | None = None, *, needs: str = "") -> Rule:
    """An integer within inclusive bounds."""
    return Rule(kind=int, low=low, high=high, needs=needs)


def flag(*, needs: str = "") -> Rule:
    """A switch that is on or off."""
    return Rule(kind=bool, needs=needs)


def words(*among: str, needs: str = "") -> Rule:
    """One of a closed set of words."""
    return Rule(kind=str, among=among, needs=needs)


def text(pattern: str, *, needs: str = "") -> Rule:
    """A string of a pattern that must match as a whole."""
    return Rule(kind=str, pattern=pattern, needs=needs)


def fraction(low: float, high: float, *, needs: str = "") -> Rule:
    """A float within inclusive bounds."""
    return Rule(kind=float, low=low, high=high, needs=needs)
