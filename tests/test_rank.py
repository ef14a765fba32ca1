"""Rank processes: their command line, their start, and every way in which they end."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from dsv41.errors import EngineFailed, Error, UsageError
from dsv41.geometry import DEFAULT_PARTITION
from dsv41.local import rank
from rank_processes import Ranks, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    Start = Callable[..., AbstractContextManager[Ranks]]

pytestmark = pytest.mark.slow

NOTICED = 10.0  # seconds from the death of a rank to the error of a request
SUM = {"model": "dsv41-fixture", "messages": [{"role": "user", "content": "What is 19 + 23?"}]}
# an answer without end; rank_processes turns off the guard that would stop it
LONG = {
    "model": "dsv41-fixture",
    "messages": [{"role": "user", "content": "Repeat the word loop forever."}],
    "max_tokens": 4000,
    "chat_template_kwargs": {"thinking": False},
}


@pytest.fixture
def start(checkpoint: Path, rows_dir: Path, tmp_path: Path) -> Start:
    def make(world: int, *more: str) -> AbstractContextManager[Ranks]:
        return running(world, *more, checkpoint=checkpoint, rows=rows_dir, folder=tmp_path)

    return make


class Client(threading.Thread):
    """A streamed request in a thread: its first chunk, its error and when that came."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(daemon=True)
        self.endpoint = ranks.endpoint
        self.began = threading.Event()
        self.error: Error | None = None
        self.ended = 0.0
        self.start()
        assert self.began.wait(60)

    def run(self) -> None:
        try:
            for chunk in self.endpoint.stream(**LONG):
                if any(choice["delta"] for choice in chunk["choices"]):
                    self.began.set()
        except Error as error:
            self.error = error
        self.ended = time.monotonic()


