"""Stop an answer that repeats itself without end.

What: after SGLang's own checks of a request (end of text, stop strings, length), the loop rules of
`dsv41.guards.loop` look at its newest tokens. A loop ends the request with finish_reason "stop" and
matched_stop "repetition", and one copy of what was repeated is kept. Tokens that the client already
has, and tokens whose KV the prefix cache owns, are never taken back.

Why: at low effort and in long agent runs the model falls into loops that only the output cap would
end (MiaAI-Lab/DeepSeek-V4.1-Flash-2xDGX-Spark, `DSV41_LOOP_ABORT`); no released SGLang has a
detector, only penalties, which change every answer.

Effect: a looping answer ends after 64 equal tokens, four equal blocks or eight equal lines instead
of at 32,768 tokens. It costs 9 microseconds a token where a step brings five tokens and 20 where it
brings one: prose and code of 4,000 to 8,000 tokens through SGLang 0.5.23's `Req` with the model's
tokenizer, one core of an x86-64 server. Not measured on a Spark.

Off: DSV41_LOOP_ABORT=0; the single rules by DSV41_LOOP_NGRAM, _IDENTICAL and _LINE_REPEATS = 0.

Obsolete when: SGLang ends repeating requests itself.

SGLang takes the `matched` of a finished request for a stop string of the client: its detokenizer
cuts the text where that word first stands, and 0.5.23's chat parser looks for it by decoding ever
longer tails of the answer. Both are kept from it: our finish reason is a dict of a type of its own,
which survives the pickle between SGLang's processes (not msgpack, SGLANG_USE_PICKLE_IPC=0). 0.5.21
loads no plugin in its detokenizer: there, a looping answer with the word "repetition" in it loses
what the detokenizer had not sent on by then.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsv41 import switches
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.guards.loop import LoopConfig, LoopDetector

log = logging.getLogger(__name__)
STATE = "_dsv41_loop"  # an attribute of the request: it goes when the request goes
RULES = ("abort", "ngram", "ngram_max", "repeats", "identical", "line_repeats", "line_min")


class Reason(dict[str, object]):
    """Our finish reason as SGLang sends it on; a client's stop string comes in a plain dict.

    JSON encoders write it like any dict. Its words are plain: SGLang's encoder of streams (msgspec)
    refuses subclasses of str.
    """

    __slots__ = ()


@dataclass(kw_only=True, slots=True)
class Watch:
    """The detector of one request, and how many of its tokens the detector has seen."""

    detector: LoopDetector
    seen: int = 0


def config(environ: Mapping[str, str]) -> LoopConfig:
    """The rules that the environment asks for."""
    return LoopConfig(**{rule: switches.read(environ, f"loop_{rule}") for rule in RULES})


@functools.cache
def _config() -> LoopConfig:
    return config(os.environ)


@functools.cache
def _warn_of_decoding() -> None:
    log.warning("the line rule of the loop stop is skipped: the tokens cannot be decoded")


@functools.lru_cache(maxsize=1)  # a scheduler has one tokenizer
def _decoder(tokenizer: Any) -> Callable[[list[int]], str] | None:
    """Text of tokens, for all requests: each looks at most tokens alone, and these are kept."""
    if tokenizer is None:  # --skip-tokenizer-init
        return None

    def decode(tokens: Sequence[int]) -> str:
        try:
            return str(tokenizer.decode(list(tokens), skip_special_tokens=False))
        except Exception:  # noqa: BLE001 - whatever a tokenizer raises, the answer goes on
            _warn_of_decoding()
            return ""

    alone = functools.cache(lambda token: decode([token]))  # the vocabulary bounds it
    return lambda tokens: alone(tokens[0]) if len(tokens) == 1 else decode(tokens)


def _after_the_engines_checks(
    original: Callable[..., object], req: Any, *args: object, **kwargs: object
) -> object:
    result = original(req, *args, **kwargs)
    rules = _config()
    # a beam's tokens are chosen again at every step: they are no answer yet
    if rules.enabled and not req.finished() and getattr(req, "beam_group", None) is None:
        keep = _look(req, rules)
        if keep is not None:
            _finish(req, keep)
    if req.finished():
        vars(req).pop(STATE, None)
    return result


def _look(req: Any, rules: LoopConfig) -> int | None:
    """Show the detector what is new: one token, or as many as a speculative step accepted."""
    tokens: Sequence[int] = req.output_ids
    watch = vars(req).get(STATE)
    if watch is None or watch.seen > len(tokens):  # new, or taken back to the start
        watch = Watch(detector=LoopDetector(rules, _decoder(req.tokenizer)))
        setattr(req, STATE, watch)
    new, watch.seen = tokens[watch.seen :], len(tokens)
    return watch.detector.push(new) if len(new) else None


@functools.cache
def _finish_reason() -> Callable[[str], Any]:
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR  # noqa: PLC0415

    class FinishLoop(FINISH_MATCHED_STR):  # type: ignore[misc, unused-ignore]
        def to_json(self) -> Reason:
            return Reason(super().to_json())

    return FinishLoop


def _finish(req: Any, keep: int) -> None:
    kept = max(keep, req.send_token_offset, _owned_by_the_cache(req))
    req.finished_reason = _finish_reason()("repetition")
    req.finished_len = min(kept, len(req.output_ids))
    rule = vars(req)[STATE].detector.kind
    says = "request %s is stopped, it repeats itself (%s): %d of its %d tokens are kept"
    log.info(says, req.rid, rule, req.finished_len, len(req.output_ids))


def _owned_by_the_cache(req: Any) -> int:
    """Output tokens that must stay, because the prefix cache owns their KV.

    Only a request that was retracted has any: its own output became its prompt. Releasing it at
    fewer tokens fails an assertion of the scheduler, one token more than the protected ones never.
    """
    protected = getattr(getattr(req, "kv", req), "cache_protected_len", 0)
    return max(0, protected + 1 - len(req.origin_input_ids))


def _do_not_cut_text(
    original: Callable[..., object],
    manager: object,
    output: object,
    finished_reason: Mapping[str, object] | None,
    no_stop_trim: object,
) -> object:
    if isinstance(finished_reason, Reason):
        return output
    return original(manager, output, finished_reason, no_stop_trim)


def _do_not_search_text(
    original: Callable[..., object],
    parser: object,
    token_ids: object,
    finish_reason: Mapping[str, object],
    **kwargs: object,
) -> object:
    if isinstance(finish_reason, Reason):
        finish_reason = {**finish_reason, "matched": None}
    return original(parser, token_ids, finish_reason, **kwargs)


ADAPTER = Adapter(
    name="loop_stop",
    switch="loop_abort",
    engines=("sglang",),
    trees=("sglang-0.5.23", "sglang-branch", "sglang-base"),
    hooks=(
        Hook(
            target="sglang.srt.managers.schedule_batch.Req.update_finish_state",
            kind="around",
            call=_after_the_engines_checks,
        ),
        Hook(
            target="sglang.srt.managers.detokenizer_manager.DetokenizerManager.trim_matched_stop",
            kind="around",
            call=_do_not_cut_text,
            takes=("output", "finished_reason", "no_stop_trim"),
        ),
        Hook(
            target="sglang.srt.parser.deepseek_recipe_output.DeepSeekRecipeOutputParser.finish",
            kind="around",
            call=_do_not_search_text,
            takes=("token_ids", "finish_reason"),
            optional=True,  # from 0.5.22 or 0.5.23 on; earlier trees parse the detokenizer's text
        ),
    ),
    needs=("sglang.srt.managers.schedule_batch.FINISH_MATCHED_STR",),
)
