"""A rank of an image starts in a container of it, after its preflight there, or not at all.

The container program is a script that writes down how it is called; the processes are real. With
podman itself: tests/test_foreground_podman.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41 import containers, foreground, plan
from planned import IMAGE, fleet_for, planned, profile_with

# stands for podman: `run` of the preflight or of the engine, and `rm`
PODMAN = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  rm*) ;;
  *dsv41.adapters.preflight*) echo "preflight: D140 no such hook" >&2; {preflight} ;;
  *) {engine} ;;
esac
"""
NAMES = "dsv41-rank1-preflight", "dsv41-rank1"


def rank_exec(
    tmp_path: Path, whole: plan.Plan, *, preflight: str = "exit 0", engine: str = "exit 0"
) -> subprocess.Popen[str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("podman", "python3"):
        program = folder / name
        log = tmp_path / f"{name}.log"
        program.write_text(PODMAN.format(log=log, preflight=preflight, engine=engine))
        program.chmod(0o755)
    file = tmp_path / "plan.json"
    file.write_text(whole.to_json())
    argv = [sys.executable, "-m", "dsv41", "rank", "exec", "--plan", str(file), "--rank", "1"]
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environ)


def started(tmp_path: Path) -> list[list[str]]:
    """The words of each `podman run`, in order."""
    calls = [line.split() for line in (tmp_path / "podman.log").read_text().splitlines()]
    return [words for words in calls if words[0] == "run"]


def names(tmp_path: Path) -> list[str]:
    return [w.removeprefix("--name=") for c in started(tmp_path) for w in c if "--name=" in w]


def test_the_engine_runs_in_its_image_after_its_preflight(tmp_path: Path) -> None:
    whole = planned("tp3")
    process = rank_exec(tmp_path, whole, engine="exit 7")
    process.communicate(timeout=30)
    assert process.returncode == 7
    assert names(tmp_path) == [*NAMES]
    for call in started(tmp_path):
        assert {IMAGE, "--rm", "--pull=never", "--device=nvidia.com/gpu=all"} <= set(call)
        assert {f"--volume={mount}" for mount in whole.ranks[1].mounts} <= set(call)
        assert not {w for w in call if w == "--detach" or w.startswith("--restart")}
    assert not (tmp_path / "python3.log").exists()  # nothing of the engine runs on the host


def test_an_image_that_is_not_known_keeps_everything_from_starting(tmp_path: Path) -> None:
    whole = planned("tp3")
    unknown = replace(whole, ranks=tuple(replace(rank, image=None) for rank in whole.ranks))
    process = rank_exec(tmp_path, unknown)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "D180 The image of profile tp3 is not known by digest" in said
    assert not (tmp_path / "podman.log").exists()


def test_a_preflight_that_says_no_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    process = rank_exec(tmp_path, planned("tp3"), preflight="exit 1")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert names(tmp_path) == [NAMES[0]]
    assert "preflight: D140 no such hook" in said
    assert "D144 Rank 1 was not started" in said


@pytest.mark.parametrize("status", [125, 126, 127])
def test_a_container_that_cannot_start_may_be_tried_again(tmp_path: Path, status: int) -> None:
    """Unlike a refused preflight (5), which a unit does not start again."""
    process = rank_exec(tmp_path, planned("tp3"), preflight=f"exit {status}")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 4
    assert "D133 podman could not start rank 1" in said


def test_a_killed_engine_has_failed(tmp_path: Path) -> None:
    process = rank_exec(tmp_path, planned("tp3"), engine="exit 137")
    process.communicate(timeout=30)
    assert process.returncode == 4


@pytest.mark.parametrize("where", ["preflight", "engine"])
def test_a_stop_ends_what_runs_and_starts_nothing(tmp_path: Path, where: str) -> None:
    process = rank_exec(tmp_path, planned("tp3"), **{where: "exec sleep 60"})
    wanted = NAMES[: 1 + (where == "engine")]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if (tmp_path / "podman.log").exists() and len(started(tmp_path)) == len(wanted):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert names(tmp_path) == [*wanted]
    assert process.returncode == 0
    assert (tmp_path / "podman.log").read_text().splitlines()[-1] == f"rm --force {wanted[-1]}"


def test_a_container_left_behind_is_removed_first(tmp_path: Path) -> None:
    process = rank_exec(tmp_path, planned("tp3"))
    process.communicate(timeout=30)
    calls = [line.split()[:3] for line in (tmp_path / "podman.log").read_text().splitlines()]
    removals = [call for call in calls if call[0] == "rm"]
    assert removals == [["rm", "--force", name] for name in (NAMES[0],) * 2 + (NAMES[1],) * 2]
    assert calls[0][0] == "rm"


@pytest.mark.parametrize("name", ["tp3", "tp4-cycle"])
def test_the_preflight_runs_where_the_engine_would(name: str) -> None:
    whole = planned(name)
    rank = whole.ranks[0]
    look = foreground.preflight(rank, whole.engine)
    assert (look.image, look.env, look.mounts) == (rank.image, rank.env, rank.mounts)
    words = containers.attached("podman", look, name="look")
    at = words.index(IMAGE)
    assert words[at - 1] == "--entrypoint=python3"
    assert words[at + 1 :] == ["-m", "dsv41.adapters.preflight", "--engine", whole.engine]


def test_a_node_of_docker_uses_docker() -> None:
    chosen = profile_with("tp3")
    where = fleet_for(chosen, container="docker")
    made = plan.plan(chosen, where, {"tp3": IMAGE})
    assert {rank.container for rank in made.ranks} == {"docker"}
    assert {rank.container for rank in planned("tp3").ranks} == {"podman"}


def test_this_python_has_no_engine_and_the_preflight_says_so() -> None:
    """The real preflight, outside of an image."""
    whole = planned("tp3")
    rank = replace(whole.ranks[0], argv=(sys.executable,))
    look = foreground.preflight(rank, "sglang")
    done = subprocess.run(
        look.argv, env={**os.environ, **look.env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("preflight: ")]
    assert lines[0].startswith("preflight: D141 this Python has no package sglang")
    assert not [line for line in lines if "D140" in line]  # nor a line for each of its hooks