def answer(ranks: Ranks, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = ranks.endpoint.chat(**SUM, **more)["choices"][0]["message"]
    return message


def test_three_ranks_start_answer_and_stop_when_one_is_asked_to(start: Start) -> None:
    with start(3) as ranks:
        assert answer(ranks)["content"] == "42"
        ranks.signal(signal.SIGINT, 1)
        assert ranks.statuses(timeout=10) == [0, 0, 0]
        assert "another rank was asked to stop" in ranks.log(0)
        assert f"ready at http://127.0.0.1:{ranks.port}" in ranks.log(0)
        for number in range(3):
            lines = ranks.log(number).splitlines()
            assert lines
            assert all(line.startswith(f"rank {number}: ") for line in lines)
            for layer in (1, 2):  # the row stores said what they had done
                assert f"engram layer={layer} rank={number} of 3: rows=" in ranks.log(number)


def test_one_rank_ends_a_running_request_at_a_stop(start: Start) -> None:
    with start(1) as ranks:
        assert answer(ranks)["content"] == "42"
        client = Client(ranks)
        stopped = time.monotonic()
        ranks.signal(signal.SIGTERM)
        time.sleep(0.5)
        with pytest.raises(Error):
            answer(ranks)
        assert ranks.statuses(timeout=8) == [0]
        client.join(2)
        assert client.error is not None
        assert client.ended - stopped < 6


def test_a_killed_follower_fails_the_request(start: Start) -> None:
    with start(3) as ranks:
        client = Client(ranks)
        killed = time.monotonic()
        ranks.signal(signal.SIGKILL, 1)
        seen = health_after(ranks, seconds=NOTICED)
        client.join(NOTICED)
        assert isinstance(client.error, EngineFailed)
        assert client.ended - killed < NOTICED
        assert seen == 503
        assert ranks.statuses(0, 2, timeout=NOTICED) == [4, 4]
        assert "engine failed" in ranks.log(0)


def health_after(ranks: Ranks, *, seconds: float) -> int | None:
    """The first answer of /health that is not 200."""
    until = time.monotonic() + seconds
    while (status := ranks.endpoint.status("/health")) == 200 and time.monotonic() < until:
        time.sleep(0.02)
    return status


def test_a_killed_head_ends_the_followers(start: Start) -> None:
    with start(2) as ranks:
        client = Client(ranks)
        ranks.signal(signal.SIGKILL, 0)
        client.join(NOTICED)
        assert client.error is not None
        assert ranks.statuses(1, timeout=NOTICED) == [4]
        assert ranks.endpoint.status("/health") is None


def test_a_stopped_follower_is_noticed_when_idle(start: Start) -> None:
    with start(2, "--peer-timeout", "4") as ranks:
        stopped = time.monotonic()
        ranks.signal(signal.SIGSTOP, 1)
        assert health_after(ranks, seconds=NOTICED) == 503
        assert time.monotonic() - stopped < 4 + 1 + 3  # timeout, beat, slack on a busy machine
        with pytest.raises(EngineFailed):
            answer(ranks)
        assert ranks.statuses(0, timeout=NOTICED) == [4]


def test_wrong_rows_are_refused_before_the_ranks_meet(
    checkpoint: Path, rows_dir: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "rows"
    wrong.mkdir()
    for layer in (1, 2):
        name = f"engram-l{layer}-r{{}}of3-{DEFAULT_PARTITION}.rows"
        shutil.copy(rows_dir / name.format(2), wrong / name.format(1))
    ranks = Ranks(3, checkpoint=checkpoint, rows=wrong, folder=tmp_path)
    try:
        assert ranks.start(1).wait(60) == 1
        assert "rank 1: D021 " in ranks.log(1)
    finally:
        ranks.kill()


def test_a_stop_while_waiting_for_the_others_is_quick(
    checkpoint: Path, rows_dir: Path, tmp_path: Path
) -> None:
    ranks = Ranks(2, checkpoint=checkpoint, rows=rows_dir, folder=tmp_path)
    try:
        waiting = ranks.start(1)
        while "loaded rows and weights" not in ranks.log(1):
            assert waiting.poll() is None, ranks.log(1)
            time.sleep(0.05)
        ranks.signal(signal.SIGTERM, 1)
        assert ranks.statuses(1, timeout=3) == [0]
    finally:
        ranks.kill()


def test_a_taken_port_is_refused(checkpoint: Path, rows_dir: Path, tmp_path: Path) -> None:
    ranks = Ranks(1, checkpoint=checkpoint, rows=rows_dir, folder=tmp_path)
    try:
        with socket.create_server(("127.0.0.1", ranks.port)):
            assert ranks.start(0).wait(60) == 2
        assert f"rank 0: D058 127.0.0.1:{ranks.port} cannot be served at" in ranks.log(0)
    finally:
        ranks.kill()


GOOD = (
    "--rank 0 --world 3 --master 127.0.0.1:2 --checkpoint c --rows r "
    "--partition weighted --serve 127.0.0.1:8888"
)


def test_the_command_line_of_a_plan_is_understood() -> None:
    options = rank.parse(
        f"{GOOD} --layout balanced --row-engine auto --slots 4 --context 99 --peer-timeout 8 "
        "--api-key-file k --parent 7".split()
    )
    assert (options.rank, options.world, options.slots, options.context) == (0, 3, 4, 99)
    assert (options.layout, options.peer_timeout, options.parent) == ("balanced", 8.0, 7)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--rank 3", r"--rank is 3; it must lie in 0\.\.2"),
        ("--world 0", "--world is 0; it must be at least 1"),
        ("--slots 63", r"--slots is 63; it must lie in 1\.\.62"),
        ("--slots x", "argument --slots: invalid int value"),
        ("--context 0", "--context must be above 0"),
        ("--peer-timeout nan", "--peer-timeout must be above 0"),
        ("--partition best", "argument --partition: invalid choice"),
        ("--layout best", "argument --layout: invalid choice"),
        ("--rank 1", "--serve and --api-key-file belong to rank 0"),
        ("--part weighted", "unrecognized arguments: --part"),
        ("extra", "unrecognized arguments: extra"),
    ],
)
def test_a_wrong_command_line_is_refused(more: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"D050 {says}"):
        rank.parse([*GOOD.split(), *more.split()])


def test_rank_0_serves() -> None:
    with pytest.raises(UsageError, match="rank 0 needs --serve"):
        rank.parse(GOOD.split()[:-2])
