"""Text that spells the image placeholder is text.

What: the literal placeholder in a message's text or reasoning becomes `[image]` before the chat
encoder of SGLang 0.5.21 and its relatives sees it. Real images are blocks of their own and stay.

Why: that encoder raises ValueError for such text; the conversation then fails on every further
turn, because its history holds the text (`patch_encoding_dsv41` of the recipe).

Effect: not measured; such a conversation goes on.

Off: DSV41_IMAGE_TEXT=0.

Obsolete when: the tree encodes with the publisher's deepseek-recipe package, as 0.5.23 does; there
the switch changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from dsv41.adapters.adapter import Adapter, Hook
from dsv41.errors import CheckFailed
from dsv41.guards.image_text import harmless

log = logging.getLogger(__name__)
ENCODER = "sglang.srt.entrypoints.openai.encoding_dsv41"
PACKAGE = "sglang.srt.parser.deepseek_recipe_renderer"


def _clean(messages: Sequence[Mapping[str, object]], *args: Any, **kwargs: Any) -> Any:
    cleaned, found = harmless(messages)
    if not found:
        return None
    log.warning("an image placeholder in the text of a request was made harmless (%d times)", found)
    return (cleaned, *args), kwargs


def _check(_: Mapping[str, str]) -> None:
    if find_spec(ENCODER) is None and find_spec(PACKAGE) is None:
        raise CheckFailed(
            "D140",
            f"adapter image_text: expected the chat encoder {ENCODER} or {PACKAGE}, found neither.",
            fix="use the image that the Plan names, or turn the adapter off: DSV41_IMAGE_TEXT=0",
        )


ADAPTER = Adapter(
    name="image_text",
    switch="image_text",
    engines=("sglang",),
    trees=("sglang-branch", "sglang-base"),
    hooks=(
        Hook(
            target=f"{ENCODER}.encode_messages",
            kind="before",
            call=_clean,
            takes=("messages",),
            optional=True,  # gone from the trees that have the package, which need nothing
        ),
    ),
    check=_check,
)
