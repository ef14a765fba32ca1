"""Loops end in SGLang's own requests: what ends, what is kept, and what is left alone."""

from __future__ import annotations

import gc
import logging
import pickle
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hooked import hooked, published
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.detokenizer_manager import DetokenizerManager
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, FINISH_MATCHED_STR, Req
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from dsv41.adapters.sglang import loop_stop

PROMPT = array("q", [7, 7, 7])


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Letters, a newline, a word, a special token, a text of 36 characters, and much Chinese."""
    words = {chr(ord("a") + n): n for n in range(26)} | {"\n": 26, "repetition": 27, "<s>": 28}
    words |= {"the quick brown fox jumps over a dog": 29}
    words |= {chr(0x4E00 + n): 30 + n for n in range(800)}
    made = Tokenizer(models.WordLevel(words))
    made.decoder = decoders.Fuse()
    found = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)
    found.add_special_tokens({"bos_token": "<s>"})
    found.additional_stop_token_ids = None  # SGLang's own loader sets it
    return found


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    with hooked(loop_stop.ADAPTER, DSV41_LOOP_ABORT="1"):
        yield


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets the variables of the rules, DSV41_LOOP_*, for one test."""

    def choose(**values: int) -> None:
        loop_stop._config.cache_clear()
        for name, value in values.items():
            monkeypatch.setenv(f"DSV41_LOOP_{name}", str(value))

    yield choose
    loop_stop._config.cache_clear()


def request_of(tokenizer: Any, **params: Any) -> Req:
    sampling = SamplingParams(**{"max_new_tokens": 100_000, "ignore_eos": True, **params})
    sampling.normalize(tokenizer)
    req = Req("r1", "", PROMPT, sampling, vocab_size=200_000)
    req.tokenizer = tokenizer
    return req


def run(req: Req, tokens: Iterable[int], step: int = 1) -> Req:
    """Give the tokens to the request, `step` at a time as speculative decoding does."""
    tokens = list(tokens)
    for start in range(0, len(tokens), step):
        new = tokens[start : start + step]
        req.output_ids.extend(new)
        req.update_finish_state(len(new))
        if req.finished():
            break
    return req


def ended(req: Req) -> int | None:
    """How many tokens are kept, when the request ended as a loop."""
    if not req.finished():
        return None
    assert isinstance(req.finished_reason, FINISH_MATCHED_STR)
    assert req.finished_reason.to_json() == {"type": "stop", "matched": "repetition"}
    assert len(req.output_ids_through_stop) == req.finished_len
    return int(req.finished_len)


UNIT = [100 + n for n in range(32)]
PREFIX = list(range(200, 210))
UNIQUE = list(range(400, 800))
LINE = [29, 26]
DISTINCT = [token for n in range(12) for token in [n, *LINE]]


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        pytest.param(PREFIX + UNIT * 4, 42, id="prefix and a unit four times"),
        pytest.param(UNIQUE, None, id="different tokens"),
        pytest.param([1, 2, 3, 4, 5, 6] * 4, None, id="a unit shorter than 32, four times"),
        pytest.param([1, 2, 3, 4, 5, 6] * 24, 36, id="the same until 36 of them come four times"),
        pytest.param([9] * 64, 1, id="64 equal tokens"),
        pytest.param([9] * 63, None, id="63 equal tokens"),
        pytest.param(UNIT * 3, None, id="a unit three times"),
        pytest.param([*UNIQUE, 26, *LINE * 8], 401 + 8 * 2 - 1, id="eight equal lines"),
        pytest.param([*UNIQUE, 26, *LINE * 7], None, id="seven equal lines"),
        pytest.param(UNIQUE + [0, 26] * 30, None, id="short lines"),
        pytest.param(DISTINCT, None, id="twelve lines that differ"),
    ],
)
def test_a_token_at_a_time(tokenizer: Any, tokens: list[int], kept: int | None) -> None:
    """The cases of the recipe's own tests; rule and count as `dsv41.guards.loop` has them."""
    assert ended(run(request_of(tokenizer), tokens)) == kept


@pytest.mark.parametrize("step", [2, 5, 6, 64, 1000])
@pytest.mark.parametrize(
    ("tokens", "fewest"),
    [(PREFIX + UNIT * 20, 42), ([3] * 10 + [9] * 500, 11), (UNIQUE + LINE * 20, 400)],
    ids=["unit", "token", "lines"],
)
def test_bursts(tokenizer: Any, tokens: list[int], fewest: int, step: int) -> None:
    """A speculative step brings several tokens; the loop is seen at the end of the step."""
    req = run(request_of(tokenizer), tokens, step)
    kept = ended(req)
    assert kept is not None
    assert fewest <= kept <= len(req.output_ids) <= len(tokens)
    if step == 1000:  # judged once, at the end of everything: one copy less than what came
        assert kept == {42: len(tokens) - 3 * 32, 11: 11, 400: len(tokens)}[fewest]


def test_what_the_engine_ended_is_left_alone(tokenizer: Any) -> None:
    """Length, stop token and stop string come first, and a later call changes nothing."""
    by_length = run(request_of(tokenizer, max_new_tokens=64), [9] * 64, step=64)
    assert isinstance(by_length.finished_reason, FINISH_LENGTH)
    assert by_length.finished_len == 64
    by_length.update_finish_state(1)
    assert isinstance(by_length.finished_reason, FINISH_LENGTH)

    by_token = run(request_of(tokenizer, stop_token_ids=[5], ignore_eos=False), [*UNIT * 3, 5])
    assert by_token.finished_reason.to_json() == {"type": "stop", "matched": 5}

    by_string = run(request_of(tokenizer, stop=["repetition"]), [1, 27])
    assert by_string.finished_reason.to_json()["matched"] == "repetition"
    assert type(by_string.finished_reason.to_json()) is dict


