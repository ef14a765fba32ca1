"""Run a program of an unpacked root: `python emulate.py ROOT [--bind FROM:TO[:ro]] -- PROGRAM...`.

The program and all its children run in namespaces of their own (user, mount, pid, network), below
ROOT, by qemu's user emulation where the root is of arm64 and the machine is not. The interpreter is
registered in a binfmt_misc that belongs to the new user namespace alone (kernel 6.7 and newer,
Documentation/admin-guide/binfmt-misc.rst), so nothing of the host changes. There is no network but
a loopback. The environment is the caller's; the exit status is the program's, 128 + N by signal N.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import platform
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# linux/sched.h, linux/mount.h, linux/prctl.h, linux/sockios.h; the same on x86-64 and arm64
NEW_USER, NEW_MOUNT, NEW_PID, NEW_NET = 0x10000000, 0x00020000, 0x20000000, 0x40000000
BIND, RECURSIVE, PRIVATE, READ_ONLY, REMOUNT, DETACH = 0x1000, 0x4000, 0x40000, 0x1, 0x20, 0x2
KEPT = 0x2 | 0x4 | 0x8 | 0x400 | 0x800  # nosuid, nodev, noexec, noatime, nodiratime
DEATH_SIGNAL = 1
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 0x1

# ELF header of a 64-bit little-endian program (e_type 2 or 3) of machine 183, EM_AARCH64; flag
# F: the interpreter is opened now, so that ROOT need not have it
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
INTERPRETER = "qemu-aarch64-static"
DEVICES = ("null", "zero", "full", "random", "urandom")

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """What the machine does not allow; the text begins with its code."""


def _asked(what: str, call: Callable[..., int], *words: object) -> None:
    """A call of libc; Refused D405 says what was refused and why."""
    if call(*words) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise Refused(
            f"D405 This machine does not allow {what}: {reason}. A container with its own user "
            "namespace, mounts and binfmt_misc needs Linux 6.7 or newer, and no rule against "
            "user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_*)."
        )


def _mount(source: str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode(), flags, options.encode())
    _asked(f"mounting {kind or source} at {target}", _libc.mount, *words)


def _bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Show a file or folder at a place of the root, which is made where it is missing."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(str(source), target, "", BIND | RECURSIVE)
    if read_only:
        # what the source's own mount forbids has to stay forbidden, mount_namespaces(7)
        kept = os.statvfs(target).f_flag & KEPT
        _mount("none", target, "", REMOUNT | BIND | READ_ONLY | kept)


def _map_ids(process: int) -> None:
    """As root all ids below 65536, so that every owner of the root exists; else the caller's."""
    own = os.geteuid(), os.getegid()
    if own[0] != 0:
        Path(f"/proc/{process}/setgroups").write_text("deny")
    for name, mine in zip(("uid_map", "gid_map"), own, strict=True):
        Path(f"/proc/{process}/{name}").write_text("0 0 65536" if own[0] == 0 else f"0 {mine} 1")


def _enter(root: Path, binds: Sequence[str]) -> None:
    """Mounts below the root, then the root itself. Runs as the first process of the namespaces."""
    _mount("none", Path("/"), "", RECURSIVE | PRIVATE)
    _mount(str(root), root, "", BIND | RECURSIVE)
    for name in ("proc", "dev", "tmp"):
        (root / name).mkdir(exist_ok=True)
    _mount("proc", root / "proc", "proc")
    _mount("tmpfs", root / "dev", "tmpfs", options="mode=755")
    _mount("tmpfs", root / "tmp", "tmpfs", options="mode=1777")
    for name in DEVICES:
        _bind(Path("/dev", name), root / "dev" / name)
    (root / "dev/shm").mkdir()
    _mount("tmpfs", root / "dev/shm", "tmpfs", options="mode=1777")
    for link, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev" / link).symlink_to(f"/proc/self/{target}")
    for source, inside, *mode in (bind.split(":") for bind in binds):
        _bind(Path(source), root / inside.lstrip("/"), read_only=mode == ["ro"])
    if platform.machine() != "aarch64":
        _register(root / "proc/sys/fs/binfmt_misc")
    os.chdir(root)
    old = b"."  # pivot_root(2): the old root comes to lie on the new one, and is taken away there
    _asked("pivot_root", lambda: _libc.syscall(_PIVOT_ROOT[platform.machine()], old, old))
    _asked("leaving the old root", _libc.umount2, old, DETACH)
    os.chdir("/")


_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # no function of glibc


def _register(place: Path) -> None:
    program = shutil.which(INTERPRETER)
    if program is None:
        raise Refused(f"D405 {INTERPRETER} is not installed (Debian: qemu-user-static).")
    _mount("binfmt_misc", place, "binfmt_misc")
    line = f":arm64:M::{MAGIC}:{MASK}:{program}:F"
    try:
        (place / "register").write_text(line)
    except OSError as error:
        raise Refused(f"D405 {INTERPRETER} cannot be registered: {error.strerror}.") from error


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        question = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, GET_FLAGS, question), 16)
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", flags | UP))


def _child(body: Callable[[], None]) -> int:
    """The id of a forked process, which ends with us; with 125 where `body` raises or returns."""
    process = os.fork()
    if process:
        return process
    try:
        _libc.prctl(DEATH_SIGNAL, signal.SIGKILL)
        body()
    except (Refused, OSError) as error:
        sys.stderr.write(f"{error}\n")
    os._exit(125)


def _status(process: int) -> int:
    """How a child ended, once it has; other children that end meanwhile are taken note of too."""
    ended, status = os.wait()
    while ended != process:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def run(root: Path, program: Sequence[str], *, binds: Sequence[str] = ()) -> int:
    """Run a program below `root` with this process's environment; its exit status.

    `binds` are FROM:TO[:ro] with absolute paths. What is refused is said on stderr; status 125.
    """
    root = root.resolve()
    unshared, mapped = os.pipe(), os.pipe()

    def first() -> None:
        """Process 1, which signals do not end: so the program is its child."""
        _enter(root, binds)
        os._exit(_status(_child(lambda: os.execvp(program[0], list(program)))))  # noqa: S606

    def between() -> None:
        """In the new namespaces; children of this process are in the new pid namespace."""
        _asked("a user namespace", _libc.unshare, NEW_USER)
        _libc.prctl(DEATH_SIGNAL, signal.SIGKILL)  # new credentials cleared it
        os.write(unshared[1], b".")
        os.read(mapped[0], 1)
        _asked("namespaces", _libc.unshare, NEW_MOUNT | NEW_PID | NEW_NET)
        _loopback_up()
        os._exit(_status(_child(first)))

    process = _child(between)
    os.close(unshared[1])
    if os.read(unshared[0], 1):
        _map_ids(process)
    os.write(mapped[1], b".")
    return _status(process)


def main() -> int:
    """Do it."""
    parser = argparse.ArgumentParser(description="Run a program of an unpacked arm64 root.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--bind", action="append", default=[], metavar="FROM:TO[:ro]")
    parser.add_argument("program", nargs="+")
    asked = parser.parse_args()
    if not asked.root.is_dir():
        parser.error(f"{asked.root} is no folder")
    return run(asked.root, asked.program, binds=asked.bind)


if __name__ == "__main__":
    sys.exit(main())
