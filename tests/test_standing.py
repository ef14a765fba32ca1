"""`status` in words: the last line that tells something, and a stopped service once."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from dsv41 import run
from dsv41.cli import crews, lines, main, standing
from dsv41.errors import Unreachable

COUNTS = (
    "engram layer=14 rank=1 of 3: rows=9 unique=9 foreign=0 cache_hits=0 reads=9 crc_failures=0 "
    "io_errors=0 in 60 s; lookup p50=0.01 ms p99=0.02 ms since start; engine=io_uring"
)


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["rank 1: all ranks are connected", f"rank 1: {COUNTS}", ""], "all ranks are connected"),
        (
            ["INFO 10:00:00 the engine is ready", f"INFO {COUNTS}"],
            "INFO 10:00:00 the engine is ready",
        ),
        ([COUNTS], ""),
        ([], ""),
        (["rank 0: rank 2: is lost"], "rank 2: is lost"),
    ],
)
def test_statistics_hide_no_line(lines: list[str], shown: str) -> None:
    assert standing.last_said(lines) == shown


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (("stopped", "http://x/v1", "stopped"), "stopped"),
        (("stopped", None, "nothing was started"), "stopped  nothing was started"),
        (("serving", "http://x/v1", ""), "serving  http://x/v1"),
        (("failed", "http://x/v1", "rank 1 ended"), "failed  http://x/v1  rank 1 ended"),
        (("unknown", None, "the head cannot be asked"), "unknown  the head cannot be asked"),
    ],
)
def test_the_first_line(found: tuple[str, str | None, str], shown: str) -> None:
    assert standing.headline(dict(zip(("status", "url", "says"), found, strict=True))) == shown


def test_a_service_that_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = run.RunDir.of(tmp_path)
    state.path.mkdir()
    assert main(["plan", "--state-dir", str(tmp_path), "--json"]) == 0
    state.plan_file.write_text(capsys.readouterr().out)
    state.ended_file.write_text(json.dumps({"exit": 0, "says": "stopped"}))
    state.log_file(1).write_text(f"rank 1: all ranks are connected\nrank 1: {COUNTS}\n")
    assert main(["status", "--state-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "stopped",
        "rank 0  head    down",
        "rank 1  worker  down  all ranks are connected",
        "rank 2  worker  down",
    ]


def test_ranks_of_a_fleet_are_asked_for_more_where_they_only_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def ends(_crew: object, ranks: list[int], **_: int) -> dict[int, list[str]]:
        asked.extend(ranks)
        return {rank: ["rank 0: round 2 runs", COUNTS] for rank in ranks}

    monkeypatch.setattr(lines, "ends", ends)
    gone = Unreachable("D068", "spark2 cannot be reached.")
    looks: dict[int, Any] = {0: {"last_line": COUNTS}, 1: gone, 2: {"last_line": "rank 2: waits"}}
    crews.last_lines(MagicMock(), looks)
    assert asked == [0]
    assert looks == {0: {"last_line": "round 2 runs"}, 1: gone, 2: {"last_line": "waits"}}
