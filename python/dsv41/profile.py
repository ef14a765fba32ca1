"""What is served: a profile is a TOML file of knobs, each with its reason.

A knob is a table with `value` and `why`, or with `omitted`, the reason why a known knob is
never rendered. Unknown keys, wrong types and contradictions are errors that name the file,
the key and what is allowed. A profile may extend one that ships with dsv41 and then holds only
what differs. Knobs below `trees.NAME` replace those of the profile on that engine tree.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dsv41.errors import UsageError
from dsv41.knobs import KNOBS, OFF, REQUIRED, Rule, Value, flag_for
from dsv41.knobs.given import check_flag, known

__all__ = ["KNOBS", "Knob", "Profile", "Rule", "Value", "load", "names", "parse"]

HEAD = ("name", "engine", "tree", "says")
SWITCHES = ("--eager", "--text-only")  # flags without a value


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """One setting: its value and reason, or the reason why it is omitted (`value` is None then).

    `source` is the file or the flag that the value came from; `before` is what a flag, or a file
    that extends a shipped profile, put it in the place of.
    """

    value: Value | None
    why: str
    omitted: bool = False
    source: str = ""
    before: Knob | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What to serve, with every knob's reason; `where` names its file in errors.

    `trees` has the knobs that are other ones on another engine tree.
    """

    name: str
    engine: str
    tree: str
    says: str
    knobs: Mapping[str, Knob]
    where: str = ""
    trees: Mapping[str, Mapping[str, Knob]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        """The value of a knob that is rendered; KeyError for one that is omitted."""
        value = self.knobs[name].value
        if value is None:
            raise KeyError(name)
        return value

    def get(self, name: str) -> Value | None:
        """The value of a knob; None for one that is omitted or that this engine does not know."""
        knob = self.knobs.get(name)
        return knob.value if knob else None

    def on(self, name: str) -> bool:
        """Whether a knob asks for something: it is rendered and not false, 0 or off."""
        return (self.get(name) or False) not in OFF

    def integer(self, name: str) -> int:
        """The value of an integer knob."""
        return int(self[name])

    def on_tree(self, name: str) -> Profile:
        """The profile on another engine tree, with the knobs that it has for that one."""
        return replace(self, tree=name, knobs={**self.knobs, **self.trees.get(name, {})})

    def with_values(self, why: str, **values: Value | None) -> Profile:
        """A copy in which the given knobs (those not None) have new values, given by `why`.

        `why` is the flag as it is typed, like `--tp` or `--set slots`; UsageError D095 names it.
        """
        given = {k: v for k, v in values.items() if v is not None}
        _check_knobs(self.engine, given, where=why)
        changed = {k: _overridden(self.knobs[k], v, why) for k, v in given.items()}
        return replace(self, knobs={**self.knobs, **changed})

    @property
    def shipped(self) -> bool:
        """Whether it is one of those that ship with dsv41, not a person's own file."""
        return self.where in {f"profiles/{known}.toml" for known in names()}

    @property
    def given(self) -> list[str]:
        """The knobs that a person gave: by flags, or in a file that extends a shipped profile."""
        own = "" if self.shipped else self.where
        knobs = self.knobs.items()
        return [k for k, v in knobs if v.before and (_is_flag(v.source) or v.source == own)]

    def without(self, *names: str) -> Profile:
        """A copy in which these knobs are what they were before a person gave them."""
        given = {name: self.knobs[name].before for name in names if name in self.knobs}
        before = {name: knob for name, knob in given.items() if knob}
        return replace(self, knobs={**self.knobs, **before})

    @property
    def flags(self) -> dict[str, str]:
        """The knobs whose values came from flags, each with its flag as one would type it."""
        given = {k: v.value for k, v in self.knobs.items() if _is_flag(v.source)}
        return {k: flag_for(k, value) for k, value in given.items() if value is not None}

    def origin(self, name: str) -> str:
        """The flag that a knob's value came from, else this profile's file."""
        source = self.knobs[name].source
        return source if _is_flag(source) else self.where

    def mend(self, name: str, value: Value) -> str:
        """The step that gives a knob this value: an edit of a person's own file, else a flag."""
        source = self.origin(name)
        if source in SWITCHES and not value:
            return f"leave out {source}"
        if self.shipped or _is_flag(source):
            return f"give {flag_for(name, value)}"
        return f"write {name} = {{ value = {_toml(value)}, why = ... }} in {self.where}"


def _is_flag(source: str) -> bool:
    return source.startswith("--")


def _toml(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _overridden(old: Knob, value: Value, source: str) -> Knob:
    before = f"omitted: {old.why}" if old.omitted else f"has {old.value!r}: {old.why}"
    why = f"{source}; the profile {before}"
    first = old.before if _is_flag(old.source) or not _is_flag(source) else old
    return Knob(value=value, why=why, source=source, before=first)


def load(name: str) -> Profile:
    """The profile of that name, or the one in the file at ./path.toml.

    Raises UsageError D093 (unknown profile), D094 (not TOML or unreadable), D095 (wrong shape).
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
    return _shipped(name)


@cache
def _shipped(name: str) -> Profile:
    text = files("dsv41.profiles").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse(text, where=f"profiles/{name}.toml")


@cache
def names() -> list[str]:
    """The profiles that ship with dsv41."""
    folder = files("dsv41.profiles")
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def parse(text: str, *, where: str) -> Profile:
    """A profile from TOML text; `where` names the file in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("D094", f"{where} is not TOML: {error}.", fix=f"edit {where}") from error
    base = _base(data, where=where)
    inherited = {"engine": base.engine, "tree": base.tree, "says": base.says} if base else {}
    head = _strings({**inherited, **data}, HEAD, where=where)
    if head["engine"] not in KNOBS or (base and head["engine"] != base.engine):
        allowed = repr(base.engine) if base else "one of " + ", ".join(KNOBS)
        raise _wrong(where, "engine", head["engine"], allowed)
    unknown = [key for key in data if key not in (*HEAD, "knobs", "extends", "trees")]
    if unknown:
        known = ", ".join((*HEAD, "extends", "knobs", "trees"))
        says = f"{where}: unknown key {unknown[0]}; known: {known}."
        raise UsageError("D095", says, fix=f"remove {unknown[0]} from {where}")
    knobs = _knobs(data.get("knobs", {}), head["engine"], where=where)
    trees: dict[str, Mapping[str, Knob]] = {
        name: _knobs(table, head["engine"], where=where)
        for name, table in _table(data.get("trees", {}), "trees", where=where).items()
    }
    if base:
        trees = _inherited(base.trees, knobs) | trees
        shipped = base.on_tree(head["tree"]).knobs
        own = {name: replace(knob, before=shipped.get(name)) for name, knob in knobs.items()}
        knobs = {**shipped, **own}
    missing = KNOBS[head["engine"]].keys() - knobs.keys()
    if missing:
        raise _wrong(where, f"knobs.{min(missing)}", "missing", "a value or omitted = reason")
    return Profile(**head, knobs=knobs, where=where, trees=trees)


def _inherited(
    trees: Mapping[str, Mapping[str, Knob]], own: Mapping[str, Knob]
) -> dict[str, Mapping[str, Knob]]:
    """The knobs of other trees that a file takes over: those that it does not set itself."""
    return {
        name: {key: knob for key, knob in table.items() if key not in own}
        for name, table in trees.items()
    }


def _table(value: object, key: str, *, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, key, value, "a table")
    return value


def _knobs(value: object, engine: str, *, where: str) -> dict[str, Knob]:
    """The knobs of one table, their names and values checked."""
    tables = _table(value, "knobs", where=where)
    knobs = {key: _knob(key, table, where=where) for key, table in tables.items()}
    _check_names(engine, knobs, where=where)
    rendered = {k: v.value for k, v in knobs.items() if not v.omitted}
    _check_knobs(engine, rendered, where=where)
    return knobs


def _base(data: Mapping[str, Any], *, where: str) -> Profile | None:
    """The shipped profile that a file extends."""
    name = data.get("extends")
    if name is None:
        return None
    if name not in names() or where == f"profiles/{name}.toml":
        raise _wrong(where, "extends", name, "one of " + ", ".join(names()))
    return load(name)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "D094",
            f"The profile file {path} cannot be read: {error}.",
            fix=f"give --profile a file that is there, or one of {', '.join(names())}",
        ) from error


def _wrong(where: str, key: str, found: object, allowed: str) -> UsageError:
    return UsageError(
        "D095", f"{where}: {key} is {found!r}; allowed: {allowed}.", fix=f"edit {where}"
    )


def _strings(data: Mapping[str, Any], keys: tuple[str, ...], *, where: str) -> dict[str, str]:
    for key in keys:
        if not isinstance(data.get(key), str):
            raise _wrong(where, key, data.get(key), "a string")
    return {key: data[key] for key in keys}


def _knob(key: str, table: object, *, where: str) -> Knob:
    if not isinstance(table, dict):
        raise _wrong(where, f"knobs.{key}", table, "a table with value and why, or with omitted")
    match sorted(table):
        case ["omitted"] if isinstance(table["omitted"], str) and table["omitted"]:
            return Knob(value=None, why=table["omitted"], omitted=True, source=where)
        case ["value", "why"] if isinstance(table["why"], str) and table["why"]:
            return Knob(value=table["value"], why=table["why"], source=where)
    raise _wrong(where, f"knobs.{key}", sorted(table), "value and why, or omitted")


def _check_names(engine: str, knobs: Mapping[str, Knob], *, where: str) -> None:
    for key, knob in knobs.items():
        if key not in KNOBS[engine]:
            raise _wrong(where, f"knobs.{key}", knob.value, known(engine, key))
        if knob.omitted and key in REQUIRED[engine]:
            raise _wrong(where, f"knobs.{key}", "omitted", "a value: the engine cannot do without")


def _check_knobs(engine: str, values: Mapping[str, Value | None], *, where: str) -> None:
    rules = KNOBS[engine]
    for key, value in values.items():
        if _is_flag(where):
            check_flag(engine, key, value, flag=where)
        if key not in rules:
            raise _wrong(where, f"knobs.{key}", value, known(engine, key))
        if not rules[key].allows(value):
            raise _wrong(where, f"knobs.{key}", value, rules[key].allowed())
