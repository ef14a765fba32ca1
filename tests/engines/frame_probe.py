"""Run by an engine's Python: what the frame finds in one engine, as JSON on the last line.

One import of the engine serves everything: each question is answered in a fork, because a hook
stays where it was put. `python frame_probe.py sglang`.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from frame_tables import TABLES

import engine_cpu
from dsv41.adapters import environment, install, preflight, probe
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.adapters.sglang import workers
from dsv41.switches import SWITCHES

ENGINE = sys.argv[1] if len(sys.argv) > 1 else "sglang"
ALWAYS: tuple[Hook, ...] = workers.HOOKS if ENGINE == "sglang" else ()
REGISTER = importlib.import_module(f"dsv41.adapters.{ENGINE}").register
ON = {"integer": "1", "effort": "75", "word": "b12x"}
WORDS = {"verify_cap": "conf:0.1", "draft_tau": "0.7"}  # words of their own


def in_fork(ask: Callable[[], Any]) -> Any:
    """The answer of a child process; its SystemExit or traceback as text."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reader)
        try:
            answer = ask()
        except SystemExit as end:
            answer = f"SystemExit: {end.code}"
        except BaseException:  # noqa: BLE001 - the parent shows it
            answer = traceback.format_exc()
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text or '"the child died"')


def switch_on(*adapters: Adapter) -> None:
    for adapter in adapters:
        switch = SWITCHES[adapter.switch]
        os.environ[switch.env] = WORDS.get(switch.name, ON[switch.kind])
        if switch.name == "verify_cap":
            os.environ["SGLANG_RAGGED_VERIFY_MODE"] = "cap-accept"


def delete(target: str) -> None:
    place = probe.find(target)
    delattr(place.owner, place.name)


def without(target: str, *adapters: Adapter) -> Callable[[], Any]:
    """What `register` says of these adapters when one target is gone."""

    def ask() -> Any:
        switch_on(*adapters)
        delete(target)
        warned = io.StringIO()
        logging.basicConfig(stream=warned, level=logging.WARNING, force=True)
        REGISTER()
        return warned.getvalue()

    return ask


def resolved() -> dict[str, list[str]]:
    """The reasons why a target of each adapter is not as it must be; checks are left out."""
    found: dict[str, list[str]] = {}
    for adapter in TABLES[ENGINE]:
        names = Adapter(
            name=adapter.name,
            switch=adapter.switch,
            engines=(),
            trees=(),
            hooks=adapter.hooks,
            needs=adapter.needs,
        )
        found[adapter.name] = [str(error) for error in probe.problems(names, {})]
    found["always"] = [str(error) for error in probe.problems_of_hooks("the plugin", ALWAYS)]
    return found


def symbols() -> dict[str, int]:
    """The identity of every attribute of every module of the engine, and of their classes."""
    found = {}
    modules = {n: m for n, m in sys.modules.items() if n.split(".")[0] == ENGINE}
    for name, module in modules.items():
        if isinstance(module, ModuleType):
            for attribute, value in list(vars(module).items()):
                found[f"{name}.{attribute}"] = id(value)
                if isinstance(value, type) and value.__module__ == name:
                    for inner, item in list(vars(value).items()):
                        found[f"{name}.{attribute}.{inner}"] = id(item)
    return found


def unchanged(load: Callable[[], Any], environ: dict[str, str]) -> Callable[[], Any]:
    """How many symbols there are, and those that are other ones after the engine's own loader."""

    def ask() -> Any:
        os.environ.update(environ)
        before = symbols()
        load()
        after = symbols()
        own = (".plugins._plugins_loaded", ".plugins.plugins_loaded", ".plugins_loaded")
        differ = [n for n in before if after.get(n) != before[n] and not n.endswith(own)]
        return [len(before), differ, sorted(set(after) - set(before))]

    return ask


