"""Drafts that will hardly be accepted are neither accepted nor paid for.

What: DSpark drafts a block of tokens and its confidence head says of each how likely it is to be
accepted. `conf:T` keeps a draft alive as long as the product of the confidences up to it is at
least T; `conf:A,B,...` has one threshold a position, the last for all further ones; a number from 1
to 5 keeps that many. The engine's own cap of a request (mode `cap-accept`) ends its acceptance
there. The verified rows beyond stay in the batch, since graphs have a fixed shape, but they are
sent to the experts of their request's first row, so that they read no expert's weights of their
own. Ranks agree by the engine's own broadcast of the plan.

Why: The engine's schedule needs a profiled cost table (`--speculative-dspark-sps-table-path`), and
without one verifies everything; its cap leaves the rows beyond with experts of their own. A batch
of six rows reads up to 48 experts' weights a layer, and the weights are what a step costs.

Exact: A cap cuts a verified block off after the token of its last live row. That row and those
before it are the target's own, so a greedy answer is the target's and a sampled one the beginning
of an exact sample; dead rows have other logits, which reach no token that is kept. Simulated on the
CPU with the engine's own acceptance, 120,000 sampled answers against the exact distribution
(docs/evidence/engines.md); no GPU has run it.

Effect: not measured here. Both of MiaAI-Lab's profiles have conf:0.1.

Off: DSV41_VERIFY_CAP unset or off. DSV41_VERIFY_CAP_MIN is how many rows stay alive at least.

Obsolete when: the engine's schedule takes a threshold, and drops dead rows from routing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dsv41.adapters.adapter import Adapter, Hook
from dsv41.adapters.draft_rule import Rule, constant, rule_of
from dsv41.errors import CheckFailed

if TYPE_CHECKING:
    from torch import Tensor

PLANNER = "sglang.srt.speculative.dspark_components.dspark_planner.DSparkVerifyPlanner"
MODEL = "sglang.srt.models.deepseek_v4.DeepseekV4ForCausalLM"
ROUTER = "sglang.srt.layers.moe.topk.TopK"
VISION = "sglang.srt.multimodal.dsv41.vl_routing.vision_topk"
MODE = "SGLANG_RAGGED_VERIFY_MODE"  # the engine's own: only `cap-accept` has a cap and fixed shapes
ALL = 2**15  # rows; more than any block has
MOST_REQUESTS = 1024  # of one batch; the live rows of each lie in a buffer that graphs read


@functools.cache
def asked() -> Rule | None:
    """The same of this process, whose environment does not change while it serves."""
    return rule_of(os.environ)


class Live:
    """How many rows of each request of the step are alive, where captured graphs read it.

    `rows` is int32 [MOST_REQUESTS] on the device; all rows are alive (`stride`) until a step says
    otherwise. `stride` is 0 outside of the target's verification.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self.stride = 0

    def buffer(self, device: Any) -> Tensor:
        """The rows' own memory, made at the first call: a graph's capture, or an eager step."""
        import torch  # noqa: PLC0415 - as above

        if self.rows is None:
            self.rows = torch.full((MOST_REQUESTS,), ALL, dtype=torch.int32, device=device)
        return self.rows

    def all_rows(self) -> None:
        """Take all rows for alive: of a step that was not planned here."""
        if self.rows is not None:
            self.rows.fill_(ALL)

    def write(self, rows: Tensor) -> None:
        """Take the live rows of this step's requests, int32 [requests]."""
        self.buffer(rows.device)[: len(rows)].copy_(rows)


LIVE = Live()


def verify_lens(
    original: Callable[..., Any], planner: Any, *, confidence: Any, device: Any, **rest: Any
) -> Any:
    """Rows to verify of each request, int32 [requests], by the rule instead of the cost table."""
    rule = asked()
    if rule is None or confidence is None:
        LIVE.all_rows()
        return original(planner, confidence=confidence, device=device, **rest)
    from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite  # noqa: PLC0415 - as above

    rows = rule.live(confidence).to(device)
    planner._tp_sync.sync(SpecTpSyncSite.DSPARK_PLAN, rows)  # noqa: SLF001 - the hooked class's own
    LIVE.write(rows)
    return rows


def forward(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Note for the routers below whether this is a verification, and how many rows each has."""
    batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[2]
    before = LIVE.stride
    LIVE.stride = _stride(batch)
    try:
        return original(model, *args, **kwargs)
    finally:
        LIVE.stride = before


def _stride(batch: Any) -> int:
    requests = batch.batch_size
    if not batch.forward_mode.is_target_verify() or not 0 < requests <= MOST_REQUESTS:
        return 0
    rows = len(batch.input_ids)
    return rows // requests if rows % requests == 0 else 0


def route(result: Any, router: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Send dead rows to the experts of their request's first row, with its weights.

    Args:
        result: the choice; ids and weights [rows, experts a token], the rows request by request.
        router: the engine's `TopK`, or the layer that has one.

    Returns:
        The choice, changed where it is a plain one of a verification. One that also has ids and
        weights packed for the kernel comes back without, and the kernel's caller packs again.
    """
    stride, router = LIVE.stride, getattr(router, "topk", router)
    if stride < 2 or router.is_draft or not hasattr(result, "topk_weights"):
        return result
    from sglang.srt.layers.moe.topk import StandardTopKOutput  # noqa: PLC0415 - as above

    return StandardTopKOutput(
        topk_weights=from_first(result.topk_weights, stride),
        topk_ids=from_first(result.topk_ids, stride),
        router_logits=result.router_logits,
    )


def from_first(values: Tensor, stride: int) -> Tensor:
    """Each dead row of [requests * stride, n] replaced by its request's first."""
    import torch  # noqa: PLC0415 - as above

    whole = values.view(-1, stride, values.shape[-1])
    live = LIVE.buffer(values.device)[: len(whole)].view(-1, 1, 1)
    places = constant(tuple(range(stride)), values.device).view(1, -1, 1)
    return torch.where(places < live, whole, whole[:, :1]).view_as(values)


def check(environ: Mapping[str, str]) -> None:
    """The rule can be read, and the engine is in the mode that has a cap; D480, D481."""
    mode = environ.get(MODE, "static")
    if rule_of(environ) is not None and mode != "cap-accept":
        raise CheckFailed(
            "D481",
            f"verify_cap needs {MODE}=cap-accept; it is {mode!r}, which has no confidence head or "
            "a schedule of its own.",
            fix=f"set {MODE}=cap-accept, or unset DSV41_VERIFY_CAP",
        )


ADAPTER = Adapter(
    name="verify_cap",
    switch="verify_cap",
    engines=("sglang",),
    trees=("sglang-0.5.23",),
    hooks=(
        Hook(
            target=f"{PLANNER}._schedule_verify_lens",
            kind="around",
            call=verify_lens,
            takes=("confidence", "device", "budget"),
        ),
        Hook(target=f"{MODEL}.forward", kind="around", call=forward, takes=("forward_batch",)),
        Hook(target=f"{ROUTER}.forward_cuda", kind="after", call=route, takes=("router_logits",)),
        Hook(target=f"{ROUTER}.forward_native", kind="after", call=route, takes=("router_logits",)),
        # what routes where the model takes images as well
        Hook(target=VISION, kind="after", call=route, takes=("moe", "logits")),
    ),
    needs=("sglang.srt.speculative.spec_tp_sync.SpecTpSyncSite.DSPARK_PLAN",),
    check=check,
)
