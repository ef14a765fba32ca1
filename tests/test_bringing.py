"""`serve --fleet` is told to end: it stops ranks of its own Plan, and of no other."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41 import digests, example, host
from dsv41.cli import bringing, gate
from dsv41.cli.planning import Made
from dsv41.cli.talk import Talk
from dsv41.host.reach import Host
from dsv41.run import node
from dsv41.run.fleet import Crew
from planned import IMAGE, fleet_for, profile_with
from test_node import Node

# stands for a node's python3: tells that it was asked for its version, and takes its time
SLOW = """#!/bin/sh
case "$*" in *version_info*) : >{began}; sleep 0.5 ;; esac
exec {python} "$@"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Node]:
    """A machine that runs rank 0 of a Plan."""
    made = Node(tmp_path)
    made.rank("start")
    assert host.wait_until(lambda: state(made) == "running", seconds=30)
    made.run.plan_file.write_text(made.plan.to_json())
    yield made
    node.stop(made.plan.state_dir)


def state(machine: Node) -> str:
    return str(node.look(machine.plan, 0)["state"])


def test_a_term_before_the_nodes_were_looked_at_stops_nothing(machine: Node) -> None:
    """Somebody serves another profile by mistake, and ends it while it puts the command there."""
    began = machine.folder / "began"
    python = machine.folder / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(SLOW.format(began=began, python=sys.executable))
    python.chmod(0o755)
    file = machine.folder / "fleet.toml"
    text = re.sub('ssh = ".*?"', 'ssh = "local"', example.fleet_text(profile_with("tp3")))
    file.write_text(f'state_dir = "{machine.plan.state_dir}"\n{text}')
    words = ["serve", "--profile", "local", "--image", IMAGE, "--fleet", str(file)]
    serve = subprocess.Popen(
        [sys.executable, "-m", "dsv41", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
    )
    host.wait_until(lambda: began.exists() or serve.poll() is not None, seconds=30)
    serve.send_signal(signal.SIGTERM)
    _, said = serve.communicate(timeout=60)
    assert began.exists(), said
    assert (serve.returncode, "nothing is stopped" in said) == (0, True), said
    assert state(machine) == "running"


def serve_and_term(machine: Node) -> tuple[int, str]:
    """`serve` of the Plan that runs, with a TERM while it waits for the endpoint; what it said."""
    words = io.StringIO()

    def term() -> None:
        host.wait_until(lambda: "waiting for" in words.getvalue(), seconds=30)
        os.kill(os.getpid(), signal.SIGTERM)

    chosen = profile_with("tp3")
    where = fleet_for(chosen, state_dir=machine.plan.state_dir)
    where = replace(where, nodes=(replace(where.nodes[0], ssh="local"),))
    thread = threading.Thread(target=term)
    thread.start()
    status = bringing.serve(
        Namespace(fleet="fleet.toml", api_key_file=None, accept=[], detach=True),
        Made(profile=chosen, fleet=where, plan=machine.plan),
        Talk(data=io.StringIO(), words=words, as_json=False, color=False),
    )
    thread.join()
    return status, words.getvalue()


def test_a_term_stops_a_rank_of_this_plan(machine: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was found running. Where another Plan has taken its place since, that one stays."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setattr(gate, "judge", lambda *_: ())  # this machine is no Spark
    monkeypatch.setattr(digests, "require", lambda *_, **__: IMAGE)  # the rank is a bare process
    file = machine.run.state_file(0)
    wrote = file.read_text()
    found = Crew.look

    def replaced(crew: Crew, rank: int, at: Host) -> dict[str, object]:
        """As after `stop` and `serve` of somebody else, as soon as this one had its look."""
        look = found(crew, rank, at)
        file.write_text(json.dumps({**json.loads(wrote), "plan": "sha256:other"}))
        return look

    with monkeypatch.context() as somebody:
        somebody.setattr(Crew, "look", replaced)
        status, said = serve_and_term(machine)
    assert (status, state(machine)) == (0, "running")
    assert "rank 0 is of another Plan by now, and goes on\n" in said
    file.write_text(wrote)
    status, said = serve_and_term(machine)
    assert (status, state(machine)) == (0, "stopped")
    assert "asked to stop: rank 0\nspark1: rank 0 stopped\n" in said
