"""Puts the adapters that the environment asks for into an engine: all of them, or the process ends.

SGLang's own plugin loader only logs a plugin that fails and a hook whose target is gone, and
serves on without it. So everything is probed first, by name and signature and never by version,
then installed, then looked at again; whatever is missing is named together and the process ends.
SGLang's hooks go through its own `HookRegistry` (`sglang/srt/plugins/hook_registry.py`, the same
file in 0.5.21 and 0.5.23), vLLM's through a small patcher of the same kinds.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from dsv41.adapters import environment
from dsv41.adapters.adapter import Adapter, Hook, is_on
from dsv41.adapters.probe import MEND, Place, find, problems, problems_of_hooks
from dsv41.errors import CheckFailed, Error

log = logging.getLogger(__name__)
_installed: set[tuple[str, str, str]] = set()  # adapter, target and kind, in this process


def register(
    engine: str, adapters: Sequence[Adapter], *, always: tuple[Hook, ...] = ()
) -> tuple[str, ...]:
    """Install what os.environ asks for; SystemExit with codes and names when anything is amiss.

    `always` are hooks that go with any adapter. Gives the names of the adapters that are on. A
    second call in the same process installs only what is new.
    """
    try:
        return install(engine, adapters, os.environ, always=always)
    except Error as error:
        raise SystemExit(f"dsv41: {error}\ndsv41: to mend it: {error.fix or MEND}") from error
    except Exception as error:
        says = f"D143 the {engine} plugin failed: {type(error).__name__}: {error}"
        raise SystemExit(f"dsv41: {says}\ndsv41: to mend it: {MEND}") from error


def install(
    engine: str,
    adapters: Sequence[Adapter],
    environ: Mapping[str, str],
    *,
    always: tuple[Hook, ...] = (),
) -> tuple[str, ...]:
    """Install the adapters that are on, in order; CheckFailed names every problem, one a line."""
    unclear = list(environment.problems(environ))
    if unclear:
        raise together(unclear)
    wanted = [adapter for adapter in adapters if is_on(adapter, environ)]
    if not wanted:
        return ()
    found = [*problems_of_hooks(f"the {engine} plugin", always)]
    found += [problem for adapter in wanted for problem in problems(adapter, environ)]
    if found:
        raise together(found)
    hooks = [(engine, hook) for hook in always]
    hooks += [(adapter.name, hook) for adapter in wanted for hook in adapter.hooks]
    new = [(name, hook) for name, hook in hooks if _key(name, hook) not in _installed]
    _put([(name, hook, place) for name, hook in new for place in _there(hook)], _APPLY[engine])
    _installed.update(_key(name, hook) for name, hook in new)
    names = tuple(adapter.name for adapter in wanted)
    log.info("dsv41 adapters in this process: %s", ", ".join(names))
    return names


def together(found: Sequence[Error]) -> Error:
    """One error that names all; it has the code of the first."""
    first, *others = found
    says = "\n".join([first.says, *(f"dsv41: {error}" for error in others)])
    return CheckFailed(first.code, says, fix=first.fix or MEND)


def _key(name: str, hook: Hook) -> tuple[str, str, str]:
    return name, hook.target, hook.kind


def _there(hook: Hook) -> Iterator[Place]:
    try:
        yield find(hook.target)
    except LookupError:
        if not hook.optional:
            raise


Planned = tuple[str, Hook, Place]
Apply = Callable[[Mapping[str, list[tuple[str, Any]]]], Iterable[str]]


def _put(planned: Sequence[Planned], apply: Apply) -> None:
    """Apply and look again; CheckFailed D143 with the names of what did not take."""
    chains: dict[str, list[tuple[str, Any]]] = {}
    for name, hook, place in planned:
        chain = chains.setdefault(hook.target, [])
        if hook.kind == "replace":
            earlier = [call for kind, call in chain if kind == "replace"]
            replacement = _replacement(name, hook, earlier[-1] if earlier else place.value)
            chain[:] = [(kind, call) for kind, call in chain if kind != "replace"]
            chain.insert(0, ("replace", replacement))
        else:
            chain.append((hook.kind, hook.call))
    failed = set(apply(chains))
    failed |= {hook.target for _, hook, old in planned if find(hook.target).raw is old.raw}
    if failed:
        who = [f"{name} on {hook.target}" for name, hook, _ in planned if hook.target in failed]
        raise CheckFailed("D143", f"these hooks did not apply: {'; '.join(who)}.", fix=MEND)


def _replacement(name: str, hook: Hook, original: Any) -> Any:
    try:
        return hook.call(original)
    except Error:
        raise
    except Exception as error:
        says = f"adapter {name} on {hook.target}: {type(error).__name__}: {error}."
        raise CheckFailed("D143", says, fix=MEND) from error


def _apply_sglang(chains: Mapping[str, list[tuple[str, Any]]]) -> Iterator[str]:
    """By the engine's registry, which keeps the first application of a target and no later one."""
    plugins = importlib.import_module("sglang.srt.plugins.hook_registry")
    registry, kinds = plugins.HookRegistry, plugins.HookType
    for target, chain in chains.items():
        if target in registry._patched:  # noqa: SLF001 - the only record of what was applied
            yield target
        for kind, call in chain:
            registry.register(target, call, kinds(kind))
    registry.apply_hooks()
    yield from (target for target in chains if target not in registry._patched)  # noqa: SLF001


def _apply_vllm(chains: Mapping[str, list[tuple[str, Any]]]) -> Iterator[str]:
    """By setattr, classes first, so that methods are hooked on the class that takes their place."""
    order = sorted(chains, key=lambda target: not isinstance(chains[target][0][1], type))
    for target in order:
        place = find(target)
        bound = isinstance(place.raw, classmethod | staticmethod)
        old = place.raw.__func__ if bound else place.value
        new = functools.reduce(_wrapped, chains[target], old)
        setattr(place.owner, place.name, type(place.raw)(new) if bound else new)
        for module in [m for m in sys.modules.values() if isinstance(m, ModuleType)]:
            for name in [n for n, value in vars(module).items() if value is old]:
                setattr(module, name, new)  # what `from X import Y` copied
    return iter(())


def _wrapped(old: Any, link: tuple[str, Any]) -> Any:
    """One link of a chain around what is there, with the meaning that SGLang's registry gives."""
    kind, call = link
    if kind == "replace":
        return call

    @functools.wraps(old)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        if kind == "around":
            return call(old, *args, **kwargs)
        if kind == "before":
            args, kwargs = call(*args, **kwargs) or (args, kwargs)
            return old(*args, **kwargs)
        result = old(*args, **kwargs)
        changed = call(result, *args, **kwargs)
        return result if changed is None else changed

    return hooked


_APPLY: dict[str, Apply] = {"sglang": _apply_sglang, "vllm": _apply_vllm}
