"""Run by SGLang's Python: which adapters each kind of process has, from a real spawn of each.

The engine starts its processes with the spawn method (`_set_envs_and_config`), so each child
imports everything anew and has only what its own start function loads. `main` stands for the
process of HTTP server and tokenizer manager. JSON on the last line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import engine_cpu
from dsv41.adapters import install

assert engine_cpu.OPERATORS is not None


def report(kind: str, queue: Any) -> None:
    queue.put((kind, sorted({f"{adapter} {target}" for adapter, target, _ in install._installed})))


def scheduler(queue: Any) -> None:
    """Up to the first thing that needs real arguments."""
    from sglang.srt.managers import scheduler as module  # noqa: PLC0415

    try:
        module.run_scheduler_process(None, None, 0, 0, 0, None, None)
    except Exception:  # noqa: BLE001 - it has no arguments
        report("scheduler", queue)


def detokenizer(target: Callable[..., None], queue: Any) -> None:
    from sglang.srt.managers import detokenizer_manager as module  # noqa: PLC0415

    module.kill_itself_when_parent_died = lambda: None
    try:
        target(None, None)
    except Exception:  # noqa: BLE001 - it has no arguments
        report("detokenizer", queue)


class Spawned(Exception):
    """Raised in place of a start."""


class Process:
    """In place of multiprocessing's, to see what the engine would spawn."""

    def __init__(self, *, target: Callable[..., None], args: object) -> None:
        del args
        raise Spawned(target)


def detokenizer_target() -> Callable[..., None]:
    """What the engine with our hooks starts as its detokenizer."""
    from sglang.srt.entrypoints import engine  # noqa: PLC0415
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process  # noqa: PLC0415

    class One:
        detokenizer_worker_num = 1

    engine.get_serving = lambda: One
    real, engine.mp.Process = engine.mp.Process, Process
    try:
        engine.Engine._launch_detokenizer_subprocesses(
            server_args=None,
            port_args=None,
            run_detokenizer_process_func=run_detokenizer_process,
        )
    except Spawned as spawned:
        target: Callable[..., None] = spawned.args[0]
        return target
    finally:
        engine.mp.Process = real
    raise AssertionError("the engine started no detokenizer")


def main() -> Mapping[str, list[str]]:
    from sglang.srt.plugins import load_plugins  # noqa: PLC0415

    load_plugins()  # as launch_server and Engine do first
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    report("main", queue)
    children = [
        spawn.Process(target=scheduler, args=(queue,)),
        spawn.Process(target=detokenizer, args=(detokenizer_target(), queue)),
    ]
    found = {}
    for child in children:
        child.start()
        kind, has = queue.get(timeout=250)
        found[kind] = has
        child.join(60)
    kind, has = queue.get(timeout=60)
    found[kind] = has
    os.environ["DSV41_API_KEY_FILE"] = "/nonexistent"
    refused = spawn.Process(target=scheduler, args=(queue,))
    refused.start()
    refused.join(250)
    found["refused"] = [str(refused.exitcode), str(queue.empty())]
    return found


if __name__ == "__main__":
    print("\nANSWER " + json.dumps(main()))  # noqa: T201 - the test reads it
    sys.exit(0)
