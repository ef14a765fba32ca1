"""A knob that a person gave: what is known near its name, and the flag that mends a wrong one."""

from __future__ import annotations

from difflib import get_close_matches

from dsv41.errors import UsageError
from dsv41.knobs import KNOBS

FEW = 20  # so many knobs are listed in an error


def known(engine: str, key: str) -> str:
    """The knobs of an engine; of many those alone whose names are near."""
    all_of_them = list(KNOBS[engine])
    if len(all_of_them) <= FEW:
        return ", ".join(all_of_them)
    near = get_close_matches(key, all_of_them, n=4, cutoff=0.4)
    return ", ".join([*near, "what docs/reference/profiles.md lists"])


def check_flag(engine: str, key: str, value: object, *, flag: str) -> None:
    """UsageError D095 for a wrong value or name; what mends a flag is another flag."""
    rule = KNOBS[engine].get(key)
    if rule is None:
        near = get_close_matches(key, KNOBS[engine], n=1)
        raise UsageError(
            "D095",
            f"{flag}: engine {engine} has no knob {key}; it has {known(engine, key)}.",
            fix=f"give --set {near[0]}=..."
            if near and flag.startswith("--set ")
            else f"leave out {flag}",
        )
    if not rule.allows(value):
        between = "=" if flag.startswith("--set ") else " "
        raise UsageError(
            "D095",
            f"{flag}: knobs.{key} is {value!r}; allowed: {rule.allowed()}.",
            fix=f"give {flag}{between}{rule.values()}",
        )
