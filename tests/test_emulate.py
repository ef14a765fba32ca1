"""Programs of an arm64 root, run on this machine in namespaces of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import emulate
from nix_images import ROOT

TOOL = ROOT / "nix" / "images" / "tools" / "emulate.py"
COMPILER = "aarch64-linux-gnu-g++"
# prints what it sees, then does what its first word says
PROGRAM = r"""
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

int main(int count, char **words) {
  const char *todo = words[1];
  if (!strcmp(todo, "exit")) return atoi(words[2]);
  if (!strcmp(todo, "die")) raise(SIGKILL);
  if (!strcmp(todo, "child")) { execl("/program", "program", "look", nullptr); return 9; }
  if (!strcmp(todo, "sleep")) { puts("asleep"); fflush(stdout); sleep(60); }
  if (!strcmp(todo, "look")) {
    utsname name;
    uname(&name);
    printf("%s %d %d", name.machine, getuid(), getpid());
  }
  if (!strcmp(todo, "read")) {
    FILE *file = fopen(words[2], "r");
    for (int c; file && (c = fgetc(file)) != EOF;) putchar(c);
  }
  if (!strcmp(todo, "write")) {
    FILE *file = fopen(words[2], "w");
    return !file || fputs("written", file) < 0 || fclose(file);
  }
  if (!strcmp(todo, "connect")) {
    sockaddr_in to{AF_INET, htons(80), {inet_addr(words[2])}, {}};
    connect(socket(AF_INET, SOCK_STREAM, 0), (sockaddr *)&to, sizeof to);
    perror(words[2]);
  }
  return 0;
}
"""

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(emulate.INTERPRETER)),
        reason=f"needs {COMPILER} and {emulate.INTERPRETER} (make test-image installs them)",
    )
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    command = [COMPILER, "-static", "-O1", "-x", "c++", "-", "-o", str(folder / "program")]
    subprocess.run(command, input=PROGRAM, text=True, check=True, timeout=60)
    return folder


def emulated(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), str(root), *words]
    return subprocess.run(command, check=False, text=True, capture_output=True, timeout=60)


def test_an_arm64_program_runs_with_its_children_and_is_not_process_one(root: Path) -> None:
    done = emulated(root, "--", "/program", "look")
    assert (done.returncode, done.stdout.split()) == (0, ["aarch64", "0", "2"]), done.stderr
    assert emulated(root, "--", "/program", "child").stdout.startswith("aarch64 ")


@pytest.mark.parametrize(
    ("words", "status"), [(("exit", "7"), 7), (("die",), 128 + 9), (("exit", "0"), 0)]
)
def test_its_end_is_the_end_of_the_tool(root: Path, words: tuple[str, ...], status: int) -> None:
    assert emulated(root, "--", "/program", *words).returncode == status


def test_nothing_but_itself_can_be_reached(root: Path) -> None:
    assert "Network is unreachable" in emulated(root, "--", "/program", "connect", "1.1.1.1").stderr
    # refused, so the loopback is up
    own = emulated(root, "--", "/program", "connect", "127.0.0.1")
    assert "Connection refused" in own.stderr


def test_only_what_is_bound_of_the_host_can_be_seen_and_written(root: Path, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from the host\n")
    bind = ("--bind", f"{tmp_path}:/here")
    inside = emulated(root, *bind, "--", "/program", "read", "/here/given")
    assert inside.stdout == "from the host\n", inside.stderr
    assert emulated(root, *bind, "--", "/program", "write", "/here/new").returncode == 0
    assert (tmp_path / "new").read_text() == "written"
    kept = ("--bind", f"{tmp_path}:/here:ro")
    assert emulated(root, *kept, "--", "/program", "write", "/here/new2").returncode == 1
    assert not (tmp_path / "new2").exists()
    assert emulated(root, "--", "/program", "read", str(tmp_path / "given")).stdout == ""
    assert emulated(root, "--", "/program", "write", "/tmp/new").returncode == 0  # noqa: S108
    assert not (root / "tmp" / "new").exists()


def test_the_host_keeps_its_interpreters_and_mounts(root: Path) -> None:
    place, mounts = Path("/proc/sys/fs/binfmt_misc"), Path("/proc/self/mountinfo")
    before = sorted(place.iterdir()), mounts.read_text()
    assert emulated(root, "--", "/program", "look").returncode == 0
    assert (sorted(place.iterdir()), mounts.read_text()) == before


def test_a_killed_tool_leaves_no_process(root: Path) -> None:
    command = [sys.executable, str(TOOL), str(root), "--", "/program", "sleep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        assert tool.stdout is not None
        assert tool.stdout.readline() == "asleep\n"
        mark = str(root).encode()
        assert len(_processes(mark)) == 3
        tool.kill()
    end = time.monotonic() + 10
    while _processes(mark) and time.monotonic() < end:
        time.sleep(0.02)
    assert _processes(mark) == []


def _processes(mark: bytes) -> list[int]:
    """Processes whose command line names the root: the tool, and its forks."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in words and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def test_what_cannot_be_done_is_said(root: Path, tmp_path: Path) -> None:
    gone = emulated(tmp_path / "nowhere", "--", "/program")
    assert (gone.returncode, "is no folder" in gone.stderr) == (2, True)
    missing = emulated(root, "--", "/nosuch")
    assert (missing.returncode, "No such file" in missing.stderr) == (125, True)
    # a user without an identity in its own namespace may not make another one
    command = ["unshare", "--user", sys.executable, str(TOOL), str(root), "--", "/program"]
    refused = subprocess.run(command, check=False, text=True, capture_output=True, timeout=60)
    assert refused.returncode == 125
    assert refused.stderr.startswith("D405 This machine does not allow a user namespace: ")


def test_without_the_emulator_that_is_said(root: Path) -> None:
    command = [sys.executable, str(TOOL), str(root), "--", "/program", "look"]
    done = subprocess.run(
        command, check=False, text=True, capture_output=True, env={"PATH": "/nowhere"}
    )
    says = "D405 qemu-aarch64-static is not installed (Debian: qemu-user-static)."
    assert (done.returncode, done.stderr.strip()) == (125, says)
