"""The service as its users meet it: the real command, real processes, real signals."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv41 import host, observe, run
from dsv41.api import Endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Service:
    """One state folder, driven by the command line only."""

    def __init__(self, state: Path) -> None:
        self.state = state
        # below the range of outgoing connections, and another one in each test process
        self.port = host.free_port("127.0.0.1", 10000 + os.getpid() % 9000)
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.run_dir = run.RunDir.of(state)

    def begin(self, *words: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
        """Start `dsv41 WORDS --state-dir ...`; the caller reads its output."""
        command = [sys.executable, "-m", "dsv41", *words, "--state-dir", str(self.state)]
        return subprocess.Popen(
            ["env", "--default-signal=INT", *command],  # a shell's background job ignores it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )

    def begin_serve(self, *words: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
        serve = ["serve", "--profile", "local", "--port", str(self.port)]
        return self.begin(*serve, *words, pass_fds=pass_fds)

    def call(self, *words: str, status: int = 0) -> Any:
        """Run `dsv41 WORDS --state-dir ... --json`; its document."""
        return document(self.begin(*words, "--json"), status=status)

    def serve(self, *words: str, status: int = 0) -> Any:
        return document(self.begin_serve("--detach", "--json", *words), status=status)

    def processes(self) -> set[int]:
        """Every process whose command line names the state folder."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.state).encode() in command:
                    found.add(int(entry.name))
        return found

    def all_gone(self) -> bool:
        return host.wait_until(lambda: not self.processes(), seconds=20)


def document(begun: subprocess.Popen[str], *, status: int) -> Any:
    """The document of a command; it ends with its pipes, whatever it started."""
    out, err = begun.communicate(timeout=150)
    assert begun.returncode == status, err + out
    return json.loads(out)


@pytest.fixture
def service(tmp_path: Path, checkpoint: Path, rows_dir: Path) -> Iterator[Service]:
    """A service whose checkpoint and rows are copies of those that the tests share."""
    state = tmp_path / "state"
    state.mkdir()
    shutil.copytree(checkpoint, state / "checkpoints" / "fixture", copy_function=os.link)
    shutil.copytree(rows_dir, state / "rows", copy_function=os.link)
    made = Service(state)
    yield made
    run.stop_service(state)
    assert made.all_gone()


def test_three_ranks_from_start_to_stop(service: Service) -> None:
    # Two at once: one makes what is absent and starts, the other is refused and disturbs nothing.
    # Neither keeps a pipe of its caller open: `communicate` reads theirs to the end, and so do we.
    ours, theirs = os.pipe()
    both = [service.begin_serve("--detach", "--json", pass_fds=(theirs,)) for _ in range(2)]
    os.close(theirs)
    said = {one.communicate(timeout=150)[0]: one.returncode for one in both}
    assert os.read(ours, 1) == b""
    os.close(ours)
    assert sorted(said.values()) == [0, 5], said
    started, refused = (json.loads(text) for text in sorted(said, key=lambda text: said[text]))
    assert refused["code"] == "D063"
    assert (started["schema"], started["status"]) == ("dsv41.serve/1", "ready")
    assert started["url"] == service.url
    status = service.call("status")
    assert status["status"] == "serving"
    assert [rank["role"] for rank in status["ranks"]] == ["head", "worker", "worker"]
    assert status["digest"] == started["digest"]
    smoke = service.call("smoke", "--url", service.url)
    assert smoke["status"] == "ok", smoke["steps"]
    receipt = json.loads(Path(smoke["receipt"]).read_text())
    assert receipt["result"]["steps"] == smoke["steps"]
    logs = service.call("logs")
    assert all(logs["ranks"][str(rank)] for rank in range(3))
    # serving again is refused and disturbs nothing
    assert service.serve(status=5)["code"] == "D063"
    assert Endpoint(url=service.url).status("/ready") == 200
    assert service.call("stop")["status"] == "stopped"
    assert service.all_gone()
    assert service.call("status", status=1)["status"] == "stopped"
    assert service.call("stop")["status"] == "nothing runs"


def test_a_killed_rank_ends_all_and_serve_starts_again(service: Service) -> None:
    service.serve("--tp", "2")
    ranks = observe.look(service.run_dir)["ranks"]
    os.kill(ranks[1]["pid"], signal.SIGKILL)
    assert service.all_gone()
    assert service.call("status", status=1)["status"] == "failed"
    # attached: an INT as soon as it says that it is ready leaves the service running
    attached = service.begin_serve("--tp", "1")
    assert attached.stdout is not None
    assert attached.stdout.readline() == f"ready {service.url}\n"
    attached.send_signal(signal.SIGINT)
    _, words = attached.communicate(timeout=20)
    assert attached.returncode == 0, words
    assert "dsv41 stop" in words
    assert Endpoint(url=service.url).status("/ready") == 200
    # the supervisor killed: nothing is left, and the state folder serves again
    supervisor = service.run_dir.supervisor()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    assert service.all_gone()
    assert service.call("status", status=1)["status"] == "failed"
    again = service.begin_serve("--tp", "1")
    assert again.stdout is not None
    assert again.stdout.readline().startswith("ready")
    again.terminate()
    again.communicate(timeout=30)
    assert again.returncode == 0
    assert service.all_gone()


def test_a_taken_port_and_a_bad_key_file_are_refused_first(service: Service) -> None:
    keys = service.state / "keys"
    keys.write_text("secret-key\n")
    keys.chmod(0o644)
    refused = service.serve("--api-key-file", str(keys), status=2)
    assert "0644" in refused["says"]
    assert "secret-key" not in json.dumps(refused)
    with host_listener(service.port):
        refused = service.serve(status=5)
        assert refused["code"] == "D061"
    assert not service.processes()


def host_listener(port: int) -> Any:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener
