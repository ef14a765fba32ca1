"""The cap on an answer is SGLang's own variable, for every path: the scheduler's code says so."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.sampling.sampling_params import SamplingParams

from dsv41.engines.trees import FLAG, TREES

NAME = "SGLANG_MAX_NEW_TOKENS_LIMIT"


def capped(monkeypatch: pytest.MonkeyPatch, limit: str | None, asked: int | None) -> Any:
    """max_new_tokens of a request after the scheduler has looked at it; 1000 tokens of context."""
    if limit is None:
        monkeypatch.delenv(NAME, raising=False)
    else:
        monkeypatch.setenv(NAME, limit)
    scheduler = SimpleNamespace(
        max_new_tokens_limit=envs.SGLANG_MAX_NEW_TOKENS_LIMIT.get(),  # as Scheduler.__init__ does
        max_req_len=1004,
        max_total_num_tokens=65_536,
        kv_shard_widening=1,
        page_size=256,
        sliding_window_size=None,
        chunked_prefill_size=None,
        token_to_kv_pool_allocator=SimpleNamespace(
            max_new_tokens_for_memory=lambda _, wanted, **__: wanted
        ),
    )
    req = Req("r", "", array("q", [1, 2, 3]), SamplingParams(max_new_tokens=asked))
    Scheduler.init_req_max_new_tokens(scheduler, req)
    return req.sampling_params.max_new_tokens


@pytest.mark.parametrize(
    ("limit", "asked", "kept"),
    [
        ("300", None, 300),
        ("300", 256, 256),
        ("300", 100_000, 300),
        ("300", 300, 300),
        ("32768", None, 1000),  # the context is shorter
        ("0", None, 1000),
        ("0", 100_000, 1000),
        (None, None, 1000),
        (None, 256, 256),
    ],
)
def test_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, asked: int | None, kept: int
) -> None:
    assert capped(monkeypatch, limit, asked) == kept


def test_every_tree_has_it() -> None:
    """So no adapter does it a second time."""
    sglang = [tree for tree in TREES.values() if tree.engine == "sglang"]
    assert {tree.can("output_cap") for tree in sglang} == {FLAG}
