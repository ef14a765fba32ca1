"""`weights fetch` by the hub's real client, from a stand-in for the hub on loopback.

`make test-hub` installs the client in the two versions of the engine images and asks for these.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hub_server
from dsv41.weights.published import REPOSITORY

pytestmark = [pytest.mark.hub, pytest.mark.timeout(120)]
CACHE = Path(__file__).parent.parent / ".cache" / "hub"
HUB = Path(__file__).parent.parent / "python" / "dsv41" / "weights" / "hub.py"
LARGE = "model-00001-of-00002.safetensors"


@pytest.fixture(params=["sglang", "vllm"])
def client(request: pytest.FixtureRequest) -> Path:
    path = CACHE / str(request.param) / "bin" / "python"
    if request.config.option.markexpr != "hub" or not path.exists():
        pytest.skip("the hub's client is installed apart: make test-hub")
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = hub_server.checkpoint(tmp_path / "source")
    (folder / LARGE).write_bytes(bytes(range(256)) * (160 << 10))  # 40 MiB: four of its pieces
    return folder


def fetch(
    client: Path, to: Path, hub: hub_server.Hub, *more: str, status: int = 0
) -> tuple[str, str]:
    argv = [sys.executable, "-m", "dsv41", "weights", "fetch", "--profile", "tp3", "--json"]
    argv += ["--to", str(to), "--hub", hub.url, "--python", str(client), *more]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def _most(rests: list[Path]) -> int:
    """Bytes of the largest unfinished file."""
    return max((rest.stat().st_size for rest in rests), default=0)


def test_it_fetches_and_verifies(client: Path, source: Path, tmp_path: Path) -> None:
    with hub_server.serving(source, page=2) as hub:
        said, _ = fetch(client, tmp_path / "to", hub)
    node = json.loads(said)["nodes"][0]
    assert (node["status"], len(node["files"])) == ("ok", 5)
    for path in source.rglob("*.*"):
        assert (tmp_path / "to" / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_after_a_broken_download_whole_files_are_kept_and_rests_removed(
    client: Path, source: Path, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    words = [client, HUB, f"--repository={REPOSITORY}", f"--revision={hub_server.REVISION}"]
    with hub_server.serving(source, silent=True) as hub:
        command = [*map(str, words), f"--to={to}", f"--hub={hub.url}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rests: list[Path] = []
        deadline = time.monotonic() + 30
        while _most(rests) < 10 << 20 and time.monotonic() < deadline:
            time.sleep(0.1)
            rests = list(to.rglob("*.incomplete"))
        process.kill()
        process.wait()
    there = _most(rests)
    assert there >= 10 << 20
    with hub_server.serving(source) as hub:
        said, _ = fetch(client, to, hub)
        assert "config.json" not in hub.sent
        assert not list(to.rglob("*.incomplete"))
    assert json.loads(said)["status"] == "ok"


def test_a_connection_that_breaks_is_no_end(client: Path, source: Path, tmp_path: Path) -> None:
    with hub_server.serving(source, cut=15 << 20) as hub:
        said, _ = fetch(client, tmp_path / "to", hub)
        assert hub.cuts[LARGE] == 1
    assert json.loads(said)["status"] == "ok"


def test_a_standstill_is_told(client: Path, source: Path, tmp_path: Path) -> None:
    with hub_server.serving(source, silent=True) as hub:
        said, _ = fetch(client, tmp_path / "to", hub, "--stall", "3", status=4)
    assert json.loads(said)["code"] == "D458"
    with hub_server.serving(source) as hub:
        fetch(client, tmp_path / "to", hub)


def test_a_token_comes_by_file(client: Path, source: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hf_secret\n")
    token.chmod(0o644)
    to = tmp_path / "to"
    with hub_server.serving(source, token="hf_secret") as hub:  # noqa: S106 - the test's own
        assert json.loads(fetch(client, to, hub, status=1)[0])["code"] == "D455"
        more = ("--token-file", str(token))
        assert json.loads(fetch(client, to, hub, *more, status=2)[0])["code"] == "D450"
        token.chmod(0o600)
        said, words = fetch(client, to, hub, *more)
    assert json.loads(said)["status"] == "ok"
    assert "hf_secret" not in said + words
    assert not [
        path for path in to.rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()
    ]


def test_a_python_without_the_client_is_refused(client: Path, source: Path, tmp_path: Path) -> None:
    del client
    with hub_server.serving(source) as hub:
        said, _ = fetch(Path("/usr/bin/python3"), tmp_path / "to", hub, status=1)
    assert json.loads(said)["code"] == "D454"
