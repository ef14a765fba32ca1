"""Start, stop and look at a rank from outside, by the archive that the nodes get."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv41 import foreground, host, plan, zipped
from dsv41.run import RunDir, fleet
from dsv41.run.node import STOP_PATIENCE, look
from planned import planned

HERE = Path(__file__).parent


class Node:
    """One machine with a Plan of one rank, as a small program, and the archive of the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.archive = folder / "dsv41.pyz"
        self.archive.write_bytes(zipped.program())
        port = host.free_port("127.0.0.1", 31000 + os.getpid() % 9000)
        argv = (sys.executable, str(HERE / "rounds_engine.py"), "0", str(port), str(folder))
        made = planned("tp3")
        rank = replace(
            made.ranks[0], argv=argv, env={}, mounts=(), ledger=(), container=None, image=None
        )
        self.plan = replace(
            made,
            engine="local",
            ranks=(rank,),
            url=f"http://127.0.0.1:{port}/v1",
            state_dir=str(folder / "state"),
        )
        self.run = RunDir.of(self.plan.state_dir)
        self.file = folder / "plan.json"
        self.file.write_text(self.plan.to_json())

    def call(self, *words: str) -> tuple[int, Any, str]:
        """Exit status, document and talk of a rank command; without any package of ours."""
        argv = [sys.executable, "-I", "-S", str(self.archive), "rank", *words, "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    def rank(self, verb: str) -> tuple[int, Any, str]:
        return self.call(verb, "--plan", str(self.file), "--rank", "0")

    def look(self) -> dict[str, Any]:
        found: dict[str, Any] = self.rank("look")[1]
        return found

    def stop(self) -> str:
        return str(self.call("stop", "--state-dir", self.plan.state_dir)[1]["status"])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.stop()


def test_a_rank_is_started_looked_at_and_stopped(node: Node) -> None:
    assert (node.look()["state"], node.look()["alive"]) == ("stopped", False)
    assert node.stop() == "nothing runs"
    status, started, _ = node.rank("start")
    assert status == 0
    assert host.wait_until(lambda: node.look()["state"] == "running", seconds=30)
    found = node.look()
    assert found["schema"] == "dsv41.rank/1"
    assert found["pid"] == started["pid"]
    assert (found["round"], found["plan"]) == (1, node.plan.digest)
    assert found["last_line"] == "engine of rank 0 runs"
    status, error, _ = node.rank("start")
    assert (status, error["code"]) == (5, "D063")
    assert str(started["pid"]) in error["says"]
    assert node.stop() == "stopped"
    assert node.stop() == "nothing runs"
    found = node.look()
    assert (found["alive"], found["state"], found["exit"]) == (False, "stopped", 0)


def test_a_look_asks_what_has_the_container(node: Node) -> None:
    """By a program in place of podman, with its answers; tests/fleet asks the real one."""
    assert host.wait_until(lambda: node.rank("start")[0] == 0, seconds=30)
    assert host.wait_until(lambda: node.look()["state"] == "running", seconds=30)
    assert node.look()["container"] is None
    program, file = node.folder / "program", node.run.state_file(0)
    wrote = {**json.loads(file.read_text()), "container": [str(program), "dsv41-rank0"]}
    file.write_text(json.dumps(wrote))
    assert node.look()["container"] == "unknown"
    form = '{"Running":%s,"ExitCode":0,"StartedAt":"2026-11-30T09:00:00Z","OOMKilled":false}'
    for does, says in (
        (f"echo '{form % 'true'}'", "running"),
        (f"echo '{form % 'false'}'", "ended"),
        ("echo 'Error: no such container' >&2; exit 125", "none"),
    ):
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
        assert node.look()["container"] == says


def test_a_killed_rank_is_told_and_a_stranger_is_not_signaled(node: Node) -> None:
    _, started, _ = node.rank("start")
    os.kill(started["pid"], signal.SIGKILL)
    assert host.wait_until(lambda: not node.look()["alive"], seconds=30)
    found = node.look()
    assert (found["state"], found["says"]) == ("ended", "It was killed.")
    stranger = subprocess.Popen(["sleep", "60"])  # has the pid by now, without the lock
    node.run.rank_lock(0).write_text(f"{stranger.pid}\n")
    assert node.stop() == "nothing runs"
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_rank_of_another_plan_is_not_started_beside(node: Node) -> None:
    node.rank("start")
    other = replace(node.plan, ranks=(*node.plan.ranks, replace(node.plan.ranks[0], rank=1)))
    file = node.folder / "other.json"
    file.write_text(replace(other, control=None).to_json())
    status, error, _ = node.call("start", "--plan", str(file), "--rank", "1")
    assert (status, error["code"]) == (5, "D063")
    assert "rank 0 of another Plan" in error["says"]


def test_a_plan_of_two_without_a_key_says_so(node: Node) -> None:
    whole: plan.Plan = replace(node.plan, ranks=(node.plan.ranks[0], node.plan.ranks[0]))
    node.file.write_text(whole.to_json())
    node.rank("start")
    assert host.wait_until(lambda: node.look()["state"] == "ended", seconds=30)
    found = node.look()
    assert (found["exit"], found["code"]) == (5, "D420")
    assert "D420 There is no control key at" in node.run.log_file(0).read_text()


@pytest.mark.parametrize(
    ("program", "exit_status", "code", "says"),
    [
        ("/nowhere/engine", 4, "D133", "/nowhere/engine cannot be started: No such file"),
        ("a\0b", 1, None, "ValueError: embedded null byte"),  # which no check foresees
    ],
)
def test_an_engine_that_cannot_start_is_no_kill(
    node: Node, program: str, exit_status: int, code: str | None, says: str
) -> None:
    alone = replace(node.plan, control=None, ranks=(replace(node.plan.ranks[0], argv=(program,)),))
    node.file.write_text(alone.to_json())
    node.rank("start")
    assert host.wait_until(lambda: not look(alone, 0)["alive"], seconds=30)
    found = look(alone, 0)
    assert (found["state"], found["exit"], found["code"]) == ("ended", exit_status, code)
    assert found["says"].startswith(says)


def test_a_stop_waits_for_all_that_a_rank_does_at_its_end() -> None:
    """Its container has its TERM and is removed; after a KILL the removal is made once more."""
    ends = foreground.CONTAINER_PATIENCE + foreground.CLEARED
    assert ends + 5 < STOP_PATIENCE
    assert STOP_PATIENCE + host.KILLED + foreground.CLEARED + 5 < fleet.STOPPED
