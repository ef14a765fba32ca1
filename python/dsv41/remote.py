"""Commands on a host: over the OpenSSH client, or here when the host is `local`.

No ssh library: the user's own configuration, keys, agents and known_hosts count, and a host key
that changed is an error here as it is in their shell. Nothing ever asks: BatchMode.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from dsv41.errors import Unreachable

LOCAL = "local"
_SSH_FAILED = 255  # ssh(1): the exit status of ssh's own errors; a command may use it as well
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-T")


def prefix(destination: str, options: Sequence[str] = ()) -> list[str]:
    """The words that come before a shell command to run it on a host."""
    if destination == LOCAL:
        return ["sh", "-c"]
    return ["ssh", *_OPTIONS, *options, destination, "--"]


def run(
    destination: str, command: str, *, seconds: float = 60.0, options: Sequence[str] = ()
) -> tuple[int, str, str]:
    """Run a shell command on a host: its exit status, stdout and stderr.

    Raises Unreachable D068 when the host cannot be reached, refuses us or has another host key, and
    TimeoutError when the command is not done in time.
    """
    wrapped = command if destination == LOCAL else f"sh -c {shlex.quote(command)}"
    argv = [*prefix(destination, options), wrapped]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            text=True,
            errors="replace",  # a log may hold any bytes
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"not done within {seconds:.0f} s") from error
    if done.returncode == _SSH_FAILED and destination != LOCAL and _is_ssh_error(done.stderr):
        says = done.stderr.strip().splitlines()
        raise Unreachable(
            "D068",
            f"{destination} cannot be reached: {says[-1] if says else 'ssh gave no reason'}.",
            fix=f"ssh {destination} true",
        )
    return done.returncode, done.stdout, done.stderr


def _is_ssh_error(stderr: str) -> bool:
    """Whether ssh itself failed: it always says why; a remote 255 alone may be silent."""
    marks = ("ssh:", "Connection", "Permission denied", "Host key", "kex_exchange")
    return any(mark in stderr for mark in marks)
