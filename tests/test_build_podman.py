"""`dsv41 build` over a real sshd into a podman of its own: sources, cuts, damage, a full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import oci_registry
import tiny_image
from dsv41 import host
from sshd import running

pytestmark = [pytest.mark.images, pytest.mark.timeout(300)]
DSV41 = Path(sys.executable).with_name("dsv41")


@pytest.fixture(scope="module", autouse=True)
def _asked(request: pytest.FixtureRequest) -> None:
    if "images" not in str(request.config.getoption("-m")):
        pytest.skip("starts sshd and podman: make test-image-local")
    if shutil.which("podman") is None:
        pytest.fail("podman is not installed: see make test-image-local")


@dataclass
class Node:
    """A node behind sshd, with a state folder and a podman store of its own, and its operator."""

    folder: Path
    environment: dict[str, str]
    podman_environment: dict[str, str]
    fleet: Path

    @property
    def blobs(self) -> Path:
        return self.folder / "state" / "images" / "blobs" / "sha256"

    def command(self, digest: str, *words: str) -> list[str]:
        reference = f"{tiny_image.NAME}@{digest}"
        where = ["--profile", "tp3", "--fleet", str(self.fleet), "--node", "spark1"]
        return [str(DSV41), "build", *where, "--image", reference, "--json", *words]

    def build(self, digest: str, *words: str) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(
            self.command(digest, *words),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, found, done.stderr

    def podman(self, *words: str) -> str:
        done = subprocess.run(
            ["podman", *words],
            env=self.podman_environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def has(self, digest: str) -> bool:
        listed = self.podman("images", "--digests", "--format", "{{.Repository}}@{{.Digest}}")
        return f"{tiny_image.NAME}@{digest}" in listed.split()

    def clean(self) -> None:
        self.podman("rmi", "--all", "--force")
        shutil.rmtree(self.folder / "state")


@pytest.fixture(scope="module")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # outside of pytest's own folders: podman's paths have a bound
    folder = tmp_path_factory.mktemp("store")
    conf = folder / "storage.conf"
    conf.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/s"\nrunroot = "{folder}/r"\n'
    )
    return conf


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, _store: Path) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    with running(folder, f"SetEnv=CONTAINERS_STORAGE_CONF={_store}") as server:
        programs = folder / "bin"
        programs.mkdir()
        words = " ".join(f"'{word}'" for word in server.options)
        (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh {words} "$@"\n')
        (programs / "ssh").chmod(0o755)
        example = subprocess.run(
            [DSV41, "plan", "--example", "tp3"], capture_output=True, text=True, check=True
        ).stdout
        lines = [
            f'ssh = "{server.destination}"' if line.startswith("ssh ") else line
            for line in example.splitlines()
            if not line.startswith("state_dir")
        ]
        fleet = folder / "fleet.toml"
        fleet.write_text(f'state_dir = "{folder}/state"\n' + "\n".join(lines))
        yield Node(
            folder,
            {
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "HOME": str(folder),
                "TMPDIR": "/tmp",  # noqa: S108 - of ssh's sockets, whose paths have a bound
            },
            {**os.environ, "CONTAINERS_STORAGE_CONF": str(_store)},
            fleet,
        )


@pytest.fixture
def fresh(node: Node) -> Iterator[Node]:
    (node.folder / "state").mkdir(exist_ok=True)
    yield node
    node.clean()


def test_an_image_arrives_and_only_new_layers_follow(fresh: Node, tmp_path: Path) -> None:
    common = tiny_image.noise(300_000)
    one = tiny_image.made(tmp_path / "1", base=common, ours=tiny_image.noise(10_000))
    two = tiny_image.made(tmp_path / "2", base=common, ours=tiny_image.noise(20_000))
    layouts = {one: tmp_path / "1" / "layout", two: tmp_path / "2" / "layout"}

    status, found, _ = fresh.build(one, "--from", str(layouts[one]), "--dry-run")
    assert (status, len(found["nodes"][0]["layers"])) == (0, 2)
    assert not fresh.has(one)

    status, found, says = fresh.build(one, "--from", str(layouts[one]))
    assert status == 0, says
    assert found["nodes"][0]["status"] == "delivered"
    assert found["nodes"][0]["layers"] == tiny_image.layers_of(layouts[one], one)
    assert fresh.has(one)
    fresh.podman("image", "exists", f"{tiny_image.NAME}@{one}")
    tag = f"{tiny_image.NAME}:{one[7:19]}"
    assert tag in json.loads(fresh.podman("image", "inspect", tag))[0]["RepoTags"]

    status, found, says = fresh.build(two, "--from", str(layouts[two]))
    assert status == 0, says
    assert found["nodes"][0]["layers"] == tiny_image.layers_of(layouts[two], two)[1:]
    assert fresh.has(one)
    assert fresh.has(two)
    # of the folder of blobs only the last image is left: podman has both
    there = {path.name for path in fresh.blobs.iterdir()}
    assert there > {digest[7:] for digest in tiny_image.layers_of(layouts[two], two)}
    assert tiny_image.layers_of(layouts[one], one)[1][7:] not in there

    # who has it already is asked for nothing
    status, found, _ = fresh.build(two, "--from", "/nowhere")
    assert (status, found["nodes"][0]["status"]) == (0, "present")


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive", "registry"])
def test_every_source_gives_the_same_image(fresh: Node, tmp_path: Path, kind: str) -> None:
    digest = tiny_image.made(
        tmp_path / "1", base=tiny_image.noise(9_000), ours=tiny_image.noise(900)
    )
    layout = tmp_path / "1" / "layout"
    content = oci_registry.Content(cuts=1)
    for path in (layout / "blobs" / "sha256").iterdir():
        content.add(path.read_bytes())
    with oci_registry.serving(content) as reference:
        source = f"{reference}@{digest}"
        if kind == "oci-archive":
            source = str(tiny_image.archive(layout, tmp_path / "image.tar"))
        if kind == "docker-archive":
            source = str(tmp_path / "docker.tar")
            copy = ["skopeo", "--insecure-policy", "copy", f"oci:{layout}"]
            subprocess.run([*copy, f"docker-archive:{source}"], check=True, capture_output=True)
        status, _, says = fresh.build(digest, "--from", source)
    assert status == 0, says
    assert fresh.has(digest)


def test_the_copy_of_a_killed_operator_goes_on(fresh: Node, tmp_path: Path) -> None:
    size = 60_000_000
    digest = tiny_image.made(tmp_path / "1", base=tiny_image.noise(size))
    source = ["--from", str(tmp_path / "1" / "layout")]
    part = fresh.blobs / f".{tiny_image.layers_of(tmp_path / '1' / 'layout', digest)[0][7:]}.part"

    def begun() -> bool:
        return part.exists() and part.stat().st_size > 1_000_000

    slow = {**fresh.environment, "PATH": f"{_slow(fresh, tmp_path)}:{fresh.environment['PATH']}"}
    process = subprocess.Popen(
        fresh.command(digest, *source),
        env=slow,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    assert host.wait_until(begun, seconds=60)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1)  # the node writes what was on the way
    came = part.stat().st_size
    assert 1_000_000 < came < size
    assert not fresh.has(digest)

    status, found, says = fresh.build(digest, *source)
    assert status == 0, says
    assert found["nodes"][0]["bytes"] < size + 10_240 - 1_000_000
    assert fresh.has(digest)


def _slow(node: Node, folder: Path) -> Path:
    """An ssh whose stdin comes in small pieces, so that the copy can be met half-way."""
    programs = folder / "slow"
    programs.mkdir()
    script = (
        "import sys, time\nwhile piece := sys.stdin.buffer.read(1 << 20):\n"
        " sys.stdout.buffer.write(piece); sys.stdout.flush(); time.sleep(0.2)\n"
    )
    (programs / "slow.py").write_text(script)
    ssh = node.folder / "bin" / "ssh"
    (programs / "ssh").write_text(
        f'#!/bin/sh\ncase "$*" in *sha256sum*) {sys.executable} {programs}/slow.py | {ssh} "$@";; '
        f'*) exec {ssh} "$@";; esac\n'
    )
    (programs / "ssh").chmod(0o755)
    return programs


def test_what_is_not_the_image_is_refused_before_it_is_sent(fresh: Node, tmp_path: Path) -> None:
    digest = tiny_image.made(tmp_path / "1", base=tiny_image.noise(9_000))
    other = tiny_image.made(tmp_path / "2", base=tiny_image.noise(9_000))
    status, error, _ = fresh.build(digest, "--from", str(tmp_path / "2" / "layout"))
    assert (status, error["code"]) == (1, "D414")
    assert digest in error["says"]
    assert other in error["says"]
    assert not fresh.blobs.exists()


def test_a_damaged_layer_is_not_kept(fresh: Node, tmp_path: Path) -> None:
    digest = tiny_image.made(tmp_path / "1", base=tiny_image.noise(9_000))
    layout = tmp_path / "1" / "layout"
    good = tmp_path / "good.tar"
    tiny_image.archive(layout, good)
    (layer,) = tiny_image.layers_of(layout, digest)
    tiny_image.spoiled(layout, layer)
    status, found, _ = fresh.build(digest, "--from", str(layout))
    assert (status, found["nodes"][0]["code"]) == (1, "D417")
    assert layer in found["nodes"][0]["says"]
    assert [p.name for p in fresh.blobs.iterdir()] == [".lock"]
    assert not fresh.has(digest)
    assert fresh.build(digest, "--from", str(good))[0] == 0


def test_a_disk_without_room_is_said_before_anything_is_sent(fresh: Node, tmp_path: Path) -> None:
    digest = tiny_image.made(tmp_path / "1", base=tiny_image.noise(900_000))
    state = fresh.folder / "state"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", state], check=True)
    try:
        status, found, _ = fresh.build(digest, "--from", str(tmp_path / "1" / "layout"))
        assert (status, found["nodes"][0]["code"]) == (1, "D416")
        assert "bytes" in found["nodes"][0]["says"]
        assert list(fresh.blobs.iterdir()) == []
    finally:
        subprocess.run(["umount", state], check=True)


def test_a_rank_finds_what_arrived_on_its_own_node(fresh: Node, tmp_path: Path) -> None:
    digest = tiny_image.made(tmp_path / "1", base=tiny_image.noise(9_000))
    layout = tmp_path / "1" / "layout"
    assert fresh.build(digest, "--from", str(layout))[0] == 0
    reference = f"{tiny_image.NAME}@{digest}"
    make = [str(DSV41), "plan", "--profile", "tp3", "--fleet", str(fresh.fleet), "--json"]
    plan = subprocess.run([*make, "--image", reference], capture_output=True, check=True).stdout
    (tmp_path / "plan.json").write_bytes(plan)
    step = [str(DSV41), "build", "--plan", str(tmp_path / "plan.json"), "--rank", "1", "--json"]
    fresh.podman("rmi", "--all", "--force")
    for expected in ("delivered", "present"):  # from its own folder, then from nowhere
        done = subprocess.run(
            step, env=fresh.podman_environment, capture_output=True, text=True, check=True
        )
        (told,) = json.loads(done.stdout)["nodes"]
        assert (told["status"], told.get("bytes", 0)) == (expected, 0)
    assert fresh.has(digest)
