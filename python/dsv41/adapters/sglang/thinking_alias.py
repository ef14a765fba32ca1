"""`enable_thinking` means `thinking`.

What: in the `chat_template_kwargs` of a request the two names are made to say the same before
SGLang reads them: for the prompt, and for telling the reasoning from the answer. `thinking` wins
where a client sends both. A null counts as not sent, "false" and "0" as off.

Why: clients send `enable_thinking`, the habit of other models; for V4.1 SGLang reads `thinking`
only, so their switch has no effect and answers think at length.

Effect: not measured; the switch of such clients works.

Off: DSV41_THINKING_ALIAS=0.

Obsolete when: SGLang reads both names for the encodings dsv4 and dsv41.

SGLang itself adds a `thinking` to a request that names an effort (on, or off for "none"). Where
that contradicts the client's own `enable_thinking`, the client's word counts. A server's default
(`--default-chat-template-kwargs`) that names one of the two counts for both, where a request names
neither: the prompt and the parser of the answer must agree.
"""

from __future__ import annotations

import logging
from typing import Any

from dsv41.adapters.adapter import Adapter, Hook
from dsv41.guards import thinking

log = logging.getLogger(__name__)
CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
NAMES = ("thinking", "enable_thinking")


def said(kwargs: dict[str, object], effort: object) -> dict[str, object]:
    """Drop what the client did not say: nulls, and the `thinking` that SGLang took from the effort.

    `effort` is the request's `reasoning_effort`, None when it names none.
    """
    sent = {name: value for name, value in kwargs.items() if name not in NAMES or value is not None}
    taken = thinking.disagree(sent) and effort is not None
    if taken and sent["thinking"] is (effort != "none"):
        del sent["thinking"]
    return sent


def _make_one(_: object, request: Any, *__: object, **___: object) -> None:
    kwargs = request.chat_template_kwargs
    if not kwargs:
        return
    sent = said(kwargs, getattr(request, "reasoning_effort", None))
    if thinking.disagree(sent):
        log.warning("a request says both %s; thinking wins", {name: sent[name] for name in NAMES})
    request.chat_template_kwargs = thinking.alias(sent)


ADAPTER = Adapter(
    name="thinking_alias",
    switch="thinking_alias",
    engines=("sglang",),
    trees=("sglang-0.5.23", "sglang-branch", "sglang-base"),
    hooks=(
        Hook(
            target=f"{CHAT}._process_messages",
            kind="before",
            call=_make_one,
            takes=("request",),
        ),
        Hook(
            target=f"{CHAT}._get_reasoning_from_request",
            kind="before",
            call=_make_one,
            takes=("request",),
        ),
    ),
)
