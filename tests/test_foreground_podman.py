"""`rank exec` with podman itself (make test-image-local): start, stop, killed client, start again.

The image holds a shell, and a script in place of its python that answers for preflight and engine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41 import plan
from dsv41.engines.container import ROWS
from dsv41.geometry import REAL_ENGRAM
from planned import planned, row_file

NAME = "localhost/dsv41-test-rank"
PROGRAM = """#!/bin/bash
[ "$2" = dsv41.adapters.preflight ] && { echo "preflight" >&2; exit 0; }
trap 'echo "engine stops" >&2; exit 0' TERM
echo "engine $*" >&2
while sleep 0.2; do :; done
"""
pytestmark = [pytest.mark.images, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def _asked(request: pytest.FixtureRequest) -> None:
    if "images" not in str(request.config.getoption("-m")):
        pytest.skip("starts containers: make test-image-local")
    if shutil.which("podman") is None:
        pytest.fail("podman is not installed: see make test-image-local")


def podman(*words: str) -> str:
    return subprocess.run(["podman", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image's reference with its digest."""
    folder = tmp_path_factory.mktemp("image")
    programs = [shutil.which(name) for name in ("bash", "sleep")]
    linked = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, check=True
    )
    libraries = set(re.findall(r"(/lib\S+|/usr/lib\S+)", linked.stdout))
    (folder / "python3").write_text(PROGRAM)
    (folder / "python3").chmod(0o755)
    with tarfile.open(folder / "root.tar", "w", dereference=True) as archive:
        for path in sorted(libraries):
            archive.add(path)
        for path in filter(None, programs):
            archive.add(path, f"bin/{Path(path).name}")
        archive.add(folder / "python3", "usr/bin/python3")
    podman("import", "--quiet", str(folder / "root.tar"), NAME)
    yield f"{NAME}@{podman('images', '--format', '{{.Digest}}', NAME).split()[0]}"
    podman("rmi", "--force", NAME)


@pytest.fixture
def plan_file(image: str, tmp_path: Path) -> Path:
    """The Plan of tp3 on folders of this machine, without the devices that only a Spark has."""
    made = planned("tp3")
    mounts = tuple(
        f"{tmp_path / str(at)}:{m.split(':')[1]}" for at, m in enumerate(made.ranks[0].mounts)
    )
    for mount in mounts:
        Path(mount.split(":")[0]).mkdir()
    rows = next(Path(m.split(":")[0]) for m in mounts if m.split(":")[1] == ROWS)
    for layer in REAL_ENGRAM.layer_ids:
        row_file(rows, layer=layer, rank=0, tp=3, partition="weighted")
    kept = tuple(o for o in made.ranks[0].options if not o.startswith(("--device", "--ulimit")))
    ranks = tuple(
        replace(r, image=image, mounts=mounts, options=kept, ledger=()) for r in made.ranks
    )
    path = tmp_path / "plan.json"
    alone = replace(made, ranks=ranks, control=None, state_dir=str(tmp_path / "state"))
    path.write_text(alone.to_json())
    assert plan.parse(path.read_text(), where=str(path)).ranks[0].image == image
    return path


def rank_exec(plan_file: Path, log: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "dsv41", "rank", "exec", "--plan", str(plan_file), "--rank", "0"]
    with log.open("ab") as out:
        return subprocess.Popen(argv, stdout=out, stderr=out)


def wait_for(log: Path, word: str, times: int = 1) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if log.exists() and log.read_text().count(word) >= times:
            break
        time.sleep(0.1)
    return log.read_text()


def running() -> list[str]:
    return [
        name for name in podman("ps", "--format", "{{.Names}}").split() if "dsv41-rank0" in name
    ]


def test_start_stop_and_start_again_over_a_container_left_behind(
    plan_file: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    first = rank_exec(plan_file, log)
    said = wait_for(log, "engine -m sglang.launch_server")
    assert said.index("preflight") < said.index("engine -m")
    assert running() == ["dsv41-rank0"]
    first.kill()  # the container lives on without its client
    first.wait()
    assert running() == ["dsv41-rank0"]
    second = rank_exec(plan_file, log)
    wait_for(log, "engine -m sglang.launch_server", times=2)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == 0
    assert wait_for(log, "engine stops").count("engine stops") >= 1
    assert running() == []
    assert not os.path.lexists(f"/proc/{first.pid}")
