"""What one engine change is: the names it hooks, what it asks of them, the switch that asks for it.

Data only: importing this module, or one that holds an `ADAPTER`, imports neither torch nor an
engine. `install` carries an adapter out, `preflight` asks an image whether it could.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dsv41 import switches

Kind = Literal["before", "after", "around", "replace"]
KINDS: tuple[Kind, ...] = ("before", "after", "around", "replace")
OFF_WORDS = ("", "0", "off", "false")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hook:
    """One place of the engine and what is put there.

    target: its full dotted name: "pkg.mod.func", "pkg.mod.Class.method" or "pkg.mod.Class".
    kind and call: "before" is call(*args, **kwargs) -> (args, kwargs) or None, for unchanged;
    "after" is call(result, *args, **kwargs) -> result; "around" is call(original, *args,
    **kwargs) -> result; "replace" is call(original) -> replacement, the only one for a class.
    takes: parameters of the target (of `__init__`, for a class) that the hook relies on; one that
    is missing is drift, D142.
    optional: some trees lack the target; the hook is installed where it exists, and elsewhere a
    warning says that it is not.
    """

    target: str
    kind: Kind
    call: Callable[..., object]
    takes: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """One engine change: one file, one switch.

    switch: a name in `dsv41.switches.SWITCHES`; `is_on` says when it asks for the adapter.
    engines and trees: where the change is needed (names of `dsv41.engines.trees`).
    needs: further dotted names of the engine that must resolve.
    check: probes beyond names, given the environment; raises a `dsv41.errors.Error`.
    off: words beyond OFF_WORDS that ask for nothing, for a switch of words.
    """

    name: str
    switch: str
    engines: tuple[str, ...]
    trees: tuple[str, ...]
    hooks: tuple[Hook, ...]
    needs: tuple[str, ...] = ()
    check: Callable[[Mapping[str, str]], None] | None = None
    off: tuple[str, ...] = ()


def is_on(adapter: Adapter, environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for it: a number other than 0, a word that is not off.

    A variable that is not set asks for nothing, also where its default is on: an engine that
    merely has the plugin installed is left as it is. UsageError D074 for what is no number where
    one is read: it is not taken for off.
    """
    if not environ.get(switches.SWITCHES[adapter.switch].env, "").strip():
        return False
    if switches.SWITCHES[adapter.switch].kind == "word":
        word = switches.read_word(environ, adapter.switch).lower()
        return word not in (*OFF_WORDS, *adapter.off)
    return switches.read_exactly(environ, adapter.switch) != 0
