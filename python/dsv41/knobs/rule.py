"""What one knob may be: a type, a closed set or a range or a pattern, and what it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite

Value = bool | int | float | str

# the values with which a knob asks for nothing, so that it needs no capability of the engine
OFF: tuple[Value, ...] = (False, 0, 0.0, "", "off")


def written(value: Value) -> str:
    """A value as `--set KNOB=VALUE` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: object) -> str:
    """A value in a message: a switch as TOML and flags have it, a string in quotes."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def flag_for(knob: str, value: Value) -> str:
    """The words of `dsv41 plan` that give a knob a value."""
    return f"--tp {value}" if knob == "tp" else f"--set {knob}={written(value)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a knob's value may be: a type and a closed set, an inclusive range or a pattern.

    `needs` is the capability that the engine tree (`engines.trees`) must have when it is on; with a
    value of `OFF`, or with `as_is`, which is what every tree does anyway, it asks for none.
    """

    kind: type
    among: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None
    pattern: str = ""
    needs: str = ""
    as_is: Value | None = None

    def allows(self, value: object) -> bool:
        """Whether `value` is of the kind (a bool is no int) and within set, range or pattern."""
        whole = self.kind is float and type(value) is int  # 4 is 4.0
        if type(value) is not self.kind and not whole:
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
            return f"{self.kind.__name__} from {self._range()}"
        return "true or false" if self.kind is bool else self.kind.__name__

    def nearest(self, value: object) -> Value | None:
        """What may stand in the place of a value that may not: a word like it, the bound passed."""
        among = (True, False) if self.kind is bool else self.among
        if among:
            words = {written(one): one for one in among}
            close = get_close_matches(str(value).lower(), words, n=1)
            return words[close[0]] if close else None
        if self.kind is str or isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if isinstance(value, float) and not isfinite(value):
            return None
        low = value if self.low is None else max(value, self.low)
        within = low if self.high is None else min(low, self.high)
        return int(within) if self.kind is int else float(within)

    def _range(self) -> str:
        # 12 digits: 1048576 is not to read 1.04858e+06
        return f"{self.low:.12g}" + (" up" if self.high is None else f" to {self.high:.12g}")


def number(low: int, high: int | None = None, *, needs: str = "", as_is: int | None = None) -> Rule:
    """An integer within inclusive bounds."""
    return Rule(kind=int, low=low, high=high, needs=needs, as_is=as_is)


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
