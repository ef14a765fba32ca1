"""Text that spells the image placeholder is text, not an image.

A conversation that quotes the literal placeholder (a bug report about it, for example) makes an
encoder look for an image that is not there: HTTP 500 or 400 on every further turn. The recipe's
sanitizer replaces it with `[image]`; so do we.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# \uff5c is the full-width bar with which the tokenizer spells its special tokens.
PLACEHOLDER = "<\uff5cdeepseek_image\uff5c>"
HARMLESS = "[image]"
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")


def harmless(
    messages: Sequence[Mapping[str, object]], *, placeholder: str = PLACEHOLDER
) -> tuple[list[dict[str, object]], int]:
    """Copy messages so that no text spells `placeholder`, and count how often it did.

    Looks at string content, at text blocks of list content, at reasoning, and at everything in tool
    calls, whose arguments come back in later turns; the given messages are not changed. A second
    pass finds nothing.
    """
    found = 0

    def clean_all(value: object) -> object:
        if isinstance(value, dict):
            return {key: clean_all(one) for key, one in value.items()}
        return [clean_all(one) for one in value] if isinstance(value, list) else clean(value)

    def clean(value: object) -> object:
        nonlocal found
        if isinstance(value, str):
            found += value.count(placeholder)
            return value.replace(placeholder, HARMLESS)
        if isinstance(value, list):
            return [clean_block(block) for block in value]
        return value

    def clean_block(block: object) -> object:
        if isinstance(block, str):
            return clean(block)
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            return {**block, "text": clean(block["text"])}
        return block

    cleaners = {**dict.fromkeys(_TEXT_FIELDS, clean), "tool_calls": clean_all}
    cleaned = [
        {key: cleaners[key](value) if key in cleaners else value for key, value in message.items()}
        for message in messages
    ]
    return cleaned, found
