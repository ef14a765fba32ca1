"""From a chat request to prompt ids, and from generated ids to the parts of an answer.

The format is the publisher's own: `deepseek-recipe` renders, encodes and parses. This is the only
module that imports it. What it does not take is done here, in front of it: the thinking switch by
its other names, efforts as numbers, message shapes of real clients.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import deepseek_recipe as recipe

from dsv41.guards import effort, thinking
from dsv41.guards.image_text import PLACEHOLDER
from dsv41.local.http.messages import normalized
from dsv41.local.http.openai import RequestError, bad_value, not_built

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Chunk = dict[str, Any]

_PASSED_ON = (
    "model",
    "response_format",
    "stop",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
)
_EFFORT_LINE = "Reasoning Effort: {} (range 1-100"  # how the prompt begins, after two special ids
_EFFORT_AT = 2
_REASONS = {
    "stop": recipe.InferenceFinishReason.Stop,
    "length": recipe.InferenceFinishReason.Length,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What the text must be.

    kind: "json" (schema: JSON text, empty for any object), "tool_call_required" (schema: the
    tools as a JSON list) or "regex". after_thinking: the text begins after `</think>`. several:
    more than one tool may be called.
    """

    kind: str
    schema: str
    after_thinking: bool = False
    several: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A request ready for the engine; `single`: no more than one tool may be called."""

    ids: tuple[int, ...]
    text: str
    thinking: bool
    need: Need | None
    single: bool
    request: recipe.ConversationRequest

    def default_max_tokens(self, context: int) -> int:
        """Give the publisher's output limit for a request that names none, cut to the context."""
        return self.request.resolve_max_tokens(len(self.ids), context)


class Prompts:
    """Makes prompts and answer parsers for one tokenizer."""

    def __init__(self, tokenizer: str, *, models: Iterable[str], default_effort: int = 75) -> None:
        """Load `tokenizer`, the text of a tokenizer.json; `models` are the names served here."""
        self._tokenizer = recipe.Tokenizer.from_str(tokenizer)
        self._special = recipe.SpecialTokens(image=PLACEHOLDER)
        encoding = recipe.DeepseekV41Encoding().with_special_tokens(self._special)
        self._encoding = encoding.with_tokenizer(self._tokenizer)
        served = dict.fromkeys(models, recipe.ModelVersion.DeepseekV41Flash)
        options = recipe.ConversionOptions().with_special_tokens(self._special)
        self._options = options.with_model_versions_by_name(served)
        self._models = tuple(served)
        self._default_effort = default_effort

    def prepare(self, body: Mapping[str, Any]) -> Prompt:
        """Make the prompt of a chat request; `body` has passed `openai.read_ask`.

        Raises RequestError when the conversation, a tool or the answer format is refused.
        """
        on, budget = self._thinking(body)
        request = self._convert(body, thinking_on=on, budget=budget)
        if any(message.image_sources for message in request.conversation.messages):
            raise not_built("messages", ": the local engine reads no images")
        ids = self._encoding.encode(request.conversation)
        text = self._encoding.render_conversation(request.conversation).prompt
        if on and budget != _rendered(budget):
            ids, text = self._with_effort(ids, text, budget)
        named = isinstance(body.get("tool_choice"), dict)
        single = named or not body.get("parallel_tool_calls", True)
        return Prompt(
            ids=tuple(ids),
            text=text,
            thinking=on,
            need=_need(request, several=not single),
            single=single,
            request=request,
        )

    def parser(self, prompt: Prompt, *, answer: str, model: str, created: int) -> Parser:
        """Begin to parse an answer; `answer` is its id, `created` the time in Unix seconds."""
        options = prompt.request.parsing_options
        options.special_tokens = self._special
        generator = recipe.ChatCompletionRequest.chunk_generator(prompt.request, answer, model)
        processor = recipe.StreamProcessor(generator, options, self._tokenizer)
        usage = recipe.PromptUsage(prompt_tokens=len(prompt.ids))
        whole = recipe.ChatCompletionResponse(answer, model, created, len(prompt.ids), 0)
        return Parser(processor, usage, whole, single=prompt.single)

    def _thinking(self, body: Mapping[str, Any]) -> tuple[bool, int]:
        """Whether the model thinks, and with what budget."""
        kwargs = body.get("chat_template_kwargs", {})
        asked = body.get("reasoning_effort", kwargs.get("reasoning_effort"))
        chosen = _chosen(body, kwargs)
        forced = _forces_a_call(body.get("tool_choice"))
        if forced and not body.get("tools"):
            raise bad_value("tool_choice", "forces a tool call, but there are no tools")
        if forced and chosen:
            raise bad_value("tool_choice", "cannot force a tool call while thinking is on")
        if chosen is None:
            chosen = not forced and asked != effort.OFF
        if asked is None or asked == effort.OFF:
            return chosen, self._default_effort
        try:
            return chosen, effort.budget(asked)
        except ValueError as error:
            raise RequestError(str(error), param="reasoning_effort", code="invalid_value") from None

    def _convert(
        self, body: Mapping[str, Any], *, thinking_on: bool, budget: int
    ) -> recipe.ConversationRequest:
        passed = {field: body[field] for field in _PASSED_ON if field in body}
        passed.setdefault("model", self._models[0])
        if passed["model"] not in self._models:
            says = f"{passed['model']!r} is not served here; the names are " + ", ".join(
                self._models
            )
            raise RequestError(f"The model {says}.", param="model", code="model_not_found")
        passed["messages"] = normalized(body.get("messages"))
        passed["thinking"] = {"type": "enabled" if thinking_on else "disabled"}
        if thinking_on and _rendered(budget) == 100:
            passed["reasoning_effort"] = "max"
        try:
            return recipe.ChatCompletionRequest(passed).convert(self._options)
        except recipe.ConversionError as error:
            raise RequestError(_says(error), code="invalid_value") from None
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{error}.", code="invalid_value") from None

    def _with_effort(self, ids: list[int], text: str, budget: int) -> tuple[list[int], str]:
        """Replace the number in the effort line, which the encoder only writes for its tiers."""
        old, new = (_EFFORT_LINE.format(number) for number in (_rendered(budget), budget))
        before, after = self._tokenizer.encode(old), self._tokenizer.encode(new)
        end = _EFFORT_AT + len(before)
        if ids[_EFFORT_AT:end] != before:
            raise RuntimeError("the prompt does not begin with the effort line")
        return [*ids[:_EFFORT_AT], *after, *ids[end:]], text.replace(old, new, 1)


