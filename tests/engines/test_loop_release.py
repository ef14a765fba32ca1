"""A shortened answer gives its KV back: SGLang's own cache, with a window, counts every slot.

A stop string shortens an answer by a few tokens, a loop by hundreds, past what the window has
already let go. 0.5.21 does not shorten what it releases, and has no kit to build the cache with.
"""

from __future__ import annotations

import sys
import types
import unittest
from array import array
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hooked import hooked
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache import common
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.sampling.sampling_params import SamplingParams

from dsv41.adapters.sglang import loop_stop

KIT = "sglang.test.kits.unified_radix_cache"
PAGE, WINDOW = 4, 8
PROMPT = 21
UNIQUE = list(range(500, 700))


def has_kit() -> bool:
    try:
        return find_spec(KIT) is not None
    except ModuleNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not has_kit(), reason="this tree has no kit for its cache")


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    with hooked(loop_stop.ADAPTER, DSV41_LOOP_ABORT="1"):
        yield


@pytest.fixture(params=[False, True], ids=["plain", "bigram"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The engine's cache, allocator and request table, of pages of 4 and a window of 8 tokens."""
    # the kit's configurations are beside test cases, whose own module needs packages of benchmarks
    utilities = types.ModuleType("sglang.test.test_utils")
    monkeypatch.setattr(utilities, "CustomTestCase", unittest.TestCase, raising=False)
    monkeypatch.setitem(sys.modules, "sglang.test.test_utils", utilities)
    from sglang.srt.mem_cache.unified_cache.components.base import ComponentType  # noqa: PLC0415
    from sglang.test.kits.unified_radix_cache import config, fixtures  # noqa: PLC0415

    monkeypatch.setattr(fixtures, "get_device", lambda: "cpu")
    made = config.CacheConfig(
        page_size=PAGE,
        components=(ComponentType.FULL, ComponentType.SWA),
        sliding_window_size=WINDOW,
        num_layers=2,
        full_attention_layer_ids=(0,),
        kv_size=2048,
        max_context_len=1024,
        is_eagle=request.param,
    )
    with get_context().override_server_args(model_path="dummy"):
        yield fixtures.build_fixture(made)


def started(parts: Any) -> Req:
    cache, _, table = parts
    sampling = SamplingParams(max_new_tokens=10_000, ignore_eos=True)
    sampling.normalize(None)
    req = Req("r", "", array("q", range(PROMPT)), sampling, vocab_size=100_000)
    req.last_node = cache.root_node_handle()
    req.lock = cache.lock(req.last_node)
    table.alloc([req])
    return req


def grow(req: Req, parts: Any, tokens: list[int]) -> None:
    """A decode step a token: a slot for it, the window moves on, the engine looks for the end."""
    _, allocator, table = parts
    for token in tokens:
        req.output_ids.append(token)
        length = PROMPT + len(req.output_ids)
        if length > req.kv.kv_allocated_len:
            slots = slice(req.kv.kv_allocated_len, -(-length // PAGE) * PAGE)
            places = allocator.full_attn_allocator.alloc(slots.stop - slots.start)
            window = allocator.swa_attn_allocator.alloc(slots.stop - slots.start)
            allocator.set_full_to_swa_mapping(places, window)
            table.write((req.kv.req_pool_idx, slots), places)
            req.kv.kv_allocated_len = slots.stop
        req.kv.kv_committed_len = length - 1
        common.free_swa_out_of_window_slots(
            req,
            length - 1,
            sliding_window_size=WINDOW,
            page_size=PAGE,
            req_to_token_pool=table,
            token_to_kv_pool_allocator=allocator,
        )
        req.update_finish_state(1)
        if req.finished():
            return


def held(parts: Any) -> tuple[int, int]:
    """Slots that are free or can be: of all layers, and of those with a window."""
    cache, allocator, _ = parts
    cache.sanity_check()
    return (
        allocator.full_available_size() + cache.full_evictable_size(),
        allocator.swa_available_size() + cache.swa_evictable_size(),
    )


def release(req: Req, parts: Any) -> None:
    with get_spec().override(speculative_algorithm="DSPARK"):  # slots are allocated ahead
        common.release_kv_cache(req, parts[0], checkpoint=True)


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        pytest.param([9] * 64, 1, id="to one token"),
        pytest.param(UNIQUE[:10] + UNIQUE[20:52] * 4, 42, id="to one block"),
        pytest.param(UNIQUE + [9] * 64, 201, id="late"),
    ],
)
def test_every_slot_comes_back(parts: Any, tokens: list[int], kept: int) -> None:
    at_first = held(parts)
    for _ in range(2):  # the second finds what the first has left in the cache
        req = started(parts)
        grow(req, parts, tokens)
        assert req.finished_len == kept
        release(req, parts)
        assert held(parts) == at_first
    parts[0].evict(EvictParams(num_tokens=10**6, swa_num_tokens=10**6))
    assert (parts[1].full_available_size(), parts[1].swa_available_size()) == at_first


def test_what_the_cache_owns_is_not_taken_back(parts: Any) -> None:
    """A running request hands part of its answer to the cache, as one that was retracted does."""
    at_first = held(parts)
    req = started(parts)
    grow(req, parts, UNIQUE[:10] + UNIQUE[20:52] * 3)
    req.refresh_fill_ids()
    parts[0].checkpoint(req, up_to=100)
    owned = req.kv.cache_protected_len
    assert owned > PROMPT + 42
    grow(req, parts, UNIQUE[20:52])
    assert req.finished_len == owned + 1 - PROMPT
    release(req, parts)
    assert held(parts) == at_first
