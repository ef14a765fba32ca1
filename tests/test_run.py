"""Whose service it is: only ours is signaled, only ours is ready, and a folder has one."""

import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dsv41 import fleet, host, observe, plan, profile, run
from dsv41.errors import Unsafe


def local_plan(state: Path, *, port: int = 8888) -> plan.Plan:
    chosen = profile.load("local").with_values("test", tp=1)
    here = fleet.loopback(tp=1, state_dir=str(state), port=port, master_port=20000)
    return plan.plan(chosen, here, {})


def test_a_stranger_in_the_lock_file_is_not_signaled(tmp_path: Path) -> None:
    folder = run.RunDir.of(tmp_path)
    folder.path.mkdir()
    lock = host.Lock.take(folder.lock_file)
    assert lock is not None
    stranger = subprocess.Popen(["sleep", "60"])
    lock.write_owner(stranger.pid)
    with pytest.raises(Unsafe) as caught:
        run.stop_service(tmp_path)
    assert caught.value.code == "D069"
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
    lock.close()


def test_of_two_starts_one_is_refused_before_it_makes_anything(tmp_path: Path) -> None:
    first = local_plan(tmp_path)
    with run.claim(first):
        with pytest.raises(Unsafe) as caught, run.claim(first):
            pass
        assert caught.value.code == "D063"
        assert str(os.getpid()) in caught.value.says
    with run.claim(first):  # given back
        pass


class Other(BaseHTTPRequestHandler):
    """Answers /ready as another service does."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
        pass


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b'{"status": "ok", "service": "%s"}', ""),
        (b'{"status": "ok", "service": "0123456789abcdef"}', "found 0123456789abcdef"),
        (b'{"status": "ok"}', "found None"),
        (b"ok", "found None"),
    ],
)
def test_a_200_of_another_service_is_not_ready(tmp_path: Path, body: bytes, wrong: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        ours = local_plan(tmp_path, port=server.server_address[1])
        Other.body = body.replace(b"%s", run.service_name(ours).encode())
        said = observe.readiness(ours)
        server.shutdown()
        thread.join()
    assert said.endswith(wrong)
    assert bool(said) == bool(wrong)
    assert "does not answer" in observe.readiness(ours)
