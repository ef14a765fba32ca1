"""image-local, built of locked packages and run under podman (make test-image-local).

It fetches some 330 MB and takes minutes, so it is not part of `make test`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41 import containers as command_lines
from dsv41 import plan as plans
from dsv41 import profile
from dsv41.api import Endpoint
from dsv41.fleet import loopback
from nix_images import CONFIG, NIX, ROOT, mirror

LAYERS = ("root", "torch", "python")
TP = 3

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module", autouse=True)
def _asked(request: pytest.FixtureRequest) -> None:
    if "images" not in str(request.config.getoption("-m")):
        pytest.skip("fetches 330 MB and takes minutes: make test-image-local")
    for program in (str(NIX), "podman", "skopeo", "umoci"):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is not installed: see make test-image-local")


def run(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        check=False,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def built(attribute: str, *words: str) -> Path:
    environment = {
        "NIX_CONFIG": CONFIG,
        "DSV41_SITE": sysconfig.get_path("purelib"),
        "DSV41_DEB_MIRROR": os.environ.get("DSV41_DEB_MIRROR") or mirror(),
    }
    command = [str(NIX), "build", "--impure", "--no-link", "--print-out-paths", *words]
    file = str(ROOT / "tests" / "nix" / "images.nix")
    return Path(run(*command, "--file", file, attribute, env=environment).strip())


@pytest.fixture(scope="module")
def layout() -> Path:
    return built("image-local")


@pytest.fixture(scope="module")
def reference(layout: Path) -> str:
    """The image in podman's storage, by its digest."""
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    run("skopeo", "copy", f"oci:{layout}", "containers-storage:localhost/dsv41/local:test")
    by_digest = f"localhost/dsv41/local@{entry['digest']}"
    run("podman", "image", "exists", by_digest)
    return by_digest


def test_the_digest_was_known_before_it_was_built(layout: Path) -> None:
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert built("image-local.digest").read_text().strip() == entry["digest"]
    assert entry["platform"]["architecture"] == "amd64"


def test_all_layers_are_the_same_when_built_again() -> None:
    """A rebuild is compared with the store and with the listed hash."""
    for at, name in enumerate(LAYERS):
        expression = (
            f"builtins.elemAt (import {ROOT}/tests/nix/images.nix {{ }}).image-local.layers"
        )
        assert json.loads(evaluated(f"({expression} {at}).name")) == name
        path = json.loads(evaluated(f"({expression} {at}).blob.drvPath"))
        run(str(NIX), "build", "--no-link", "--rebuild", f"{path}^*", env={"NIX_CONFIG": CONFIG})


def evaluated(expression: str) -> str:
    environment = {"NIX_CONFIG": CONFIG, "DSV41_SITE": sysconfig.get_path("purelib")}
    return run(str(NIX), "eval", "--impure", "--json", "--expr", expression, env=environment)


@contextlib.contextmanager
def containers(ranks: list[plans.Rank]) -> Iterator[list[str]]:
    """The ranks, each in a container that the Plan's own renderer starts; workers first."""
    names = [f"dsv41-test-{os.getpid()}-rank{rank.rank}" for rank in ranks]
    try:
        for rank, name in reversed(list(zip(ranks, names, strict=True))):
            command = command_lines.detached("podman", rank)
            run(*[f"--name={name}" if w.startswith("--name=") else w for w in command])
        yield names
    finally:
        for name in names:
            subprocess.run(["podman", "rm", "-f", name], check=False, capture_output=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def wait_ready(url: str, names: list[str], *, seconds: float) -> None:
    endpoint, deadline = Endpoint(url=url, timeout=5), time.monotonic() + seconds
    while time.monotonic() < deadline:
        if endpoint.status("/ready") == 200:
            return
        states = run("podman", "inspect", "--format", "{{.State.Status}}", *names).split()
        if "exited" in states:
            break
        time.sleep(0.5)
    logs = "".join(run_both("podman", "logs", name) for name in names)
    pytest.fail(f"the ranks are not ready\n{logs}")


def run_both(*command: str) -> str:
    done = subprocess.run(
        command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.stdout


def test_the_row_store_is_compiled_once_by_the_image_itself(reference: str, cache: Path) -> None:
    ask = "from dsv41.rows.build import library; print(library())"
    command = ["podman", "run", "--rm", f"--volume={cache}:/cache", "--pull=never", reference]
    first = run(*command, "python", "-c", ask).strip()
    assert first.startswith("/cache/xdg/dsv41/libdsv41_rows-")
    began = time.monotonic()
    assert run(*command, "python", "-c", ask).strip() == first
    assert time.monotonic() - began < 30
    (library,) = (cache / "xdg" / "dsv41").iterdir()
    assert library.name == Path(first).name


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_three_ranks_in_containers_answer_smoke(
    reference: str, cache: Path, tmp_path: Path
) -> None:
    """Three ranks of the Plan of profile local; what they are asked is what any server is asked."""
    dsv41 = [sys.executable, "-m", "dsv41"]
    run(*dsv41, "pack", "--profile", "local", "--tp", str(TP), "--state-dir", str(tmp_path))
    port = free_port()
    chosen = profile.load("local").with_values("--tp", tp=TP)
    fleet = loopback(tp=TP, state_dir=str(tmp_path), port=port, master_port=free_port())
    made = plans.plan(chosen, fleet, {})
    mounts = (f"{tmp_path}:{tmp_path}:ro", f"{cache}:/cache")
    ranks = [
        replace(rank, image=reference, mounts=mounts, options=("--network=host",))
        for rank in made.ranks
    ]
    with containers(ranks) as names:
        url = f"http://127.0.0.1:{port}/v1"
        wait_ready(url, names, seconds=300)
        receipt = str(tmp_path / "receipt.json")
        said = run(*dsv41, "smoke", "--url", url, "--receipt", receipt, "--json")
        assert json.loads(said)["status"] == "ok"
        run("podman", "stop", "--time", "30", *names)
        codes = run("podman", "inspect", "--format", "{{.State.ExitCode}}", *names).split()
        assert codes[0] == "0"


def test_the_other_machines_image_is_made_here_too() -> None:
    """Its digest, from listed layers; no program of arm64 runs."""
    assert built("image-local.arm64.digest").read_text().startswith("sha256:")


def test_the_recipes_image_is_the_branch_and_not_its_base(tmp_path: Path) -> None:
    """image-tp4-recipe on the synthetic base: what a container of it would see."""
    layout = built("image-tp4-recipe")
    run("umoci", "unpack", "--image", f"{layout}:tp4-recipe", str(tmp_path / "bundle"))
    root = tmp_path / "bundle" / "rootfs"
    engine = root / "sgl-workspace/sglang/python/sglang"
    assert [path.name for path in engine.iterdir()] == ["__init__.py"]
    assert (engine / "__init__.py").read_text() == 'tree = "branch"\n'
    config = json.loads((tmp_path / "bundle" / "config.json").read_text())
    (search,) = [v for v in config["process"]["env"] if v.startswith("PYTHONPATH=")]
    folders = search.removeprefix("PYTHONPATH=").split(":")
    assert folders == [
        "/opt/dsv41/src/python",
        "/opt/dsv41/kernels",
        "/opt/b12x",
        "/opt/b12x_next",
        "/base",
    ]
    ask = (
        "from importlib.metadata import version, files\n"
        "print(version('sglang-kernel'), version('sgl-deep-gemm'))\n"
    )
    path = ":".join(f"{root}{folder}" for folder in folders)
    found = run(sys.executable, "-S", "-c", ask, env={"PYTHONPATH": path})
    assert found.split() == ["0.4.7", "0.2.0"]
