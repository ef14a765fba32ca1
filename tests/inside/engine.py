"""Run by the Python of an engine image (make test-image): what can be asked of it without a GPU.

`python engine.py QUESTION.json ANSWER.json`, with one entry a check in the order of CHECKS. Each
check's seconds are kept, and its error in its place where it fails.
"""

import importlib
import json
import os
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

PROBLEM = "problem"


def machine(_: Any) -> dict[str, Any]:
    """What this process is."""
    return {"machine": platform.machine(), "python": platform.python_version(), "libc": libc()}


def libc() -> str:
    """Its C library."""
    return " ".join(platform.libc_ver())


def versions(names: list[str]) -> dict[str, str]:
    """Distribution -> version, by its metadata."""
    return {name: metadata.version(name) for name in names}


def torch_says(_: Any) -> dict[str, Any]:
    """A product on the CPU, and what the build is for."""
    torch: Any = importlib.import_module("torch")
    eye = torch.eye(3)
    return {
        "product": (eye @ (2 * eye)).sum().item(),
        "cuda": torch.version.cuda,
        "arch": torch._C._cuda_getArchFlags(),
        "devices": torch.cuda.device_count(),
        "nccl": list(torch.cuda.nccl.version()),
    }


def called(names: list[str]) -> dict[str, str]:
    """Dotted functions without arguments -> what they give."""
    found = {}
    for name in names:
        module, _, function = name.rpartition(".")
        found[name] = repr(getattr(importlib.import_module(module), function)())
    return found


def command_lines(argvs: list[list[str]]) -> list[dict[str, object]]:
    """Each as the engine's own parser reads it."""
    parser: Any = importlib.import_module("sglang_parser")
    read: list[dict[str, object]] = parser.parser_says(argvs)
    return read


def preflight(engine: str) -> str:
    """What `python -m dsv41.adapters.preflight` says in this environment."""
    module: Any = importlib.import_module("dsv41.adapters.preflight")
    module.main(["--engine", engine])
    return "ok"


def hooks(_: Any) -> dict[str, Any]:
    """SGLang's own loader runs our entry point; what it has put where."""
    plugins: Any = importlib.import_module("sglang.srt.plugins")
    registry: Any = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry
    before = sorted(registry._patched)
    plugins.load_plugins()
    table: Any = importlib.import_module("dsv41.adapters.table")
    install: Any = importlib.import_module("dsv41.adapters.install")
    adapter: Any = importlib.import_module("dsv41.adapters.adapter")
    return {
        "before": before,
        "patched": sorted(registry._patched),
        "on": [one.name for one in table.SGLANG if adapter.is_on(one, os.environ)],
        "installed": sorted(install._installed),
        "optional": [h.target for one in table.SGLANG for h in one.hooks if h.optional],
        "from": str(Path(install.__file__).parent),
    }


def vllm_hooks(_: Any) -> dict[str, Any]:
    """vLLM's own loader runs our entry point; which adapters it has put in, and where."""
    plugins: Any = importlib.import_module("vllm.plugins")
    install: Any = importlib.import_module("dsv41.adapters.install")
    before = len(install._installed)
    plugins.load_general_plugins()
    installed = sorted(install._installed)
    return {
        "before": before,
        "on": sorted({name for name, _, _ in installed}),
        "targets": sorted({target for _, target, _ in installed}),
        "from": str(Path(install.__file__).parent),
    }


def spec_of(generator: str) -> Any:
    """FlashInfer's own description of a module, by the dotted name of what makes it."""
    module, _, function = generator.rpartition(".")
    return getattr(importlib.import_module(module), function)()


def ninja_files(generators: dict[str, str]) -> dict[str, str]:
    """Module -> the build.ninja that FlashInfer itself writes for it."""
    found = {}
    for name, generator in generators.items():
        spec = spec_of(generator)
        spec.write_ninja()
        found[name] = spec.ninja_path.read_text()
        if spec.name != name:
            raise LookupError(f"{generator} makes {spec.name}, expected {name}")
    return found


def kernels(generators: dict[str, str]) -> dict[str, Any]:
    """Module -> whether it is one that was built ahead, and loads without a compiler."""
    found = {}
    for name, generator in generators.items():
        spec = spec_of(generator)
        loaded = spec.is_aot and spec.try_load() is not None
        found[name] = {"aot": spec.is_aot, "at": str(spec.aot_path), "loaded": loaded}
    return found


CHECKS: dict[str, Callable[[Any], object]] = {
    "machine": machine,
    "versions": versions,
    "imports": importlib.import_module,  # one check a module, on top of those before it
    "torch": torch_says,
    "called": called,
    "command_lines": command_lines,
    "preflight": preflight,
    "hooks": hooks,
    "vllm_hooks": vllm_hooks,
    "ninja_files": ninja_files,
    "kernels": kernels,
}


def timed(call: Callable[[Any], object], given: Any, *, quiet: bool = False) -> Any:
    """`{"seconds", "found"}`, or the last lines of what it raised."""
    began = time.monotonic()
    try:
        found: dict[str, Any] = {} if (value := call(given)) is None or quiet else {"found": value}
    except BaseException as error:  # noqa: BLE001 - SystemExit is how the plugin refuses
        lines = traceback.format_exception(error)
        found = {PROBLEM: "".join(lines)[-2000:]}
    return {"seconds": round(time.monotonic() - began, 1), **found}


def main() -> None:
    """Answer, and write after each check, so that a process that dies leaves what it had."""
    warnings.filterwarnings("ignore")
    question = json.loads(Path(sys.argv[1]).read_text())
    answer: dict[str, Any] = {}
    for name, check in CHECKS.items():
        if name not in question:
            continue
        if name == "imports":
            answer[name] = {"found": (found := {})}
            for module in question[name]:
                found[module] = timed(check, module, quiet=True)
                Path(sys.argv[2]).write_text(json.dumps(answer))
        else:
            answer[name] = timed(check, question[name])
            Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
