"""A rank's engine starts after its preflight, or not at all; real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41 import foreground, formats, plan
from dsv41.adapters.table import TABLES
from planned import IMAGE, planned

ROOT = Path(__file__).parent.parent
# stands for the python of an image: it is asked for the preflight, then for the engine
PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$2" in
  dsv41.adapters.preflight) echo "preflight: D140 no such hook" >&2; {preflight} ;;
  *) {engine} ;;
esac
"""


def made(tmp_path: Path, *, preflight: str = "exit 0", engine: str = "exit 0") -> plan.Plan:
    """The Plan of tp3 whose image has a python of ours."""
    program = tmp_path / "python3"
    program.write_text(PYTHON.format(log=tmp_path / "log", preflight=preflight, engine=engine))
    program.chmod(0o755)
    whole = planned("tp3")
    ranks = tuple(replace(r, argv=(str(program), *r.argv[1:])) for r in whole.ranks)
    return replace(whole, ranks=ranks)


def rank_exec(whole: plan.Plan, tmp_path: Path) -> subprocess.Popen[str]:
    file = tmp_path / "plan.json"
    file.write_text(whole.to_json())
    argv = [sys.executable, "-m", "dsv41", "rank", "exec", "--plan", str(file), "--rank", "1"]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)


def asked(tmp_path: Path) -> list[str]:
    """The module of each start, in order."""
    return [line.split()[1] for line in (tmp_path / "log").read_text().splitlines()]


def test_the_engine_starts_after_its_preflight(tmp_path: Path) -> None:
    process = rank_exec(made(tmp_path, engine="exit 7"), tmp_path)
    process.communicate(timeout=30)
    assert process.returncode == 7
    assert asked(tmp_path) == ["dsv41.adapters.preflight", "sglang.launch_server"]


def test_an_image_that_is_not_known_keeps_everything_from_starting(tmp_path: Path) -> None:
    whole = made(tmp_path)
    unknown = replace(whole, ranks=tuple(replace(rank, image=None) for rank in whole.ranks))
    process = rank_exec(unknown, tmp_path)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "D180 The image of profile tp3 is not known by digest" in said
    assert not (tmp_path / "log").exists()


def test_a_preflight_that_says_no_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    process = rank_exec(made(tmp_path, preflight="exit 1"), tmp_path)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert asked(tmp_path) == ["dsv41.adapters.preflight"]
    assert "preflight: D140 no such hook" in said
    assert "D144 Rank 1 was not started" in said


def test_a_stop_during_the_preflight_starts_nothing(tmp_path: Path) -> None:
    process = rank_exec(made(tmp_path, preflight="exec sleep 60"), tmp_path)
    deadline = time.monotonic() + 30
    while not (tmp_path / "log").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert asked(tmp_path) == ["dsv41.adapters.preflight"]
    assert process.returncode == 4


@pytest.mark.parametrize("name", ["tp3", "tp4-cycle"])
def test_the_preflight_runs_where_the_engine_would(name: str) -> None:
    whole = planned(name)
    rank = whole.ranks[0]
    look = foreground.preflight(rank, whole.engine)
    assert (look.image, look.env, look.mounts) == (rank.image, rank.env, rank.mounts)
    words = formats.container_command("podman", look)
    at = words.index(IMAGE)
    assert words[at - 1] == "--entrypoint=python3"
    assert words[at + 1 :] == ["-m", "dsv41.adapters.preflight", "--engine", whole.engine]
    assert not [word for word in words if word.startswith("--restart")]


def test_this_python_has_no_engine_and_the_preflight_says_so() -> None:
    """The real preflight: one line an adapter's target, and the loader first."""
    whole = planned("tp3")
    rank = replace(whole.ranks[0], argv=(sys.executable,))
    look = foreground.preflight(rank, "sglang")
    done = subprocess.run(
        look.argv, env={**os.environ, **look.env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("preflight: ")]
    assert lines[0].startswith("preflight: D141 the plugin loader of sglang lacks")
    assert "there is no module sglang" in lines[0]
    adapters = {a.name for a in TABLES["sglang"]}
    named = {name for name in adapters for line in lines if f"D140 adapter {name} " in line}
    assert named >= {"tp_pad", "scale_repair", "loop_stop", "thinking_alias"}
