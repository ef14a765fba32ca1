"""Engram rows asked for before their layer's turn: the second layer's, and the next chunk's.

What: with 1, the reads of both Engram layers are begun when the first one looks up, and each is
waited for at its own place, in captured graphs too. With 2, the worker also names the rows of the
next chunk of a prompt that is longer than a step, from the tokens that it already holds, and reads
them into the store's cache behind this chunk's own lookups; the next step waits for them first.
Without DSV41_CACHE_GIB the stores then get a cache of four chunks each.

Why: the engine's side stream looks the layers up one after the other, so that the drive is idle
between the two, and asks for a chunk's rows when it computes that chunk.

Exact: a lookup gives the rows of the ids that the engine asks for, wherever they come from. What
was named wrongly is read for nothing.

Effect: bits are the same (docs/evidence/gpu.md, a model of six layers, one H200 and two ranks on
two). On one, lookups of prefill waited 0.06 s instead of 0.44 s in a run of one second where the
drive had time to spare, and a token's two lookups 0.68 ms instead of 0.96 ms; the engine's own
speed did not change there. Where the drive is busy all the time nothing can be gained. Not run on
a GB10.

Off: DSV41_ENGRAM_AHEAD=0.

Obsolete when: vLLM asks for the rows of all Engram layers at once, and for the next chunk's.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsv41 import switches
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.adapters.chunks import Chunks, Layer
from dsv41.adapters.together import Together
from dsv41.adapters.vllm.engram_nvme import ENGRAM
from dsv41.errors import UsageError
from dsv41.geometry import Engram

if TYPE_CHECKING:
    from os import _Environ

RUNNER = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
LAYERS, CHUNK = 1, 2
_prompts: dict[str, Sequence[int]] = {}
_chunks: list[Chunks] = []  # of this process's worker: one, or none


def attach(worker: Any, *_: Any) -> None:
    """Hook before `Worker.compile_or_warm_up_model`: from now on the tables look up together.

    Raises:
        UsageError: D490, when the next chunk is asked for and the worker has the older runner.
    """
    import os  # noqa: PLC0415 - beside what it is for

    layer_class = importlib.import_module(ENGRAM).Engram
    model = worker.model_runner.get_model()
    found = [part for part in model.modules() if isinstance(part, layer_class)]
    found.sort(key=lambda layer: layer.layer_hash_index)
    tables = [layer.embed_tokens for layer in found]
    chunks = _of_worker(worker, model, tables, os.environ)
    _chunks[:] = [chunks] if chunks else []
    together = Together(tables, chunks=chunks)
    for place, table in enumerate(tables):
        table.together, table.place = together, place


def _of_worker(
    worker: Any, model: Any, tables: Sequence[Any], environ: Mapping[str, str] | _Environ[str]
) -> Chunks | None:
    if switches.read_exactly(environ, "engram_ahead") < CHUNK:
        return None
    if not worker.use_v2_model_runner:
        says = "engram_ahead: DSV41_ENGRAM_AHEAD=2 names the next chunk in vLLM's V2 runner alone."
        raise UsageError("D490", says, fix="set DSV41_ENGRAM_AHEAD=1")
    config = worker.vllm_config
    text = vars(config.model_config.hf_text_config)
    hasher = next(part for part in model.modules() if hasattr(part, "token_map"))
    token_map = hasher.token_map.cpu().numpy().astype("int64")
    image = getattr(config.model_config.hf_config, "image_token_id", None)
    return Chunks(
        layers=[
            Layer(reader=table.reader, layer_id=table.layer_id, columns=table.columns)
            for table in tables
        ],
        engram=Engram.from_config(text, token_map=token_map.tolist()),
        token_map=token_map,
        dead=[] if image is None else [int(image)],
        tokens=config.scheduler_config.max_num_batched_tokens,
    )


def name_next(_result: Any, runner: Any, scheduler_output: Any, *_: Any) -> None:
    """Hook after `GPUModelRunner.update_requests`: say what the step after this one computes."""
    for request in scheduler_output.finished_req_ids:
        _prompts.pop(request, None)
    if not _chunks:
        return
    for new in scheduler_output.scheduled_new_reqs:
        _prompts[new.req_id] = new.prefill_token_ids
    _chunks[0].name(list(next_step(runner, scheduler_output, _chunks[0].tokens)))


def next_step(
    runner: Any, scheduler_output: Any, room: int
) -> Iterator[tuple[Sequence[int], int, int]]:
    """What the scheduler is likely to take next: what runs, in order, as far as there is room.

    A request that is through with its prompt takes one token; those that wait are not known here.
    """
    states = runner.req_states
    for request, scheduled in scheduler_output.num_scheduled_tokens.items():
        place = states.req_id_to_index[request]
        done = int(states.num_computed_prefill_tokens[place]) + scheduled
        rest = int(states.prefill_len.np[place]) - done
        take = min(rest, room)
        if rest <= 0:
            _prompts.pop(request, None)
        elif take > 0 and request in _prompts:
            yield _prompts[request], done, take
        room -= max(take, 1)


def check(environ: Mapping[str, str]) -> None:
    """Refuse another number than 0, 1 and 2, and rows that are not read from a disk.

    Raises:
        UsageError: D490.
    """
    wanted = switches.read_exactly(environ, "engram_ahead")
    if wanted not in (0, LAYERS, CHUNK):
        says = f"engram_ahead: DSV41_ENGRAM_AHEAD is {wanted}, expected 0, 1 or 2."
        raise UsageError("D490", says, fix="set DSV41_ENGRAM_AHEAD to 0, 1 or 2")
    if not switches.read_word(environ, "engram_dir"):
        says = "engram_ahead: DSV41_PACKED_DIR is not set, so no rows are read from a disk."
        raise UsageError("D490", says, fix="set it, or unset DSV41_ENGRAM_AHEAD")


ADAPTER = Adapter(
    name="engram_ahead",
    switch="engram_ahead",
    engines=("vllm",),
    trees=("vllm-0.33.0",),
    hooks=(
        Hook(
            target="vllm.v1.worker.gpu_worker.Worker.compile_or_warm_up_model",
            kind="before",
            call=attach,
        ),
        Hook(
            target=f"{RUNNER}.update_requests",
            kind="after",
            call=name_next,
            takes=("scheduler_output",),
        ),
    ),
    needs=(f"{ENGRAM}.Engram.prepare_embeddings", f"{RUNNER}.add_requests"),
    check=check,
)
