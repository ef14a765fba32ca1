"""The text of token ids, from a byte-level tokenizer.json.

One table of byte strings instead of a second tokenizer in memory: the loop stop only has to read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Detokenizer:
    """Spells ids; those that do not exist are spelled as nothing."""

    def __init__(self, tokenizer: str) -> None:
        """Read `tokenizer`, the text of a tokenizer.json with a byte-level vocabulary."""
        table = json.loads(tokenizer)
        self._pieces: dict[int, str] = {token: p for p, token in table["model"]["vocab"].items()}
        self._byte_of = _bytes_by_character()
        # filled as ids come up: to spell all 129,280 at once takes a second
        self._bytes: dict[int, bytes] = {
            added["id"]: added["content"].encode() for added in table["added_tokens"]
        }

    def __call__(self, tokens: Iterable[int]) -> str:
        """Spell tokens, special ones as they are written; a cut character becomes U+FFFD."""
        return b"".join(map(self._spell, tokens)).decode(errors="replace")

    def _spell(self, token: int) -> bytes:
        spelled = self._bytes.get(token)
        if spelled is None:
            piece = self._pieces.get(token, "")
            spelled = bytes(self._byte_of[character] for character in piece)
            self._bytes[token] = spelled
        return spelled


def _bytes_by_character() -> dict[str, int]:
    """Which byte a character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, the others are numbered from U+0100 on, in order: the
    table of the first byte-level BPE (openai/gpt-2), which `tokenizers` calls ByteLevel.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    numbered = {chr(0x100 + number): byte for number, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | numbered
