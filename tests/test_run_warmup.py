"""Prose or not, and the stages that a rank's log shows."""

from __future__ import annotations

import pytest

from dsv41 import questions
from dsv41.run import timeline, warmup


@pytest.mark.parametrize("text", sorted({q.content for q in questions.FITTED if q.content}))
def test_answers_of_a_working_model_are_prose(text: str) -> None:
    assert warmup.fault(text) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no text"),
        (" \n", "no text"),
        ("Hello 世界", "another script"),
        ("안녕", "another script"),
        ("\ufffd\ufffd\ufffda", "mostly no letters"),
        ("!!!!!!!!!!!!", "over and over"),
    ],
)
def test_garbage_is_named(text: str, says: str) -> None:
    assert says in warmup.fault(text)


def test_a_track_shows_the_last_stage_and_starts_over() -> None:
    track = timeline.Track(name="spark1", rank=0, engine="local")
    assert "no stage yet" in track.says
    track.hear("rank 0: loaded rows and weights in 0.7 s")
    assert "weights" in track.says
    track.hear("rank 0: ready at http://0.0.0.0:8888")
    assert "ready" in track.says
    track.hear("rank 0: loaded rows and weights in 0.7 s")
    assert "weights" in track.says
    assert track.last_line == "rank 0: loaded rows and weights in 0.7 s"
