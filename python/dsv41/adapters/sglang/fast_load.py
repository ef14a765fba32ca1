"""Weights read by sixteen threads, past the page cache, and only pages that this rank needs.

What: The files' headers and the rank's place give a plan of what the rank will look at
(`adapters.read_plan`): its experts and its rows of them, its rows of the tensors that are cut by
rows, all else whole, Engram tables not at all; of a draft the files that hold it. Sixteen threads
read that, ahead of the engine's own loading, which is given each tensor in its full shape and cuts
it as ever. What the plan leaves out is mapped from the file (`adapters.file_memory`), so a look
at it gives the file's bytes, slower; the log counts such bytes. A tensor of another name or shape
than the checkpoint's ends the process. So do a load format and a reading ahead that go past this.
DSV41_FAST_LOAD_INFLIGHT_GB bounds the memory of tensors that are read and not yet copied.

Why: The engine maps the files. Each page fault waits for the drive, 0.5 GB/s on a GB10 where 16
readers get 5.8 (MiaAI-Lab), and the kernel reads ahead of it: here whole files came into the page
cache, of which a rank keeps a part (docs/evidence/engines.md). On a Spark that cache is memory that
the weights need.

Exact: The engine loads the same bytes; the plan decides when they are read, never which. Run in the
released engine on a CPU: target and draft at one, three (padded) and four ranks, with one group of
experts and with several, have every parameter byte for byte as the stock loader leaves it, and no
page came by a fault. Copies to a GPU, from pageable memory, have the same bytes on one H200 (SM90,
tests/gpu/test_fast_reader.py, without the engine).

Effect: not run on a GB10. On that H200's machine 4.5 GB of experts cold from its disk, as one rank
of four, took 1.9 to 2.1 s, mapped 3.7 to 4.1. From the released checkpoint's shapes a rank reads,
target and draft together and without the 0.8 GB of the vision tower, 172.7 of its 510 GB at three
ranks, 154.6 at four with one group of experts, 105.2 with two. Of the 154.6, 74.0 are columns of w2
that other ranks keep: they lie in the same pages. MiaAI-Lab's own fast loader reads 155.2 GB at
four ranks, and 276 to 285 s of loading become 77 to 89 s.

Off: DSV41_FAST_LOAD=0.

Obsolete when: the engine reads a rank's part of a checkpoint in parallel and past the page cache.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv41 import switches
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.adapters.fast_reader import Reader
from dsv41.adapters.read_plan import Part, Place, Plan
from dsv41.adapters.sglang.engram_loader import ITERATORS, MAPPING_FORMATS, MODULE, published
from dsv41.errors import UsageError

log = logging.getLogger(__name__)
MODELS = "sglang.srt.models"
SWITCH = switches.SWITCHES["fast_load"].env


@dataclass(kw_only=True)
class Loading:
    """What is being loaded in this process: one model after the other."""

    part: Part | None = None
    read: bool = False


NOW = Loading()
_loaded: set[Part] = set()


def load_target(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the loading of the target's weights."""
    with _loading("target"):
        return original(model, *args, **kwargs)


def load_draft(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the loading of the draft's weights."""
    with _loading("draft"):
        return original(model, *args, **kwargs)


@contextmanager
def _loading(part: Part) -> Iterator[None]:
    """A model's weights come by `read`, the first time; D487 for any other way."""
    given = published("model", "load_format")
    name = getattr(given, "value", given)
    if name is not None and name not in MAPPING_FORMATS:
        raise _contradicted(f"--load-format {name} reads the files itself")
    NOW.part, NOW.read = part, False
    try:
        yield
    finally:
        NOW.part = None
    if part not in _loaded and not NOW.read:
        raise _contradicted(f"the {part}'s weights came another way than from safetensors files")
    _loaded.add(part)


def read(original: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """In place of a weight iterator of the engine: names and tensors, in the files' order."""
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    if given.get("prefetch"):
        raise _contradicted("--weight-loader-prefetch-checkpoints reads whole files ahead")
    part = NOW.part
    if part is None:
        raise _contradicted("weights are read for a model that is neither target nor draft")
    NOW.read = True
    files = [Path(file) for file in given["hf_weights_files"]]
    reader = Reader(files, plan_of(files[0].parent, part), budget=_budget(os.environ))
    yield from reader
    _tell(reader, part)


def plan_of(folder: Path, part: Part) -> Plan:
    """What this rank wants of the checkpoint in a folder."""
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - only the engine has it

    ranks = get_parallel()
    place = Place(
        part=part,
        tp=(ranks.tp_rank, ranks.tp_size),
        attn=(ranks.attn_tp_rank, ranks.attn_tp_size),
        ep=(ranks.moe_ep_rank, ranks.moe_ep_size),
        inner=(ranks.moe_tp_rank, ranks.moe_tp_size),
        padded=switches.read(os.environ, "tp_pad") != 0,
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Plan(config, place)


def _tell(reader: Reader, part: str) -> None:
    held = reader.held
    rate = held.read / max(reader.seconds, 1e-9) / 1e9
    says = "fast_load: the %s: %d bytes of %d files in %.1f s, %.2f GB/s"
    log.info(says, part, held.read, len(reader.sources), reader.seconds, rate)
    if held.faulted is None:
        log.warning("fast_load: /proc/self/pagemap is closed: page faults were not counted")
    elif held.faulted:
        log.warning("fast_load: %d bytes came by page faults, not by the plan", held.faulted)


def _contradicted(says: str) -> UsageError:
    return UsageError("D487", f"fast_load: {says}.", fix=f"leave that out, or set {SWITCH}=0")


def _budget(environ: Mapping[str, str]) -> int:
    return switches.read_exactly(environ, "fast_load_inflight_gb") * 10**9


def check(environ: Mapping[str, str]) -> None:
    """A budget of memory, at least 1 GB; D487."""
    if _budget(environ) < 1:
        name = switches.SWITCHES["fast_load_inflight_gb"].env
        raise _contradicted(f"{name} is {environ[name]}; expected at least 1")


ADAPTER = Adapter(
    name="fast_load",
    switch="fast_load",
    engines=("sglang",),
    trees=("sglang-0.5.23",),
    hooks=(
        Hook(
            target=f"{MODELS}.deepseek_v4.DeepseekV4ForCausalLM.load_weights",
            kind="around",
            call=load_target,
            takes=("weights",),
        ),
        Hook(
            target=f"{MODELS}.deepseek_v4_dspark.DeepseekV4ForCausalLMDSpark.load_weights",
            kind="around",
            call=load_draft,
            takes=("weights",),
        ),
        *(
            Hook(
                target=f"{MODULE}.{name}",
                kind="around",
                call=read,
                takes=("hf_weights_files", "prefetch"),
            )
            for name in ITERATORS
        ),
    ),
    check=check,
)
