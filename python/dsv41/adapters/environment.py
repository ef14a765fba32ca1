"""Whether the variables that are meant for the plugin say what they can mean.

A switch that is misspelled, or set to a word where a number is read, would leave its change off in
silence: an engine without keys, without a cap, without a check. So an engine with the plugin is
refused then, whatever else is asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from dsv41 import switches
from dsv41.adapters.adapter import OFF_WORDS
from dsv41.errors import Error, UsageError

PREFIX = "DSV41_"
KEY_FILE = switches.SWITCHES["api_key_file"].env
KNOWN = frozenset(switch.env for switch in switches.SWITCHES.values())
# Ours, for builds and tests; a shell that has them may start an engine.
ELSEWHERE = frozenset(f"{PREFIX}{name}" for name in ("BLOBS", "DEB_MIRROR", "SITE", "VENV"))
OF_TESTS = f"{PREFIX}GPU_"


def problems(environ: Mapping[str, str]) -> Iterator[Error]:
    """D075 for each variable of ours that is no switch, D074 for each value that cannot be meant.

    Numbers of the output cap and the loop stop are left to their readers, which take the default
    with a warning, as the recipe does.
    """
    for name in sorted(environ):
        ours = name.upper().startswith(PREFIX) and not name.startswith(OF_TESTS)
        if ours and name not in KNOWN | ELSEWHERE:
            yield _unknown(name)
    for switch in switches.SWITCHES.values():
        if "local" in switch.engines or switch.kind != "integer":
            continue
        try:
            switches.read_exactly(environ, switch.name)
        except UsageError as error:
            yield error
    if environ.get(KEY_FILE, "none").strip().lower() in OFF_WORDS:
        says = f"{KEY_FILE} is {environ[KEY_FILE]!r}; expected the path of a file of keys."
        fix = f"name the file, or unset {KEY_FILE} to serve without keys"
        yield UsageError("D074", says, fix=fix)


def _unknown(name: str) -> UsageError:
    near = difflib.get_close_matches(name.upper(), sorted(KNOWN), n=1)
    meant = f" Is {near[0]} meant?" if near else ""
    fix = f"write {near[0]}, or unset {name}" if near else f"unset {name}"
    says = f"{name} is set and is no switch of this version; it would do nothing.{meant}"
    return UsageError("D075", says, fix=fix)
