"""A real sshd on loopback, with keys that live as long as the test."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv41 import host

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True)
class Server:
    """A running sshd and the ssh options that know it."""

    folder: Path
    port: int
    options: tuple[str, ...]
    destination: str


def keygen(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Server]:
    """An sshd whose files lie in a folder; skips the test where there is none.

    `words` are further options of its configuration, as `SetEnv=NAME=VALUE`.
    """
    if not Path(SSHD).exists():
        pytest.skip("no sshd on this machine; install it with: apt-get install openssh-server")
    host_key, user_key = keygen(folder / "host"), keygen(folder / "user")
    shutil.copy(f"{user_key}.pub", folder / "authorized_keys")
    port = host.free_port("127.0.0.1", 20220)
    public = Path(f"{host_key}.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    config = [
        *("-f", "/dev/null", "-h", str(host_key), "-p", str(port)),
        *("-o", "ListenAddress=127.0.0.1", "-o", "StrictModes=no", "-o", "UsePAM=no"),
        *("-o", f"AuthorizedKeysFile={folder}/authorized_keys", "-o", "PasswordAuthentication=no"),
    ]
    config += [part for word in words for part in ("-o", word)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", *config], stdout=log, stderr=log)
    assert host.wait_until(lambda: not host.port_is_free("127.0.0.1", port), seconds=10)
    options = ["-p", str(port), "-i", str(user_key), "-o", "IdentitiesOnly=yes"]
    options += ["-o", f"UserKnownHostsFile={folder}/known_hosts", "-F", "/dev/null"]
    try:
        yield Server(folder, port, tuple(options), f"{getpass.getuser()}@127.0.0.1")
    finally:
        process.terminate()
        process.wait()
