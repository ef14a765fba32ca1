"""When the allocator's cache is emptied: after long extends of the target model, never else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hooked import hooked, published
from sglang.srt.model_executor import model_runner
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

from dsv41.adapters.sglang import prefill_empty_cache

LEAST = 8192


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    with (
        published(),
        hooked(prefill_empty_cache.ADAPTER, DSV41_PREFILL_EMPTY_CACHE_TOKENS=str(LEAST)),
    ):
        yield
    prefill_empty_cache._least.cache_clear()


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(1))
    return calls


def batch(mode: ForwardMode, lengths: list[int], *, on_cpu: bool = True) -> ForwardBatch:
    tensor = torch.tensor(lengths)
    return ForwardBatch(
        forward_mode=mode,
        batch_size=len(lengths),
        input_ids=torch.zeros(1),
        req_pool_indices=torch.zeros(1),
        seq_lens=tensor,
        out_cache_loc=torch.zeros(1),
        seq_lens_sum=sum(lengths),
        seq_lens_cpu=tensor if on_cpu else None,
    )


class Runner(model_runner.ModelRunner):  # type: ignore[misc]
    """The engine's own forward, without a model inside."""

    def __init__(self, *, draft: bool) -> None:
        self.is_draft_worker = draft
        self.forward_pass_id = 0
        self.enable_elastic_ep = False
        self.msprobe_debugger = self.canary_manager = self.eplb_manager = None
        self.decode_cuda_graph_runner = None

    def _forward_raw(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(can_run_graph=False)


def forward(given: ForwardBatch, *, draft: bool = False) -> Any:
    return Runner(draft=draft).forward(given)


@pytest.mark.parametrize(
    ("mode", "lengths", "times"),
    [
        (ForwardMode.EXTEND, [LEAST], 1),
        (ForwardMode.EXTEND, [LEAST - 1], 0),
        (ForwardMode.EXTEND, [5, LEAST, 7], 1),
        (ForwardMode.EXTEND, [LEAST // 2] * 4, 0),
        (ForwardMode.MIXED, [LEAST], 1),
        (ForwardMode.EXTEND, [], 0),
        (ForwardMode.DECODE, [100_000], 0),
        (ForwardMode.TARGET_VERIFY, [100_000], 0),
        (ForwardMode.IDLE, [100_000], 0),
    ],
    ids=str,
)
def test_after_which_forwards(
    emptied: list[int], mode: ForwardMode, lengths: list[int], times: int
) -> None:
    assert forward(batch(mode, lengths)).can_run_graph is False
    assert len(emptied) == times


def test_the_draft_follows_at_once_and_empties_nothing(emptied: list[int]) -> None:
    forward(batch(ForwardMode.EXTEND, [LEAST]), draft=True)
    assert not emptied


def test_lengths_on_the_gpu_alone_are_not_waited_for(emptied: list[int]) -> None:
    forward(batch(ForwardMode.EXTEND, [LEAST // 2] * 2, on_cpu=False))
    assert len(emptied) == 1  # by their sum, which is at hand


def test_a_failure_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert forward(batch(ForwardMode.EXTEND, [LEAST])) is not None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no memory" in caplog.text