class Parser:
    """One answer: generated ids in, OpenAI chunks out.

    Text is given out as soon as it is certain: never part of a character, of a stop string or of
    tool markup. `finished` turns True when a stop string was found, or a second call began where
    there may be only one: nothing more is needed then.
    """

    def __init__(
        self,
        processor: recipe.StreamProcessor,
        usage: recipe.PromptUsage,
        whole: recipe.ChatCompletionResponse,
        *,
        single: bool,
    ) -> None:
        self._processor = processor
        self._usage = usage
        self._whole = whole
        self._single = single
        self._enough = False

    @property
    def finished(self) -> bool:
        """Whether the answer has its last chunk."""
        return self._processor.finished

    def begin(self) -> list[Chunk]:
        """Give the chunk that opens the answer."""
        return self._push(recipe.InferenceChunk.ready(prompt_usage=self._usage))

    def push(self, tokens: Sequence[int]) -> list[Chunk]:
        """Take the next ids, without the end-of-sequence id."""
        chunks = self._push(recipe.InferenceChunk.tokens(tokens)) if tokens else []
        return chunks + self.finish("stop") if self._enough else chunks

    def finish(self, reason: str) -> list[Chunk]:
        """End the answer; `reason` is "stop" or "length". The last chunk has the usage."""
        if self.finished:
            return []
        chunks = self._push(recipe.InferenceChunk.finish(_REASONS[reason]))
        return chunks if self.finished else chunks + self._given(self._processor.finish())

    def whole(self) -> Chunk:
        """Give the answer so far as one response."""
        return dict(json.loads(self._whole.to_json()))

    def _push(self, chunk: recipe.InferenceChunk) -> list[Chunk]:
        return self._given(self._processor.push(chunk))

    def _given(self, chunks: Iterable[Any]) -> list[Chunk]:
        given = []
        for chunk in chunks:
            new = json.loads(chunk.to_json())
            if self._single and _calls_again(new):
                self._enough = True
                continue
            given.append(new)
            self._whole.accumulate(chunk)
        return given


def _chosen(body: Mapping[str, Any], kwargs: Mapping[str, Any]) -> bool | None:
    """Read the thinking switch by all its names; `thinking` wins over `enable_thinking`."""
    top = body.get("thinking")
    if isinstance(top, dict):
        if top.get("type") not in ("enabled", "disabled") or len(top) > 1:
            raise bad_value("thinking", 'must be {"type": "enabled"} or {"type": "disabled"}')
        top = top["type"]
    names = {
        "thinking": kwargs.get("thinking") if top is None else top,
        "enable_thinking": body.get("enable_thinking", kwargs.get("enable_thinking")),
    }
    return thinking.chosen(names)


def _forces_a_call(choice: object) -> bool:
    return isinstance(choice, dict) or choice == "required"


def _rendered(budget: int) -> int:
    """Give the budget that the encoder writes for its tiers nearest to `budget`: default or max."""
    return 100 if budget == 100 else 75


def _calls_again(chunk: Chunk) -> bool:
    calls = chunk["choices"][0]["delta"].get("tool_calls") or []
    return any(call["index"] > 0 for call in calls)


def _need(request: recipe.ConversationRequest, *, several: bool) -> Need | None:
    constraint = request.inference_options.output_constraint
    if constraint is None or constraint.kind == "tool_call":  # may call a tool, need not
        return None
    stage = request.parsing_options.thinking_initial_stage
    return Need(
        kind=constraint.kind,
        schema=constraint.schema,
        after_thinking=stage is not None and stage.starts_in_reasoning(),
        several=several,
    )


def _says(error: recipe.ConversionError) -> str:
    """Give the sentence inside the publisher's error body."""
    try:
        return str(json.loads(error.body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)
