"""A knob that a person gave: what is known near its name, and the flag that mends a wrong one."""

from __future__ import annotations

import shlex
from difflib import get_close_matches

from dsv41.errors import UsageError
from dsv41.knobs import KNOBS
from dsv41.knobs.rule import Value, shown, written

FEW = 20  # so many knobs are listed in an error
SET = "--set "


def unknown_knob(engine: str, key: str, *, where: str, fix: str) -> UsageError:
    """UsageError D095 for a name that no knob has: all of a few, of many those that are near."""
    all_of_them = list(KNOBS[engine])
    near = get_close_matches(key, all_of_them, n=4, cutoff=0.4)
    known = "docs/reference/profiles.md lists all"
    if len(all_of_them) <= FEW:
        known = "it has " + ", ".join(all_of_them)
    elif near:
        known = f"the nearest are {', '.join(near)}; {known}"
    return UsageError("D095", f"{where}: engine {engine} has no knob {key}; {known}.", fix=fix)


def check_flag(engine: str, key: str, value: object, *, flag: str) -> None:
    """UsageError D095 for a wrong value or name, D107 for none; another flag mends it."""
    rule = KNOBS[engine].get(key)
    out = f"leave out {_typed(flag, value)}"
    if not key:
        given = _typed(flag, value)
        fix = f"give {_typed(SET + 'KNOB', value)}"
        raise UsageError("D107", f"{given} is not KNOB=VALUE.", fix=fix)
    if rule is None:
        near = get_close_matches(key, KNOBS[engine], n=1) if flag.startswith(SET) else []
        takes = near and KNOBS[engine][near[0]].allows(value)
        fix = f"give {_typed(SET + near[0], value)}" if takes else out
        raise unknown_knob(engine, key, where=flag, fix=fix)
    if not rule.allows(value):
        right = rule.nearest(value)
        says = f"{flag}: knobs.{key} is {shown(value)}; allowed: {rule.allowed()}."
        fix = out if right is None else f"give {_typed(flag, right)}"
        raise UsageError("D095", says, fix=fix)


def _typed(flag: str, value: object) -> str:
    """A flag with its value as one would type it; `--eager` has none."""
    text = shlex.quote(written(value) if isinstance(value, Value) else str(value))
    if flag.startswith(SET):
        return f"{flag}={text}"
    return flag if value is True else f"{flag} {text}"
