"""What SGLang does itself, so that no adapter does it: each against the released code.

Flags and variables that a profile renders are asked for in tests/test_flags.py; here is how the
release acts on them, and what it does by default.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import multiprocessing
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import scripted_sglang
import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.dsv4 import metadata
from sglang.srt.layers.attention.dsv4.v41_indexer import scoring
from sglang.srt.managers.min_free_slots_delayer import resolve_min_free_slots
from sglang.srt.model_executor.runner import flashinfer_autotune
from sglang.srt.server_args import ServerArgs
from transformers import PreTrainedTokenizerFast

from dsv41.engines.trees import ABSENT, ADAPTER, FLAG, TREES
from dsv41.guards.effort import DEFAULT_BUDGET, TIERS

RELEASE = TREES["sglang-0.5.23"]
IS_0_5_23 = version("sglang") == "0.5.23"
RENDERER = "sglang.srt.parser.deepseek_recipe_renderer"
ENCODER = "sglang.srt.entrypoints.openai.encoding_dsv41"


def test_which_capabilities_this_file_answers_for() -> None:
    own = {name for name, how in RELEASE.capabilities.items() if how == FLAG}
    here = {"block_verify", "bounded_indexer", "effort_tiers", "autotune_keep", "flash_mla_sm120"}
    assert here | {"min_free_slots"} <= own
    assert {TREES[tree].can("bounded_indexer") for tree in ("sglang-base", "sglang-branch")} == {
        ABSENT
    }
    assert RELEASE.can("loop_abort") == ADAPTER


@pytest.mark.skipif(not IS_0_5_23, reason="the trees like 0.5.21 have no block verification")
def test_block_verification_is_a_flag_that_is_off() -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flag = "speculative_use_block_verification"
    assert getattr(parser.parse_args(["--model-path", "x"]), flag) is False
    argv = ["--model-path", "x", "--speculative-use-block-verification"]
    assert getattr(parser.parse_args(argv), flag) is True


@pytest.mark.skipif(not IS_0_5_23, reason="the trees like 0.5.21 have no block verification")
def test_block_verification_reaches_the_drafts_of_this_model() -> None:
    """It runs on a GPU only; what can be seen here is that the worker hands the flag on."""
    worker = importlib.import_module("sglang.srt.speculative.dspark_components.dspark_worker_v2")
    handed = "block_verification=get_spec().speculative_use_block_verification"
    assert inspect.getsource(worker).count(handed) == 2


@pytest.mark.parametrize(
    ("rows", "keys", "chunk"),
    [(768, 262_144, None), (4096, 1 << 20, 512), (8192, 1024, 4096), (4096, 65_536, None)],
)
def test_the_indexer_is_bounded(rows: int, keys: int, chunk: int | None) -> None:
    """Rows at once by the bytes of their scores, 4096 at most on SM12x (sglang #40217)."""
    budget = scoring._DEEP_GEMM_SCORE_BUDGET_BYTES
    assert (budget, scoring._TORCH_SCORE_BUDGET_BYTES) == (2 << 30, 1 << 30)
    plan = metadata.plan_indexer_row_chunks
    found = plan(num_rows=rows, num_cols=keys, budget_bytes=budget, sm120_row_cap=4096)
    assert found == chunk
    assert (found or rows) * keys * 4 <= budget


def test_the_fused_finalize_is_off() -> None:
    assert envs.SGLANG_FLASHINFER_MOE_FUSED_FINALIZE.get() is False


@pytest.mark.parametrize(
    ("asked", "streams", "kept"),
    [(None, 4, None), (None, 8, 2), (None, 16, 3), (1, 16, None), (1, 8, None)],
)
def test_free_slots_that_a_prefill_waits_for(
    asked: int | None, streams: int, kept: int | None
) -> None:
    """Profiles ask for 1, which turns the waiting off."""
    assert resolve_min_free_slots(asked, streams, is_dflash_family=True) == kept


def autotuned(rank: int, folder: Path, contents: tuple[str, str], kept: Any) -> None:
    """One of two ranks, each with a cache of its own."""
    cache = folder / f"rank{rank}.json"
    cache.write_text(contents[rank])
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    group = torch.distributed.group.WORLD
    flashinfer_autotune._drop_diverged_autotune_cache(cache, group, {})
    kept.put(cache.exists())
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("second", ['{"a": 1}', '{"a": 2}'], ids=["equal", "different"])
def test_autotune_caches_that_differ_between_ranks_are_dropped(tmp_path: Path, second: str) -> None:
    assert envs.SGLANG_FLASHINFER_AUTOTUNE_CACHE.get() is True
    context = multiprocessing.get_context("fork")
    kept: Any = context.Queue()
    given = (tmp_path, ('{"a": 1}', second), kept)
    ranks = [context.Process(target=autotuned, args=(rank, *given)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    found = [kept.get(timeout=120) for _ in ranks]
    for rank in ranks:
        rank.join()
    assert found == [second == '{"a": 1}'] * 2


def test_attention_of_sm12x_is_in_the_release() -> None:
    """The recipe's overlay file is upstream, with its split at 64 query tokens."""
    assert find_spec("sglang.kernels.ops.attention.flash_mla_sm120") is not None
    module = importlib.import_module("sglang.kernels.ops.attention.flash_mla_sm120")
    assert callable(module.flash_mla_with_kvcache_sm120)
    assert "_flash_mla_sm120_prefill" in inspect.getsource(module)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = scripted_sglang.write_model(tmp_path_factory.mktemp("model"))
    return PreTrainedTokenizerFast.from_pretrained(folder)


def budget_of(tokenizer: Any, effort: object) -> int:
    """The budget in the prompt that the tree's own chat code renders for a request's effort."""
    messages = [{"role": "user", "content": "hi"}]
    if find_spec(RENDERER):
        serving = importlib.import_module("sglang.srt.entrypoints.openai.serving_deepseek_recipe")
        adapter = serving.DeepSeekRecipeChatEncodingAdapter(
            chat_encoding_spec="dsv41",
            tokenizer=tokenizer,
            reasoning_parser=None,
            tool_call_parser=None,
            chat_hooks=None,
            default_chat_template_kwargs=None,
        )
        ids = adapter._encode({"messages": messages, "thinking": True}, effort=effort)
        text = tokenizer.decode(ids)
    else:
        chat = importlib.import_module("sglang.srt.entrypoints.openai.serving_chat")
        handler = chat.OpenAIServingChat.__new__(chat.OpenAIServingChat)
        effort_of = chat.chat_encoding.default_dsv41_reasoning_effort_from_env
        handler._dsv41_default_reasoning_effort = effort_of(
            envs.SGLANG_DSV41_REASONING_EFFORT.get()
        )
        resolved = handler._resolve_dsv41_reasoning_effort(effort)
        encoder = importlib.import_module(ENCODER)
        text = encoder.encode_messages(
            messages, thinking_mode="thinking", reasoning_effort=resolved
        )
    return int(text.partition("Reasoning Effort: ")[2].split()[0])


@pytest.mark.parametrize(
    ("effort", "budget"),
    [("low", 50), ("high", 75), ("xhigh", 75), ("max", 100), (None, 75), ("none", 75), (30, 30)],
)
def test_effort_tiers(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, effort: object, budget: int
) -> None:
    """The publisher's, which `dsv41.guards.effort` has too; earlier builds had half of them."""
    monkeypatch.delenv("SGLANG_DSV41_REASONING_EFFORT", raising=False)
    assert budget_of(tokenizer, effort) == budget
    if isinstance(effort, str) and effort != "none":
        assert TIERS[effort] == budget
    assert DEFAULT_BUDGET == 75


@pytest.mark.parametrize(("variable", "budget"), [("75", 75), ("30", 30), ("low", 50)])
def test_the_variable_is_the_effort_of_a_request_that_names_none(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, variable: str, budget: int
) -> None:
    monkeypatch.setenv("SGLANG_DSV41_REASONING_EFFORT", variable)
    assert budget_of(tokenizer, None) == budget
    assert budget_of(tokenizer, "max") == 100
