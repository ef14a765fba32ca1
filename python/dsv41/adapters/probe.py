"""Whether an engine has what an adapter hooks: names and signatures, never versions."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from dsv41.adapters.adapter import Adapter, Hook
from dsv41.errors import CheckFailed, Error

log = logging.getLogger(__name__)
MEND = "use the image that the Plan names, or turn the adapter off: dsv41 explain adapters"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a target stands: the module or class that holds it, and what is there now.

    `raw` is what lies in the owner's own `__dict__` (a classmethod object, say), else `value`.
    """

    owner: Any
    name: str
    value: Any
    raw: Any


def problems(adapter: Adapter, environ: Mapping[str, str]) -> Iterator[Error]:
    """Everything that keeps one adapter from being installed; imports what it names."""
    yield from problems_of_hooks(f"adapter {adapter.name}", adapter.hooks)
    for name in adapter.needs:
        try:
            find(name)
        except (LookupError, ImportError) as error:
            yield _missing(f"adapter {adapter.name} needs", name, error)
    try:
        if adapter.check is not None:
            adapter.check(environ)
    except Error as error:
        yield error
    except Exception as error:  # noqa: BLE001 - a probe that breaks says no, whatever it raised
        yield CheckFailed("D142", f"adapter {adapter.name}: its check failed: {error!r}.", fix=MEND)


def find(target: str) -> Place:
    """Where a dotted name stands, importing its modules.

    LookupError when there is nothing of that name, ImportError when a module that is there cannot
    be imported; both with the reason.
    """
    parts = target.split(".")
    owner, used = _module(parts)
    for name in parts[used:-1]:
        owner = _attribute(owner, name)
    value = _attribute(owner, parts[-1])
    raw = vars(owner).get(parts[-1], value) if isinstance(owner, type) else value
    return Place(owner=owner, name=parts[-1], value=value, raw=raw)


def _module(parts: Sequence[str]) -> tuple[Any, int]:
    """The innermost module of a name, short of its last part, and how many parts it takes."""
    found: Any = None
    target = ".".join(parts)
    for used in range(1, len(parts)):
        name = ".".join(parts[:used])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if found is not None and error.name == name:
                return found, used - 1  # not a module: the rest are attributes
            if error.name is not None and target.startswith(error.name):
                raise LookupError(f"there is no module {error.name}") from error
            raise ImportError(f"{name} cannot be imported: {error}") from error
        except Exception as error:
            raise ImportError(f"{name} cannot be imported: {error!r}") from error
    return found, len(parts) - 1


def _attribute(owner: Any, name: str) -> Any:
    with contextlib.suppress(AttributeError):
        return getattr(owner, name)
    if isinstance(owner, ModuleType):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"{owner.__name__}.{name}")
    where = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    raise LookupError(f"{where} has no {name}")


def problems_of_hooks(who: str, hooks: Iterable[Hook]) -> Iterator[Error]:
    """D140 for each target that is not there, D142 for each that is not as it must be."""
    for hook in hooks:
        try:
            place = find(hook.target)
        except (LookupError, ImportError) as error:
            if isinstance(error, ImportError) or not hook.optional:
                yield _missing(f"{who} hooks", hook.target, error)
            else:
                log.warning("dsv41 %s does without %s: %s", who, hook.target, error)
            continue
        yield from _inherited(who, hook, place)
        yield from _drift(who, hook, place.value)


def _inherited(who: str, hook: Hook, place: Place) -> Iterator[Error]:
    """A method that moved to a base class is another method: the base's serves others too."""
    if isinstance(place.owner, type) and place.name not in vars(place.owner):
        has = next((kind for kind in place.owner.__mro__ if place.name in vars(kind)), None)
        reason = LookupError(f"{place.owner.__name__} inherits it from {has and has.__name__}")
        yield _missing(f"{who} hooks", hook.target, reason)


def _missing(who: str, target: str, error: Exception) -> CheckFailed:
    return CheckFailed("D140", f"{who} {target}, which is not there: {error}.", fix=MEND)


def _drift(who: str, hook: Hook, value: Any) -> Iterator[Error]:
    if isinstance(value, type) and hook.kind != "replace":
        says = f"{who}: {hook.target} is a class; a class can be replaced, not wrapped."
        yield CheckFailed("D142", says, fix=MEND)
    elif not callable(value):
        says = f"{who}: {hook.target} is {type(value).__name__}, not a function or class."
        yield CheckFailed("D142", says, fix=MEND)
    elif hook.takes:
        has = _parameters(value)
        lacks = [name for name in hook.takes if name not in has]
        if lacks:
            takes = ", ".join(has) or "nothing"
            says = f"{who}: {hook.target} takes {takes}; expected {', '.join(lacks)} too."
            yield CheckFailed("D142", says, fix=MEND)


def _parameters(value: Any) -> list[str]:
    called = vars(value).get("__init__", value) if isinstance(value, type) else value
    try:
        return list(inspect.signature(called).parameters)
    except (TypeError, ValueError):  # compiled code without a signature
        return []
