"""Stopping: only a process of ours is ever signaled."""

import subprocess
from pathlib import Path

import pytest

from dsv41 import host, run
from dsv41.errors import Unsafe


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
