"""What is served: a profile is a TOML file of knobs, each with its reason.

A knob is a table with `value` and `why`, or with `omitted`, the reason why a known knob is
never rendered. Unknown keys, wrong types and contradictions are errors that name the file,
the key and what is allowed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from dsv41.errors import UsageError

Value = bool | int | float | str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a knob's value may be: a type and either a closed set or an inclusive range."""

    kind: type
    among: tuple[Value, ...] = ()
    low: int | None = None
    high: int | None = None

    def allows(self, value: object) -> bool:
        """Whether `value` is of the kind (a bool is no int) and within the set or range."""
        if type(value) is not self.kind:
            return False
        if self.among:
            return value in self.among
        if self.kind is not int or not isinstance(value, int):
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def allowed(self) -> str:
        """The rule in words, for an error message."""
        if self.among:
            return "one of " + ", ".join(map(repr, self.among))
        if self.low is not None:
            return f"{self.kind.__name__} from {self.low}" + (
                f" to {self.high}" if self.high is not None else " up"
            )
        return self.kind.__name__


# The knobs that an engine's renderer understands; a profile names each of its engine's, or omits it with a reason.
KNOBS: Mapping[str, Mapping[str, Rule]] = {
    "local": {
        "tp": Rule(kind=int, low=1, high=8),
        "layout": Rule(kind=str, among=("legal", "balanced")),
        "partition": Rule(
            kind=str, among=("contiguous-rows", "contiguous-columns", "strided", "weighted")
        ),
        "row_engine": Rule(kind=str, among=("auto", "pread")),
        "slots": Rule(kind=int, low=1, high=64),
        "context": Rule(kind=int, low=256, high=4096),
        "peer_timeout_seconds": Rule(kind=int, low=1, high=60),
        "max_new_tokens": Rule(kind=int, low=0),
        "reasoning_effort": Rule(kind=int, low=1, high=100),
        "loop_abort": Rule(kind=bool),
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """One setting: its value and reason, or the reason why it is omitted (`value` is None then)."""

    value: Value | None
    why: str
    omitted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What to serve, with every knob's reason."""

    name: str
    engine: str
    tree: str
    says: str
    knobs: Mapping[str, Knob]

    def __getitem__(self, name: str) -> Value:
        """The value of a knob that is rendered; KeyError for one that is omitted."""
        value = self.knobs[name].value
        if value is None:
            raise KeyError(name)
        return value

    def integer(self, name: str) -> int:
        """The value of an integer knob."""
        return int(self[name])

    def with_values(self, why: str, **values: Value | None) -> Profile:
        """A copy in which the given knobs (those not None) have new values, for the reason `why`."""
        changed = {k: Knob(value=v, why=why) for k, v in values.items() if v is not None}
        merged = {**self.knobs, **changed}
        _check_knobs(self.engine, {k: v.value for k, v in changed.items()}, where=why)
        return replace(self, knobs=merged)


def load(name: str) -> Profile:
    """The profile of that name, or the one in the file at ./path.toml.

    Raises UsageError D090 (unknown profile), D091 (not TOML or unreadable), D092 (wrong shape).
    """
    if name.endswith(".toml") or "/" in name:
        return parse(_read(Path(name)), where=name)
    known = names()
    if name not in known:
        raise UsageError(
            "D093",
            f"There is no profile {name!r}; there are {', '.join(known)}.",
            fix="dsv41 plan --profile " + known[0],
        )
    text = files("dsv41.profiles").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse(text, where=f"profiles/{name}.toml")


def names() -> list[str]:
    """The profiles that ship with dsv41."""
    folder = files("dsv41.profiles")
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def parse(text: str, *, where: str) -> Profile:
    """A profile from TOML text; `where` names the file in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("D094", f"{where} is not TOML: {error}.") from error
    head = _strings(data, ("name", "engine", "tree", "says"), where=where)
    if head["engine"] not in KNOBS:
        raise _wrong(where, "engine", head["engine"], "one of " + ", ".join(KNOBS))
    tables = data.pop("knobs", {})
    if data or not isinstance(tables, dict):
        raise _wrong(where, next(iter(data), "knobs"), "here", "name, engine, tree, says, knobs")
    knobs = {key: _knob(key, table, where=where) for key, table in tables.items()}
    rendered = {k: v.value for k, v in knobs.items() if not v.omitted}
    _check_knobs(head["engine"], rendered, where=where)
    missing = KNOBS[head["engine"]].keys() - knobs.keys()
    if missing:
        raise _wrong(where, f"knobs.{min(missing)}", "missing", "a value or omitted = reason")
    return Profile(**head, knobs=knobs)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("D094", f"The profile file {path} cannot be read: {error}.") from error


def _wrong(where: str, key: str, found: object, allowed: str) -> UsageError:
    return UsageError("D095", f"{where}: {key} is {found!r}; allowed: {allowed}.", fix=f"edit {where}")


def _strings(data: dict[str, Any], keys: tuple[str, ...], *, where: str) -> dict[str, str]:
    for key in keys:
        if not isinstance(data.get(key), str):
            raise _wrong(where, key, data.get(key), "a string")
    return {key: data.pop(key) for key in keys}


def _knob(key: str, table: object, *, where: str) -> Knob:
    if not isinstance(table, dict):
        raise _wrong(where, f"knobs.{key}", table, "a table with value and why, or with omitted")
    match sorted(table):
        case ["omitted"] if isinstance(table["omitted"], str):
            return Knob(value=None, why=table["omitted"], omitted=True)
        case ["value", "why"] if isinstance(table["why"], str):
            return Knob(value=table["value"], why=table["why"])
    raise _wrong(where, f"knobs.{key}", sorted(table), "value and why, or omitted")


def _check_knobs(engine: str, values: Mapping[str, Value | None], *, where: str) -> None:
    rules = KNOBS[engine]
    for key, value in values.items():
        if key not in rules:
            raise _wrong(where, f"knobs.{key}", value, ", ".join(rules))
        if not rules[key].allows(value):
            raise _wrong(where, f"knobs.{key}", value, rules[key].allowed())
