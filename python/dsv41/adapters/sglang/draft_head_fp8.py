"""The draft's output head from an FP8 twin: half the bytes of its largest product.

What: DSpark's draft has no output head of its own; it multiplies by the target's, 129,280 x 5,120.
This keeps an FP8 twin of this rank's part (`adapters.twins`, one power of two a block of 32x32) and
takes it for the draft's logits, up to DSV41_DRAFT_HEAD_FP8_MAX_M rows. The target's own head is not
touched.

Why: The head is read once a drafted block, and its bytes are what that costs. The engine has an FP8
head for AMD's MI355 alone.

Bounded: a weight differs by at most 1/16 of itself, so that a logit moves by at most the sum of
|x| |w| / 16. It decides what is drafted, never what is answered: the draft's distribution, whatever
it is, is the one that acceptance compares with.

Effect: on one H200 (SM90) see docs/evidence/gpu.md. Not measured on a GB10. MiaAI-Lab's profiles
have it on; it takes 210 MiB a rank at three ranks.

Off: DSV41_DRAFT_HEAD_FP8=0.

Obsolete when: the engine's FP8 head is for SM12x as well.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dsv41 import switches
from dsv41.adapters import twins
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.errors import CheckFailed

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
HEADS: dict[int, twins.Twin] = {}  # by the address of the head's weight


def attach(result: Any, model: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After the draft got the target's head: make its twin, once."""
    import torch  # noqa: PLC0415 - only where the adapter is on

    weight = model.lm_head.weight
    if weight.dtype != torch.bfloat16 or weight.data_ptr() in HEADS:
        return result
    rows, columns = weight.shape
    if rows % twins.BLOCK or columns % twins.BLOCK:
        raise CheckFailed(
            "D483",
            f"draft_head_fp8: this rank's head is {rows}x{columns}; expected multiples of "
            f"{twins.BLOCK}.",
            fix="set DSV41_DRAFT_HEAD_FP8=0",
        )
    found = twins.twin(weight.data.unsqueeze(0))
    HEADS[weight.data_ptr()] = found
    log.info("DSV41 draft head: FP8 twin of %dx%d, %d bytes", rows, columns, found.bytes)
    return result


@functools.cache
def most_rows() -> int:
    """Rows of one product that the twin serves."""
    return switches.read_exactly(os.environ, "draft_head_fp8_max_m")


def head(original: Callable[..., Any], hidden: Tensor, lm_head: Any) -> Any:
    """Logits of this rank's part of the vocabulary: hidden [rows, width] -> [rows, words]."""
    found = HEADS.get(lm_head.weight.data_ptr())
    if found is None or not 0 < len(hidden) <= most_rows():
        return original(hidden, lm_head)
    return twins.project(hidden.to(lm_head.weight.dtype).unsqueeze(1), found).squeeze(1)


def check(environ: Mapping[str, str]) -> None:
    """A number of rows that the kernel has; D483."""
    most = switches.read_exactly(environ, "draft_head_fp8_max_m")
    if not 1 <= most <= twins.MOST_ROWS:
        raise CheckFailed(
            "D483",
            f"DSV41_DRAFT_HEAD_FP8_MAX_M is {most}; expected 1 to {twins.MOST_ROWS}.",
            fix="unset it for the default of 64",
        )


ADAPTER = Adapter(
    name="draft_head_fp8",
    switch="draft_head_fp8",
    engines=("sglang",),
    trees=("sglang-0.5.23",),
    hooks=(
        Hook(
            target="sglang.srt.models.deepseek_v4_dspark.DeepseekV4ForCausalLMDSpark.attach_shared_modules",
            kind="after",
            call=attach,
            takes=("lm_head",),
        ),
        Hook(
            target="sglang.srt.models.dspark.project_through_lm_head",
            kind="around",
            call=head,
            takes=("hidden", "lm_head"),
        ),
    ),
    check=check,
)
