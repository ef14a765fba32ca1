"""The text of token ids, from a byte-level tokenizer.json.

One table of byte strings instead of a second tokenizer in memory: the loop stop only has to read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Detokenizer:
    """Spells ids; the bytes of ids that do not exist are empty."""

    def __init__(self, tokenizer: str) -> None:
        """Read `tokenizer`, the text of a tokenizer.json with a byte-level vocabulary."""
        table = json.loads(tokenizer)
        byte_of = _bytes_by_character()
        self._bytes: dict[int, bytes] = {
            token: bytes(byte_of[character] for character in piece)
            for piece, token in table["model"]["vocab"].items()
            if all(character in byte_of for character in piece)
        }
        self._bytes |= {added["id"]: added["content"].encode() for added in table["added_tokens"]}

    def __call__(self, tokens: Iterable[int]) -> str:
        """Spell tokens, special ones as they are written; a cut character becomes U+FFFD."""
        spelled = b"".join(self._bytes.get(token, b"") for token in tokens)
        return spelled.decode(errors="replace")


def _bytes_by_character() -> dict[str, int]:
    """Which byte a character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, the others are numbered from U+0100 on, in order: the
    table of the first byte-level BPE (openai/gpt-2), which `tokenizers` calls ByteLevel.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    numbered = {chr(0x100 + number): byte for number, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | numbered