@pytest.mark.parametrize("off", ["ABORT", "NGRAM", "REPEATS"])
def test_rules_that_are_off(tokenizer: Any, rules: Callable[..., None], off: str) -> None:
    rules(**({"ABORT": 0} if off == "ABORT" else {off: 0, "IDENTICAL": 0, "LINE_REPEATS": 0}))
    for tokens in ([9] * 500, UNIT * 8, UNIQUE + LINE * 9):
        assert ended(run(request_of(tokenizer), tokens)) is None


def test_other_rules(tokenizer: Any, rules: Callable[..., None]) -> None:
    """The variables reach the rules; a maximum below the minimum counts as the minimum."""
    rules(NGRAM=8, NGRAM_MAX=4, REPEATS=3, IDENTICAL=0)
    assert ended(run(request_of(tokenizer), UNIQUE + UNIT[:8] * 3)) == 408
    assert ended(run(request_of(tokenizer), UNIQUE + UNIT[:9] * 3)) is None


def test_no_tokenizer_no_line_rule(tokenizer: Any) -> None:
    req = request_of(tokenizer)
    req.tokenizer = None
    assert ended(run(req, UNIQUE + LINE * 9)) is None
    req = request_of(tokenizer)
    req.tokenizer = None
    assert ended(run(req, [9] * 64)) == 1


class Broken:
    """A tokenizer that fails at every text."""

    def decode(self, *_: object, **__: object) -> str:
        raise OverflowError


def test_a_tokenizer_that_fails_is_told_of_once(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    loop_stop._warn_of_decoding.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            req = request_of(tokenizer)
            req.tokenizer = Broken()
            assert ended(run(req, UNIQUE + LINE * 9)) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_nothing_stays_behind(tokenizer: Any) -> None:
    """The state is on the request, leaves it at its end, and goes with it."""
    req = run(request_of(tokenizer), UNIQUE)
    watch = vars(req)[loop_stop.STATE]
    gone = weakref.ref(watch.detector)
    run(req, [9] * 64)
    assert ended(req) == 401
    assert loop_stop.STATE not in vars(req)
    del watch
    gc.collect()
    assert gone() is None

    unfinished = run(request_of(tokenizer), UNIQUE)
    gone = weakref.ref(vars(unfinished)[loop_stop.STATE].detector)
    del unfinished
    gc.collect()
    assert gone() is None


def test_an_answer_that_starts_anew_is_watched_anew(tokenizer: Any) -> None:
    """A retracted request with embeddings as input throws its output away."""
    req = run(request_of(tokenizer), [*UNIQUE, *[9] * 40])
    req.output_ids = array("q")
    assert ended(run(req, [9] * 63)) is None
    assert ended(run(req, [9])) == 1


def test_what_was_sent_is_kept(tokenizer: Any) -> None:
    req = request_of(tokenizer)
    run(req, [9] * 40)
    req.send_token_offset = 40
    assert ended(run(req, [9] * 24)) == 40


@pytest.mark.parametrize(("before", "kept"), [(UNIQUE, 401), (PREFIX, 254)])
def test_what_the_prefix_cache_owns_is_kept(tokenizer: Any, before: list[int], kept: int) -> None:
    """A retracted request comes back with its output as prompt, whose pages the cache owns."""
    req = run(request_of(tokenizer), before)
    req.kv.cache_protected_len = 256  # the prompt's 3 tokens and 253 of the answer
    req.kv.kv_committed_len = len(PROMPT) + len(before) + 300
    assert ended(run(req, [9] * 300, step=300)) == kept
    with published():
        assert req.owned_kv_len() > req.kv.cache_protected_len


def streamer(sent: list[Any]) -> SchedulerOutputStreamer:
    return SchedulerOutputStreamer(
        send_to_detokenizer=SimpleNamespace(send_output=lambda out, *_: sent.append(out)),
        tree_cache=None,
        server_args=None,
        is_generation=True,
        spec_algorithm=SpeculativeAlgorithm.from_string(None),
        disaggregation_mode=DisaggregationMode.NULL,
        enable_hicache_storage=lambda: False,
    )


def detokenized(outputs: list[Any], tokenizer: Any) -> str:
    """The text of an answer, by SGLang's detokenizer, after the pickle between the processes."""
    manager = DetokenizerManager.__new__(DetokenizerManager)
    manager.__dict__.update(
        tokenizer=tokenizer,
        vocab_size=200_000,
        decode_status={},
        disable_tokenizer_batch_decode=False,
        is_tool_call_parser_gpt_oss=False,
        tool_close_token_ids=set(),
    )
    received = [pickle.loads(pickle.dumps(output)) for output in outputs]  # noqa: S301 - ours
    return "".join(manager._decode_batch_token_id_output(one)[0] for one in received)


def test_the_word_repetition_does_not_cut_the_answer(tokenizer: Any) -> None:
    """SGLang cuts the text at a matched stop string; ours is none."""
    tokens = [1, 27, 2, *UNIT * 4]
    sent: list[Any] = []
    req = run(request_of(tokenizer), tokens)
    with published():
        streamer(sent).stream_output([req], return_logprob=False)
    assert ended(req) == 35
    text = detokenized(sent, tokenizer)
    assert text.startswith("brepetitionc")
    assert len(text) == len("brepetitionc") + 32

    stopped = run(request_of(tokenizer, stop=["repetition"]), [1, 27, 2])
    sent.clear()
    with published():
        streamer(sent).stream_output([stopped], return_logprob=False)
    assert detokenized(sent, tokenizer) == "b"
