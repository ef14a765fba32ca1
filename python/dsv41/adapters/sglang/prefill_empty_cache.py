"""Give memory back after each piece of a long prefill.

What: after a forward of the target model that extends a sequence of at least N tokens (counted with
what is cached and what earlier pieces computed; a verify step of drafts is none), PyTorch's
allocator gives the blocks that it holds without use back to the system.

Why: a prefill's transient buffers grow with the prefix and never fit the blocks of the piece
before. On a Spark the GPU's memory is the system's: what the allocator hoards, the kernel, the page
cache and the other ranks lack (MiaAI-Lab's recipes, `DSV41_PREFILL_EMPTY_CACHE_TOKENS`).

Effect: a fork of the recipe measured about twice the prefill time and turned it off once its
indexer was bounded; the recipe's profiles keep 8192. Not measured here.

Off: DSV41_PREFILL_EMPTY_CACHE_TOKENS=0.

Obsolete when: prefill buffers are of one size, or SGLang does this itself (it only empties the
cache of an idle server, `SGLANG_EMPTY_CACHE_INTERVAL`).
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from typing import Any

from dsv41 import switches
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.errors import UsageError

log = logging.getLogger(__name__)


@functools.cache
def _least() -> int:
    return switches.read(os.environ, "prefill_empty_cache_tokens")


@functools.cache
def _warn(error: str) -> None:
    log.warning("the cache could not be emptied after a prefill: %s (said once)", error)


def _empty_after(_: object, runner: Any, forward_batch: Any, *__: object, **___: object) -> None:
    # the draft's forward follows the target's at once: there is nothing more to give back
    if getattr(runner, "is_draft_worker", False):
        return
    if not forward_batch.forward_mode.is_extend_without_speculative():
        return
    if longest(forward_batch) < _least():
        return
    try:
        import torch  # noqa: PLC0415

        torch.cuda.empty_cache()
    except Exception as error:  # noqa: BLE001 - the answer does not depend on it
        _warn(repr(error))


def longest(forward_batch: Any) -> int:
    """Tokens of the longest sequence of a batch; of all together where only that is at hand.

    `seq_lens_cpu` is int[batch] on the CPU or None: the copy on the GPU would cost a wait.
    """
    lengths = forward_batch.seq_lens_cpu
    if lengths is None:
        return int(forward_batch.seq_lens_sum)
    return int(lengths.max()) if len(lengths) else 0


def check(environ: Mapping[str, str]) -> None:
    """UsageError D074 for a count below zero, which every prefill would reach."""
    least = switches.read_exactly(environ, "prefill_empty_cache_tokens")
    if least < 0:
        name = switches.SWITCHES["prefill_empty_cache_tokens"].env
        says = f"{name} is {least}; expected a number of tokens, or 0 for off."
        raise UsageError("D074", says, fix=f"set {name} to 0, or to 8192 as in the recipe")


ADAPTER = Adapter(
    name="prefill_empty_cache",
    switch="prefill_empty_cache_tokens",
    engines=("sglang",),
    trees=("sglang-0.5.23", "sglang-branch", "sglang-base"),
    hooks=(
        Hook(
            target="sglang.srt.model_executor.model_runner.ModelRunner.forward",
            kind="after",
            call=_empty_after,
            takes=("forward_batch",),
        ),
    ),
    needs=(
        "sglang.srt.model_executor.forward_batch_info.ForwardMode.is_extend_without_speculative",
    ),
    check=check,
)
