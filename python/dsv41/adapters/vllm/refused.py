"""What vLLM may be asked that does not go with rows on a disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv41 import switches
from dsv41.errors import UsageError

# the released loaders that ask `should_skip_weight` before they read a tensor
LOAD_FORMATS = ("auto", "safetensors", "hf", "dummy")
ELSEWHERE = ("engram_check", "resident_scales", "engram_prefetch")
WHOLE_FILES = ("eager", "prefetch")  # strategies that read every byte of a file


def check_switches(environ: Mapping[str, str]) -> None:
    """Refuse switches that only SGLang's adapter knows: ignoring one would be silent.

    Raises:
        UsageError: D158, naming them.
    """
    found = [name for name in ELSEWHERE if switches.read(environ, name)]
    if found:
        names = ", ".join(switches.SWITCHES[name].env for name in found)
        says = f"engram_nvme has no {names} in vLLM."
        raise UsageError("D158", says, fix="leave the setting out")


def check_config(config: Any) -> None:
    """Refuse what would read tables into memory or another rank's rows.

    Raises:
        UsageError: D158, naming the setting.
    """
    parallel, load = config.parallel_config, config.load_config
    strategy, more = load.safetensors_load_strategy, load.model_loader_extra_config or {}
    refused = {
        "--data-parallel-size above 1": parallel.data_parallel_size > 1,
        "--enable-dbo or --ubatch-size above 1": parallel.use_ubatching,
        f"--load-format {load.load_format}": load.load_format not in LOAD_FORMATS,
        f"--safetensors-load-strategy {strategy}": strategy in WHOLE_FILES,
        "enable_multithread_load": bool(dict(more).get("enable_multithread_load")),
    }
    if found := [name for name, wrong in refused.items() if wrong]:
        says = f"engram_nvme cannot serve with {', '.join(found)}."
        raise UsageError("D158", says, fix="leave the setting out")
