"""Whether this image's engine can carry the adapters that the environment asks for.

`python -m dsv41.adapters.preflight --engine sglang` runs inside the image before the engine does,
with the engine's environment. Exit 0, or 1 with a line for everything that is missing. With no
adapter asked for it looks at the names and values of our variables alone and imports no engine.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterator, Mapping
from importlib import metadata

from dsv41.adapters import environment, probe
from dsv41.adapters.adapter import is_on
from dsv41.adapters.sglang import workers
from dsv41.adapters.table import TABLES
from dsv41.errors import CheckFailed, Error

PLUGIN = "dsv41"  # our entry point's name in both groups
_GROUPS = {"sglang": "sglang.srt.plugins", "vllm": "vllm.general_plugins"}
_ALLOWED = {"sglang": "SGLANG_PLUGINS", "vllm": "VLLM_PLUGINS"}  # comma-separated names
_REGISTRY = "sglang.srt.plugins.hook_registry"
# what `install` and the engine's own loader are to each other
_LOADER = {
    "sglang": (
        "sglang.srt.plugins.load_plugins",
        f"{_REGISTRY}.HookType",
        *(f"{_REGISTRY}.HookRegistry.{name}" for name in ("register", "apply_hooks", "_patched")),
    ),
    "vllm": ("vllm.plugins.load_general_plugins",),
}
_ALWAYS = {"sglang": workers.HOOKS, "vllm": ()}


def problems(engine: str, environ: Mapping[str, str]) -> Iterator[Error]:
    """Everything that is missing for what the environment asks for, in the adapters' order."""
    unclear = list(environment.problems(environ))
    if unclear:
        yield from unclear
        return
    wanted = [adapter for adapter in TABLES[engine] if is_on(adapter, environ)]
    if not wanted:
        return
    yield from _left_out(engine, environ)
    if _absent(engine):
        says = f"this Python has no package {engine}, so nothing of it can be looked for."
        yield CheckFailed("D141", says, fix="use the image that the Plan names")
        return
    yield from _without_loader(engine)
    yield from probe.problems_of_hooks(f"the {engine} plugin", _ALWAYS[engine])
    for adapter in wanted:
        yield from probe.problems(adapter, environ)


def _absent(engine: str) -> bool:
    """Whether there is no such package at all; one that cannot be imported is there."""
    try:
        importlib.import_module(engine)
    except ModuleNotFoundError as error:
        return error.name == engine
    except Exception:  # noqa: BLE001 - what it says is said of each name that is looked for
        return False
    return False


def _left_out(engine: str, environ: Mapping[str, str]) -> Iterator[Error]:
    """D141 when the engine's loader would not call our `register`."""
    group, variable = _GROUPS[engine], _ALLOWED[engine]
    if PLUGIN not in {point.name for point in metadata.entry_points(group=group)}:
        says = f"no installed package has the entry point {PLUGIN} of {group}."
        yield CheckFailed("D141", says, fix="use the image that the Plan names")
    allowed = _allowed(engine, environ)
    if allowed is not None and PLUGIN not in allowed:
        says = f"{variable} is {environ[variable]!r}, which leaves {PLUGIN} out."
        yield CheckFailed("D141", says, fix=f"set {variable}={PLUGIN}, or unset it")


def _without_loader(engine: str) -> Iterator[Error]:
    """D141 when the engine has no loader as we know it."""
    for name in _LOADER[engine]:
        try:
            probe.find(name)
        except (LookupError, ImportError) as error:
            says = f"the plugin loader of {engine} lacks {name}: {error}."
            yield CheckFailed("D141", says, fix=probe.MEND)


def _allowed(engine: str, environ: Mapping[str, str]) -> list[str] | None:
    """The names that the engine's own loader lets pass; None: all of them.

    SGLang strips them and takes an empty variable for none. vLLM does neither: "" lets nothing pass
    and "other, dsv41" not us (vllm/envs.py of 0.33.0).
    """
    text = environ.get(_ALLOWED[engine])
    if engine == "vllm":
        return None if text is None else text.split(",")
    return [name.strip() for name in text.split(",")] if text else None


def main(argv: list[str] | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Raise SystemExit with one line a problem; return when there is none."""
    parser = argparse.ArgumentParser(prog="python -m dsv41.adapters.preflight")
    parser.add_argument("--engine", required=True, choices=sorted(TABLES))
    found = list(problems(parser.parse_args(argv).engine, environ))
    if found:
        lines = [f"preflight: {error}" for error in found]
        raise SystemExit("\n".join([*lines, f"preflight: to mend it: {found[0].fix}"]))


if __name__ == "__main__":
    main()
