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
from dsv41.errors import EngineFailed
from dsv41.geometry import REAL_ENGRAM
from dsv41.run import chores
from planned import IMAGE, fleet_for, planned, profile_with, row_file

# stands for podman: `run` of the preflight or of the engine, `inspect` of either, and `rm`
PODMAN = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  rm*) ;;
  image*inspect*) {image} ;;
  *inspect*) echo '{{"Running": false, "ExitCode": 137, "StartedAt": "", "OOMKilled": {oom}}}' ;;
  *dsv41.adapters.preflight*) echo "preflight: D140 no such hook" >&2; {preflight} ;;
  *) {engine} ;;
esac
"""
NAMES = "dsv41-rank1-preflight", "dsv41-rank1"
HAS_IMAGE = f"""echo '[{{"Digest": "{IMAGE.partition("@")[2]}", "RepoDigests": []}}]'"""


def alone(tmp_path: Path, name: str = "tp3") -> plan.Plan:
    """A Plan of Sparks that this machine can begin: no other ranks, its rows here, no ledger."""
    made = planned(name)
    rows = tmp_path / "rows"
    rows.mkdir(exist_ok=True)
    for layer in REAL_ENGRAM.layer_ids:
        row_file(rows, layer=layer, rank=1, tp=3, partition="weighted")
    mounts = tuple(m.replace("/var/lib/dsv41/rows", str(rows)) for m in made.ranks[1].mounts)
    ranks = tuple(replace(rank, mounts=mounts, ledger=()) for rank in made.ranks)
    return replace(made, ranks=ranks, control=None, state_dir=str(tmp_path / "state"))


def rank_exec(
    tmp_path: Path,
    whole: plan.Plan,
    *,
    preflight: str = "exit 0",
    engine: str = "exit 0",
    image: str = HAS_IMAGE,
    oom: str = "false",
) -> subprocess.Popen[str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("podman", "python3"):
        program = folder / name
        log = tmp_path / f"{name}.log"
        text = PODMAN.format(log=log, preflight=preflight, engine=engine, image=image, oom=oom)
        program.write_text(text)
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
    whole = alone(tmp_path)
    process = rank_exec(tmp_path, whole, engine="exit 7")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 4
    assert "D427 The engine ended with exit status 7" in said
    assert names(tmp_path) == [*NAMES]
    for call in started(tmp_path):
        assert {IMAGE, "--pull=never", "--device=nvidia.com/gpu=all"} <= set(call)
        assert {f"--volume={mount}" for mount in whole.ranks[1].mounts} <= set(call)
        assert not {w for w in call if w == "--detach" or w.startswith("--restart")}
    assert not (tmp_path / "python3.log").exists()  # nothing of the engine runs on the host


def test_an_image_that_is_not_known_keeps_everything_from_starting(tmp_path: Path) -> None:
    whole = alone(tmp_path)
    unknown = replace(whole, ranks=tuple(replace(rank, image=None) for rank in whole.ranks))
    process = rank_exec(tmp_path, unknown)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "D180 The image of profile tp3 is not known by digest" in said
    assert not (tmp_path / "podman.log").exists()


def test_a_preflight_that_says_no_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    process = rank_exec(tmp_path, alone(tmp_path), preflight="exit 1")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert names(tmp_path) == [NAMES[0]]
    assert "preflight: D140 no such hook" in said
    assert "D144 Rank 1 was not started" in said


@pytest.mark.parametrize("status", [125, 126, 127])
def test_a_container_that_cannot_start_may_be_tried_again(tmp_path: Path, status: int) -> None:
    """Unlike a refused preflight (5), which a unit does not start again."""
    process = rank_exec(tmp_path, alone(tmp_path), preflight=f"exit {status}")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 4
    assert "D133 podman could not start rank 1" in said


@pytest.mark.parametrize("oom", ["true", "false"])
def test_a_killed_engine_has_failed(tmp_path: Path, oom: str) -> None:
    process = rank_exec(tmp_path, alone(tmp_path), engine="exit 137", oom=oom)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 4
    how = "the kernel's out-of-memory killer" if oom == "true" else "SIGKILL"
    assert f"D427 The engine was ended by {how}" in said


@pytest.mark.parametrize("image", ["exit 1", """echo '[{"Digest": "sha256:1"}]'"""])
def test_another_image_than_the_plans_starts_nothing(tmp_path: Path, image: str) -> None:
    process = rank_exec(tmp_path, alone(tmp_path), image=image)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "D419 spark2: podman has no image registry.example/dsv41@sha256:0000" in said
    assert started(tmp_path) == []


@pytest.mark.parametrize("where", ["preflight", "engine"])
def test_a_stop_ends_what_runs_and_starts_nothing(tmp_path: Path, where: str) -> None:
    process = rank_exec(tmp_path, alone(tmp_path), **{where: "exec sleep 60"})
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
    calls = (tmp_path / "podman.log").read_text().splitlines()
    assert calls[-1] == f"rm --force --time 0 {wanted[-1]}"
    # nobody asks why it ended: a program that hangs would hold the stop up
    assert calls[-2].split()[0] == "run"


def test_a_container_left_behind_is_removed_first(tmp_path: Path) -> None:
    process = rank_exec(tmp_path, alone(tmp_path))
    process.communicate(timeout=30)
    calls = [line.split() for line in (tmp_path / "podman.log").read_text().splitlines()]
    removals = [call[-1] for call in calls if call[0] == "rm"]
    assert removals == [*(NAMES[0],) * 2, *(NAMES[1],) * 2]
    assert [call[0] for call in calls[:2]] == ["image", "rm"]


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


def chore(tmp_path: Path, podman: str, *, path: str | None = None) -> int:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "podman").write_text(f"#!/bin/sh\n{podman}\n")
    (folder / "podman").chmod(0o755)
    made = planned("tp3")
    rank = made.ranks[1]
    environ = {"PATH": path or f"{folder}:{os.environ['PATH']}"}
    return chores.carry_out(made, rank, rank, what="pack", environ=environ)


def test_a_removal_that_hangs_does_not_hide_how_a_chore_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreground, "CLEARED", 0.2)
    assert chore(tmp_path, 'case "$1" in rm) exec sleep 60 ;; esac; exit 3') == 3


def test_a_chore_without_podman_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="D133 podman cannot be started: No such file"):
        chore(tmp_path, "", path=str(tmp_path))
