"""Reading ahead where something is short: no room in a step, and rows that cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aheadfix import runner, step
from dsv41.adapters.chunks import SLOTS, Chunks, Layer
from dsv41.adapters.vllm import engram_ahead
from dsv41.rows.structs import Work
from rowsfix import SMALL

CORRUPT = 6  # DSV41_ROWS_CORRUPT of csrc/include/dsv41_rows.h


class Reader:
    """Rows of one layer, read at once; `corrupt` ones are not, as outside production."""

    def __init__(self) -> None:
        self.store = SimpleNamespace(open_handle=lambda: 0)
        self.corrupt = False

    def call(self, name: str, work: Work) -> None:
        if name == "wait" and self.corrupt:
            work.status = CORRUPT
        elif name == "wait":
            work.status, work.generation = 0, work.generation + 1


def of_readers(*readers: Any) -> Chunks:
    return Chunks(
        layers=[
            Layer(reader=reader, layer_id=layer, columns=range(6))
            for reader, layer in zip(readers, SMALL.layer_ids, strict=True)
        ],
        engram=SMALL,
        token_map=np.arange(SMALL.compressed_vocab),
        dead=[],
        tokens=16,
    )


def test_a_prompt_for_which_a_step_has_no_room_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = list(range(30)), list(range(30, 60))
    monkeypatch.setattr(engram_ahead, "_prompts", {"first": first, "second": second})
    both = step({"first": 8, "second": 8}, {}, set())
    # the first one's next chunk takes all sixteen
    found = list(engram_ahead.next_step(runner(("first", 0, 30), ("second", 0, 30)), both, 16))
    assert found == [(first, 8, 16)]
    assert engram_ahead._prompts == {"first": first, "second": second}
    rest = step({"first": 16, "second": 0}, {}, set())
    found = list(engram_ahead.next_step(runner(("first", 8, 30), ("second", 8, 30)), rest, 16))
    assert found == [(first, 24, 6), (second, 8, 10)]
    last = step({"first": 6, "second": 10}, {}, set())
    found = list(engram_ahead.next_step(runner(("first", 24, 30), ("second", 8, 30)), last, 16))
    assert found == [(second, 18, 12)]
    assert engram_ahead._prompts == {"second": second}


def test_a_failed_read_gives_its_slot_back() -> None:
    good, bad = Reader(), Reader()
    chunks, bad.corrupt = of_readers(good, bad), True
    prompt = list(range(16))
    for _ in range(2 * SLOTS):
        chunks.name([(prompt, 0, 16)])
        chunks.begin()
        chunks.join()
    chunks.name([(prompt, 0, 16)])
    assert (chunks.counts.begun, chunks.counts.busy) == (2 * SLOTS, 0)
    assert chunks.counts.failed == 2 * SLOTS
    bad.corrupt = False
    for _ in range(2 * SLOTS):  # what is read well again counts as that
        chunks.begin()
        assert any(part.busy() for part in chunks.running)
        chunks.join()
        chunks.name([(prompt, 0, 16)])
    assert (chunks.counts.begun, chunks.counts.busy) == (4 * SLOTS, 0)
    assert chunks.counts.failed == 2 * SLOTS
