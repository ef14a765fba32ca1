"""The service as its users meet it: the real command, real processes, real signals."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv41 import host, observe, run
from dsv41.api import Endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.xdist_group("service")]


class Service:
    """One state folder, driven by the command line only."""

    def __init__(self, state: Path) -> None:
        self.state = state
        # below the range of outgoing connections, and another one in each test process
        self.port = host.free_port("127.0.0.1", 10000 + os.getpid() % 9000)
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.run_dir = run.RunDir.of(state)

    def call(self, *words: str, status: int = 0) -> Any:
        """Run `dsv41 WORDS --state-dir ... --json`; its document."""
        command = [sys.executable, "-m", "dsv41", *words, "--state-dir", str(self.state), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == status, done.stderr + done.stdout
        return json.loads(done.stdout)

    def serve(self, *words: str, status: int = 0) -> Any:
        return self.call(
            "serve",
            "--profile",
            "local",
            "--port",
            str(self.port),
            "--detach",
            *words,
            status=status,
        )

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
    started = service.serve()
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
    # serving twice is refused and disturbs nothing
    refused = service.serve(status=5)
    assert refused["code"] == "D063"
    assert Endpoint(url=service.url).status("/ready") == 200
    assert service.call("stop")["status"] == "stopped"
    assert service.all_gone()
    assert service.call("status", status=1)["status"] == "stopped"
    assert service.call("stop")["status"] == "nothing runs"


def test_kill_9_of_anyone_leaves_nothing_and_serve_starts_again(service: Service) -> None:
    service.serve("--tp", "2")
    supervisor = service.run_dir.supervisor()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    assert service.all_gone()
    assert service.call("status", status=1)["status"] == "failed"
    service.serve("--tp", "2")
    ranks = observe.look(service.run_dir)["ranks"]
    os.kill(ranks[1]["pid"], signal.SIGKILL)
    assert service.all_gone()
    after = service.call("status", status=1)
    assert after["status"] == "failed"
    assert service.serve("--tp", "1")["status"] == "ready"


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


def test_an_attached_serve_detaches_on_int_and_stops_on_term(service: Service) -> None:
    command = [sys.executable, "-m", "dsv41", "serve", "--tp", "1", "--port", str(service.port)]
    command += ["--state-dir", str(service.state)]
    attached = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert attached.stdout is not None
    assert attached.stdout.readline() == f"ready {service.url}\n"
    attached.send_signal(signal.SIGINT)
    _, words = attached.communicate(timeout=20)
    assert attached.returncode == 0
    assert "dsv41 stop" in words
    assert Endpoint(url=service.url).status("/ready") == 200
    service.call("stop")
    again = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert again.stdout is not None
    assert again.stdout.readline().startswith("ready")
    again.terminate()
    again.communicate(timeout=30)
    assert again.returncode == 0
    assert service.all_gone()


def test_detach_holds_no_descriptor_of_its_caller(service: Service) -> None:
    """A pipe that the caller reads to its end must end when `serve --detach` returns."""
    command = f"{sys.executable} -m dsv41 serve --tp 1 --port {service.port} --detach"
    started = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", f"{command} --state-dir {service.state} 2>&1 | cat"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert f"ready {service.url}" in done.stdout
    assert time.monotonic() - started < 60
