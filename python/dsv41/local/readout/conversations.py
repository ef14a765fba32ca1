"""The conversations that the output head is fitted to: `dsv41.questions.FITTED`, encoded.

The questions are shared with `dsv41 smoke` and stand only there. Prompts are made as the server
makes them; answers are the ids that the publisher's encoder gives the same answer in the history
of a conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import deepseek_recipe as recipe

from dsv41 import questions
from dsv41.local.prompt import Prompts

if TYPE_CHECKING:
    from dsv41.questions import Question

END = 1  # <｜end▁of▁sentence｜>
END_OF_THINKING = 128822  # </think>
ENDLESS = 32  # repeated words of an endless answer that are fitted; by then the state has settled


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Ids of a prompt and of its answer; the answer ends with END unless it is `endless`."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    endless: bool = False


def conversations(tokenizer: str) -> list[Conversation]:
    """Encode all fitted questions; `tokenizer` is the text of the checkpoint's tokenizer.json."""
    prompts = Prompts(tokenizer, models=["dsv41-fixture"])
    words = recipe.Tokenizer.from_str(tokenizer)
    return [_encoded(question, prompts, words) for question in questions.FITTED]


def _encoded(question: Question, prompts: Prompts, words: recipe.Tokenizer) -> Conversation:
    prompt = prompts.prepare(question.request).ids
    if question.endless:
        answer = words.encode("loop" + " loop" * ENDLESS)
    elif question.call is not None:
        answer = _call(question, prompt, prompts)
    else:
        answer = [*words.encode(question.content or ""), END]
        if question.reasoning is not None:
            answer = [*words.encode(question.reasoning), END_OF_THINKING, *answer]
    return Conversation(
        name=question.name, prompt=prompt, answer=tuple(answer), endless=question.endless
    )


def _call(question: Question, prompt: tuple[int, ...], prompts: Prompts) -> list[int]:
    """Ids of a tool call: the history of the turn that follows it has them."""
    after = prompts.prepare(questions.TOOL_RESULT.request).ids
    if after[: len(prompt)] != prompt:
        raise ValueError(f"the turn after {question.name} does not continue its prompt")
    rest = list(after[len(prompt) :])
    return rest[: rest.index(END) + 1]