def installed(*adapters: Adapter) -> Callable[[], Any]:
    """The targets that are other objects after `install`; checks are left out."""

    def ask() -> Any:
        switch_on(*adapters)
        hooks = [hook for adapter in adapters for hook in adapter.hooks]
        before = {}
        for hook in hooks:
            try:
                before[hook.target] = probe.find(hook.target).raw
            except LookupError:
                assert hook.optional
        bare = [
            Adapter(name=a.name, switch=a.switch, engines=(), trees=(), hooks=a.hooks)
            for a in adapters
        ]
        names = install.install(ENGINE, bare, os.environ, always=ALWAYS)
        again = install.install(ENGINE, bare, os.environ, always=ALWAYS)
        now = {target: probe.find(target).raw for target in before}
        install.install(ENGINE, bare, os.environ, always=ALWAYS)
        twice = [target for target in now if probe.find(target).raw is not now[target]]
        same = [target for target in now if now[target] is before[target]]
        return {"names": names, "again": again, "same": same, "twice": twice}

    return ask


def guard(**values: object) -> Callable[[], Any]:
    """What SGLang's own check of its arguments says once any adapter is on."""

    def ask() -> Any:
        server_args = importlib.import_module("sglang.srt.server_args").ServerArgs
        importlib.import_module("sglang.srt.plugins").load_plugins()
        if values.pop("rust", False):
            os.environ["SGLANG_RUST_SERVER"] = "1"
        made = server_args(model_path="none", **values)
        return made.check_server_args()

    def on() -> Any:
        os.environ["DSV41_THINKING_ALIAS"] = "1"
        return ask()

    return on


def preflight_says(environ: dict[str, str]) -> Callable[[], Any]:
    return lambda: [str(error) for error in preflight.problems(ENGINE, environ)]


def main() -> None:
    assert engine_cpu.OPERATORS is not None
    for name in [n for n in os.environ if n.startswith("DSV41_")]:
        del os.environ[name]
    table = TABLES[ENGINE]
    began = time.monotonic()
    answer: dict[str, Any] = {"resolved": resolved()}  # imports every module that is named
    answer["import_seconds"] = round(time.monotonic() - began, 1)
    plugins = importlib.import_module(
        "sglang.srt.plugins" if ENGINE == "sglang" else "vllm.plugins"
    )
    load = plugins.load_plugins if ENGINE == "sglang" else plugins.load_general_plugins
    switches = {SWITCHES[a.switch].env for a in table}
    off = dict.fromkeys(switches - {environment.KEY_FILE}, "0")  # no file of keys is unset alone
    answer["unset"] = in_fork(unchanged(load, {}))
    answer["off"] = in_fork(unchanged(load, off))
    answer["installed"] = in_fork(installed(*table))
    answer["each"] = {a.name: in_fork(installed(a)) for a in table}
    answer["deleted"] = {
        f"{a.name} {hook.target}": in_fork(without(hook.target, a))
        for a in table
        for hook in a.hooks
        if not any(text for text in answer["resolved"][a.name]) and _there(hook)
    }
    answer["deleted always"] = {h.target: in_fork(without(h.target, table[0])) for h in ALWAYS}
    answer["preflight"] = in_fork(preflight_says({}))
    if ENGINE == "sglang":
        asked = {"DSV41_SCALE_REPAIR": "1", "DSV41_THINKING_ALIAS": "1", "DSV41_TP_PAD": "1"}
        answer["preflight"] += in_fork(preflight_says(asked))
        answer["left out"] = in_fork(preflight_says({**asked, "SGLANG_PLUGINS": "b12x"}))
        answer["workers"] = in_fork(guard(tokenizer_worker_num=2))
        answer["rust"] = in_fork(guard(rust=True))
    print("\nANSWER " + json.dumps(answer))  # noqa: T201 - the test reads it


def _there(hook: Hook) -> bool:
    try:
        probe.find(hook.target)
    except LookupError:
        return False
    return True


if __name__ == "__main__":
    main()
