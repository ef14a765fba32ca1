"""The light detokenizer spells every id as the real tokenizer does."""

from __future__ import annotations

import random

from dsv41.guards.loop import LoopConfig, LoopDetector
from dsv41.local.http.detokenize import Detokenizer
from tokenizing import text, tokenizer


def test_same_as_the_tokenizer() -> None:
    real, light = tokenizer(), Detokenizer(text())
    words = "Grüße, 漢字 and 😀👩‍🚀!\n\tdef f(x):\n    return x**2  # ünï\x00\x7f\u00a0\u00ad"
    assert light(real.encode(words, add_special_tokens=False).ids) == words
    rng = random.Random(1)
    for _ in range(300):
        ids = [rng.randrange(3, 128000) for _ in range(rng.randint(1, 12))]
        assert light(ids) == real.decode(ids, skip_special_tokens=False)
    for special in (0, 1, 2, 128799, 128803, 128804, 128821, 128822, 128825, 129264):
        assert light([special]) == real.decode([special], skip_special_tokens=False)
    assert light([129279, 10**6, -1]) == light([129279])


def test_line_rule_of_the_loop_stop_on_real_tokens() -> None:
    real, light = tokenizer(), Detokenizer(text())
    line = "Let me check the file once more: 漢字.\n"
    ids = real.encode("Start.\n" + line * 8, add_special_tokens=False).ids
    detector = LoopDetector(LoopConfig(ngram=0), light)
    found = [detector.push([token]) for token in ids]
    assert found.index(next(keep for keep in found if keep)) >= len(ids) - 2
    assert detector.kind == "line"
