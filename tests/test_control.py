"""Ranks as processes with a real control connection: what ends a round, and what must not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv41 import fleet as fleets
from dsv41 import host, plan, profile
from dsv41.api import Endpoint
from dsv41.local.fixture.prepare import prepare
from dsv41.run import node, wire

HERE = Path(__file__).parent
SIZE = 3


class Fleet:
    """Three ranks on loopback; each a process of `rounds_rank.py` with an engine below it."""

    def __init__(self, folder: Path, **times: float) -> None:
        self.folder = folder
        self.port = host.free_port("127.0.0.1", 21000 + os.getpid() % 9000)
        self.control = host.free_port("127.0.0.1", self.port + 1)
        self.times = [f"{name}={value}" for name, value in times.items()]
        self.key = folder / "key"
        self.key.touch(mode=0o600)
        self.key.write_text(wire.new_key())
        self.plan = self.make()
        self.file = self.write(self.plan, "plan.json")
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}

    def make(self, **values: Any) -> plan.Plan:
        argv = (sys.executable, str(HERE / "rounds_engine.py"))
        ranks = tuple(
            plan.Rank(
                rank=rank,
                node=f"n{rank}",
                role="worker" if rank else "head",
                image=None,
                container=None,
                argv=(*argv, str(rank), str(self.port), str(self.folder)),
                env={},
                mounts=(),
                options=(),
                ledger=(),
                fingerprint="f" * 16,
            )
            for rank in range(SIZE)
        )
        made = plan.Plan(
            profile="local",
            engine="local",
            url=f"http://127.0.0.1:{self.port}/v1",
            state_dir=str(self.folder / "state"),
            api_key_file=None,
            ranks=ranks,
            steps=(),
            omitted=(),
            control=f"127.0.0.1:{self.control}",
        )
        return replace(made, **values)

    def write(self, whole: plan.Plan, name: str) -> Path:
        path = self.folder / name
        path.write_text(whole.to_json())
        return path

    def start(self, *ranks: int, file: Path | None = None, key: Path | None = None) -> None:
        for rank in ranks:
            argv = [sys.executable, str(HERE / "rounds_rank.py"), str(file or self.file)]
            argv += [str(rank), str(key or self.key), *self.times]
            with self.log(rank).open("ab") as log:
                self.ranks[rank] = subprocess.Popen(argv, stdout=log, stderr=log)

    def log(self, rank: int) -> Path:
        return self.folder / f"log{rank}"

    def look(self, rank: int) -> dict[str, Any]:
        return node.look(self.plan, rank)

    def wait(self, true: Callable[[], bool], *, seconds: float = 90) -> None:
        if not host.wait_until(true, seconds=seconds, every=0.02):
            texts = "\n".join(f"{r}: {self.log(r).read_text()[-1500:]}" for r in self.ranks)
            looks = [self.look(r) for r in range(SIZE)]
            pytest.fail(f"{json.dumps(looks, indent=1)}\n{texts}")

    def wait_running(self, number: int) -> None:
        """All ranks run their engine in this round."""
        self.wait(lambda: all(self.in_round(rank, number) for rank in range(SIZE)))

    def in_round(self, rank: int, number: int) -> bool:
        found = self.look(rank)
        return bool(found["state"] == "running" and found["round"] == number)

    def tell(self, rank: int, text: str) -> None:
        part = self.folder / f".tell-{rank}"
        part.write_text(text)
        part.rename(self.folder / f"tell-{rank}")

    def end(self) -> None:
        for process in self.ranks.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.ranks.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.end()


def test_ranks_run_together_and_come_back_together(fleet: Fleet) -> None:
    """An engine that ends, a rank killed, rank 0 killed, a rank that stands still, strangers."""
    fleet.start(1, 2, 0)
    fleet.wait_running(1)

    fleet.tell(1, "exit 7\nlast words")
    fleet.wait_running(2)
    assert "D427 The engine ended with exit status 7; its last line" in fleet.log(1).read_text()

    fleet.ranks[2].kill()
    fleet.ranks[2].wait()
    fleet.wait(lambda: fleet.look(0)["state"] == "waiting")
    assert fleet.look(2)["says"] == "It was killed."
    fleet.start(2)
    fleet.wait_running(3)

    silent = [socket.create_connection(("127.0.0.1", fleet.control)) for _ in range(40)]
    for at, stranger in enumerate(silent[:20]):
        with contextlib.suppress(OSError):
            stranger.sendall(b"x" * 10_000 if at % 2 else b'{"hello": {}, "proof": ""}\n')
    fleet.ranks[0].kill()  # the service ends; the others must not obey who takes its place
    fleet.ranks[0].wait()
    fleet.wait(lambda: all(fleet.look(rank)["state"] == "waiting" for rank in (1, 2)))
    for stranger in silent:
        stranger.close()
    fleet.start(0)
    fleet.wait_running(4)

    fleet.ranks[1].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    fleet.wait(lambda: fleet.look(2)["state"] == "waiting")
    assert 4 < time.monotonic() - began < 30  # without a beat for 5 s
    fleet.ranks[1].send_signal(signal.SIGCONT)
    fleet.wait_running(5)

    fleet.ranks[2].terminate()
    assert fleet.ranks[2].wait(60) == 0
    fleet.wait(lambda: "stopped on purpose" in fleet.look(1)["says"])
    assert fleet.look(2)["state"] == "stopped"


def test_strangers_are_dropped_and_disturb_nobody(fleet: Fleet) -> None:
    fleet.start(0, 1, 2)
    fleet.wait_running(1)
    silent = [socket.create_connection(("127.0.0.1", fleet.control)) for _ in range(40)]
    for at, stranger in enumerate(silent[:30]):
        with contextlib.suppress(OSError):
            stranger.sendall((b"x" * 10_000, b"{}\n", b"[" * 3000 + b"\n")[at % 3])
    for stranger in silent:
        stranger.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):  # its greeting, then the end
                pass
        stranger.close()
    assert all(fleet.in_round(rank, 1) for rank in range(SIZE))
    assert fleet.log(0).read_text().count("was dropped") == 1


def test_who_differs_or_has_another_key_stays_out(fleet: Fleet) -> None:
    other = fleet.write(fleet.make(state_dir=str(fleet.folder / "other")), "other.json")
    wrong = fleet.folder / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text(wire.new_key())
    fleet.start(0)
    fleet.start(1, file=other)
    fleet.start(2, key=wrong)
    assert fleet.ranks[1].wait(90) == 5
    said = fleet.log(1).read_text()
    assert "D422 Rank 0 refuses rank 1: its Plan is sha256:" in said
    assert fleet.plan.digest in said
    fleet.wait(lambda: "control keys differ" in fleet.log(2).read_text())
    fleet.wait(lambda: "does not know the control key" in fleet.log(0).read_text())
    assert fleet.look(0)["state"] == "waiting"
    wrong.write_text(fleet.key.read_text())  # the right one is found without a start
    fleet.start(1)
    fleet.wait_running(1)


def test_a_head_that_differs_from_all_others_is_told_so(fleet: Fleet) -> None:
    other = fleet.write(fleet.make(state_dir=str(fleet.folder / "other")), "other.json")
    fleet.start(0)
    fleet.start(1, 2, file=other)
    assert [fleet.ranks[rank].wait(90) for rank in (1, 2)] == [5, 5]
    fleet.wait(lambda: "all other ranks are alike: it is rank 0" in fleet.log(0).read_text())


def test_what_a_start_does_not_mend_is_not_started_again(fleet: Fleet) -> None:
    fleet.start(0, 1, 2)
    fleet.wait_running(1)
    fleet.tell(2, "exit 1\nmlx5_core 0000:01:00.0: mlx5_pci_slot_reset was called")
    assert fleet.ranks[2].wait(90) == 5
    found = fleet.look(2)
    assert (found["state"], found["exit"], found["code"]) == ("ended", 5, "D428")
    assert "D333 The network card fell off PCIe" in found["says"]
    fleet.wait(lambda: "D333" in fleet.look(1)["says"])
    assert [fleet.look(rank)["state"] for rank in (0, 1)] == ["waiting", "waiting"]


METRICS = """\
# TYPE dsv41_generated_tokens_total counter
dsv41_generated_tokens_total 12.0
dsv41_prompt_tokens_total 30.0
dsv41_requests_running 1.0
dsv41_requests_queued 0.0
dsv41_steps_total {steps}
"""


def test_a_long_prefill_is_no_wedge_and_a_wedge_restarts_once(fleet: Fleet) -> None:
    metrics = fleet.folder / "metrics"
    fleet.start(0, 1, 2)
    fleet.wait_running(1)
    for steps in range(25):  # 1.2 s; the window is 0.4 s
        part = fleet.folder / ".metrics"
        part.write_text(METRICS.format(steps=float(steps)))
        part.rename(metrics)
        time.sleep(0.05)
    assert fleet.in_round(0, 1)
    fleet.wait(lambda: fleet.ranks[0].poll() is not None)
    assert [fleet.ranks[rank].wait(60) for rank in range(SIZE)] == [4, 4, 4]
    for rank in range(SIZE):
        found = fleet.look(rank)
        assert (found["state"], found["code"]) == ("ended", "D426")
        assert "wedged again" in found["says"]
    assert fleet.log(0).read_text().count("ends: D340") == 1


@pytest.mark.fleet
def test_the_local_engine_answers_again_after_a_worker_was_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The real engine below three ranks, one of which is killed together with its engine."""
    if "fleet" not in str(request.config.getoption("-m")):
        pytest.skip("26 s of both cores: make test-fleet")
    made = Fleet(tmp_path, lost=8.0, back_off=0.5, sample=1.0, window=40.0)
    chosen = profile.load("local").with_values("test", tp=SIZE)
    prepare(tmp_path / "state", tp=SIZE, partition=str(chosen["partition"]), say=lambda _: None)
    where = fleets.loopback(
        tp=SIZE, state_dir=str(tmp_path / "state"), port=made.port, master_port=made.control + 1
    )
    made.plan = replace(plan.plan(chosen, where, {}), control=f"127.0.0.1:{made.control}")
    made.file = made.write(made.plan, "plan.json")
    endpoint = Endpoint(url=made.plan.url)
    question = [{"role": "user", "content": "What is 19 + 23?"}]
    try:
        made.start(1, 2, 0)
        made.wait(lambda: made.in_round(0, 1), seconds=100)
        name = endpoint.models()[0]["id"]
        assert "42" in json.dumps(endpoint.chat(model=name, messages=question))
        made.ranks[1].kill()
        made.ranks[1].wait()
        made.wait(lambda: made.look(0)["state"] == "waiting", seconds=60)
        made.start(1)
        made.wait(lambda: made.in_round(0, 2), seconds=100)
        assert "42" in json.dumps(endpoint.chat(model=name, messages=question))
    finally:
        made.end()
