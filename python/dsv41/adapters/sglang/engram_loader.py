"""SGLang's weight loader kept away from the Engram tables, and what its process has published.

Its iterators map safetensors files and hand out views, so a tensor that nobody looks at is never
read (seen with 0.5.21 and 0.5.23: tests/engines). Three roads lead past that: mapping turned off,
files read ahead into the page cache, and load formats that bring whole files into memory. The first
two are excepted here for the files that hold tables, the third is refused. So is an update of the
weights from a disk while the engine serves: the rows would stay those of the first checkpoint.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from typing import Any

from dsv41.adapters.adapter import Hook
from dsv41.errors import UsageError

log = logging.getLogger(__name__)
MODULE = "sglang.srt.model_loader.weight_utils"
UPDATE = (
    "sglang.srt.model_executor.model_runner_components.weight_updater."
    "WeightUpdater.update_weights_from_disk"
)
ITERATORS = ("buffered_multi_thread_safetensors_weights_iterator", "safetensors_weights_iterator")
TABLE = re.compile(r"(?:model\.)?layers\.\d+\.engram\.embed\.(?:weight|scale)")
# Load formats whose loader maps safetensors files.
MAPPING_FORMATS = ("auto", "safetensors", "dummy")


def published(bag: str, field: str) -> Any:
    """A setting that is in effect in this engine process; None where nothing is published."""
    from sglang.srt import runtime_context  # noqa: PLC0415 - no engine where it is off

    try:
        return getattr(getattr(runtime_context, f"get_{bag}")(), field)
    except (ValueError, AttributeError):  # a process without published arguments, an older tree
        return None


def most_tokens(unknown: int) -> int:
    """Most tokens of one forward pass: a prefill chunk, or every stream with its drafts."""
    chunk = published("schedule", "chunked_prefill_size") or 0
    prefill = chunk if chunk > 0 else published("schedule", "max_prefill_tokens") or unknown
    streams = published("schedule", "max_running_requests") or 0
    return max(prefill, streams * (published("spec", "speculative_num_draft_tokens") or 1))


def check_format(load_format: object) -> None:
    """Refuse a loader that would bring the tables into memory to throw them away."""
    name = getattr(load_format, "value", load_format)
    if name is not None and name not in MAPPING_FORMATS:
        says = f"engram_nvme: --load-format {name} reads 189 GiB of tables into memory."
        raise UsageError("D147", says, fix=f"use one of {', '.join(MAPPING_FORMATS)}")


def holds_table(path: str) -> bool:
    """Whether a safetensors file holds an Engram table; only its header is read."""
    from safetensors import safe_open  # noqa: PLC0415 - as above

    with safe_open(path, framework="pt") as file:
        return any(TABLE.fullmatch(name) for name in file.keys())  # noqa: SIM118 - no dict


def keep_tables_mapped(original: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Around a weight iterator: files with tables stay mapped when mapping is turned off."""
    given = inspect.signature(original).bind(*args, **kwargs)
    files = given.arguments["hf_weights_files"]
    tables = [file for file in files if holds_table(file)] if _unmapped(given) else []
    if not tables:
        yield from original(*args, **kwargs)
        return
    log.info("engram_nvme: %d of %d files hold tables and stay mapped", len(tables), len(files))
    others = [file for file in files if file not in tables]
    for some, disable_mmap in ((others, True), (tables, False)):
        given.arguments.update(hf_weights_files=some, disable_mmap=disable_mmap)
        yield from original(*given.args, **given.kwargs) if some else ()


def _unmapped(given: inspect.BoundArguments) -> bool:
    return bool(given.arguments.get("disable_mmap"))


def skip_tables(original: Any, file_path: str, *args: Any, **kwargs: Any) -> Any:
    """Around the read-ahead of a checkpoint file: none for files with tables."""
    return None if holds_table(file_path) else original(file_path, *args, **kwargs)


def replaced() -> UsageError:
    """D153, for weights that come after those that the engine was started with."""
    says = "engram_nvme: weights cannot be replaced while rows come from a disk: they would stay."
    return UsageError("D153", says, fix="start the engine again, on that checkpoint and its rows")


def refuse_update(_original: object, *_: object, **__: object) -> tuple[bool, str]:
    """In place of an update from a disk: (False, why), which the engine answers the request with.

    Nothing is loaded, whatever the request's load format: the engine would notice at the first
    table only, and its way back loads the same path once more.
    """
    error = replaced()
    log.error("%s", error)
    return False, f"{error} To mend it: {error.fix}."


HOOKS = (
    *(
        Hook(
            target=f"{MODULE}.{name}",
            kind="around",
            call=keep_tables_mapped,
            takes=("hf_weights_files", "disable_mmap"),
        )
        for name in ITERATORS
    ),
    # reading ahead is off unless asked for, and trees before 0.5.21 were not looked at
    Hook(
        target=f"{MODULE}._prefetch_checkpoint_file",
        kind="around",
        call=skip_tables,
        takes=("file_path",),
        optional=True,
    ),
    # without it `_load_rows` refuses, after other tensors have changed, and the engine ends
    Hook(target=UPDATE, kind="around", call=refuse_update, optional=True),
)
