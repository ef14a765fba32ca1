"""Locks, ports and processes on the real machine."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dsv41 import host
from dsv41.errors import Unsafe, UsageError


def test_a_lock_is_held_by_one_and_freed_by_death(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert host.owner(path) is None
    code = (
        "import sys, time; from pathlib import Path; from dsv41 import host\n"
        f"lock = host.Lock.take(Path({str(path)!r})); lock.write_owner(__import__('os').getpid())\n"
        "print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    assert host.Lock.take(path) is None
    assert host.owner(path) == child.pid
    child.kill()
    child.wait()
    child.stdout.close()
    assert host.owner(path) is None
    lock = host.Lock.take(path)
    assert lock is not None
    lock.close()


def test_looking_does_not_disturb_taking(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(200):
        lock = host.Lock.take(path)
        assert lock is not None
        lock.write_owner(os.getpid())
        assert host.owner(path) == os.getpid()
        lock.close()


def test_a_held_lock_always_names_its_owner(tmp_path: Path) -> None:
    """`serve` and its supervisor write their pids while others look: nobody may see none."""
    lock = host.Lock.take(tmp_path / "lock")
    assert lock is not None
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            lock.write_owner(os.getpid())

    writer = threading.Thread(target=write)
    writer.start()
    found = {host.owner(lock.path) for _ in range(2000)}
    over.set()
    writer.join()
    lock.close()
    assert found == {os.getpid()}


def test_a_taken_port_is_refused_with_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not host.port_is_free("127.0.0.1", port)
        with pytest.raises(Unsafe) as caught:
            host.refuse_taken_port("127.0.0.1", port)
        assert caught.value.code == "D061"
        assert f"--port {host.free_port('127.0.0.1', port)}" in caught.value.fix
    assert host.port_is_free("127.0.0.1", port)


def test_end_terms_then_kills() -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(1, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert not host.end(child.pid, gone=lambda: child.poll() is not None, patience=0.3)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    polite = subprocess.Popen(["sleep", "60"])
    assert host.end(polite.pid, gone=lambda: polite.poll() is not None, patience=5)


def test_a_child_inherits_no_other_descriptor(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(fd, True)
    log = tmp_path / "log"
    host.start(["ls", "-l", "/proc/self/fd"], log=log).wait()
    assert str(tmp_path) + "\n" not in log.read_text()
    os.close(fd)


def test_die_with_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    grandchild = (
        "from dsv41 import host; host.die_with_parent()\n"
        "import time; print(1, flush=True); time.sleep(60)"
    )
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {grandchild!r}], stdout=subprocess.PIPE)\n"
        f"p.stdout.readline(); open({str(pid_file)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    assert host.wait_until(lambda: pid_file.exists() and pid_file.read_text() != "", seconds=10)
    pid = int(pid_file.read_text())
    child.kill()
    child.wait()
    assert host.wait_until(lambda: not alive(pid), seconds=5)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_term_inside_raises_and_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(host.Terminated), host.term_raises():  # noqa: PT012 - the wait is the point
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_folder_that_cannot_be_written() -> None:
    with pytest.raises(UsageError) as caught:
        host.make_folder(Path("/proc/dsv41"))
    assert caught.value.code == "D060"


def test_no_receipt_overwrites_another(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for name in ("r.json", "r-2.json", "r-3.json"):
        assert host.unused(path).name == name
        host.unused(path).touch()


def test_a_receipt_says_where_and_when(tmp_path: Path) -> None:
    path = host.write_receipt(
        tmp_path / "r.json", command="x", started=host.utc_now(), result={"a": 1}
    )
    text = path.read_text()
    assert all(
        word in text
        for word in ('"dsv41.receipt/1"', '"cores"', '"memory_bytes"', '"started": "20')
    )
