"""One machine of the namespace fleet: own processes, mounts, network, name, podman store, sshd.

A machine is a process in fresh namespaces; every process of the machine lives below it, and with it
all of them end, its mounts and its network too. So nothing is left when a test run is killed.
Machines see the files of this one, except that each has its own /run, /dev/shm and its own folders
over OWN: a path below /srv is another folder on each machine, as on Sparks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

INIT = Path(__file__).with_name("init.py")
PYTHON = "/usr/bin/python3"  # the system's own, as on a node: 3.11 or newer
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
OWN = ("/srv", "/root", "/tmp")  # noqa: S108
IMAGES = "/srv/images"  # the image store that all machines read
# cgroup v1: all containers of podman together have the cores that one process has
GROUP_SHARE = Path("/sys/fs/cgroup/cpu/libpod_parent/cpu.shares")
FRESH = ("/run", "/dev/shm")  # noqa: S108 - a tmpfs each, empty after a boot
# the switches of podman that this kind of kernel and a machine without systemd need
CONTAINERS_CONF = """[containers]
netns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
STORAGE_CONF = """[storage]
driver = "overlay"
graphroot = "/srv/containers"
runroot = "/run/containers/storage"
[storage.options]
additionalimagestores = [{stores}]
"""


def run(*argv: str, seconds: float = 60) -> str:
    """What a command of this machine says; an assertion when it fails."""
    done = subprocess.run(
        argv, text=True, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def fair_share(containers: int) -> Iterator[None]:
    """Give containers as much of the cores as that many processes outside of them have."""
    v1 = GROUP_SHARE.parents[1].is_dir()
    if v1:
        GROUP_SHARE.parent.mkdir(exist_ok=True)
        before = GROUP_SHARE.read_text()
        GROUP_SHARE.write_text(str(1024 * 4 * containers))  # four busy processes or threads in each
    try:
        yield
    finally:
        if v1:
            GROUP_SHARE.write_text(before)


@dataclass(kw_only=True)
class Machine:
    """A machine; `folder` holds what is its own, `binds` what else lies where: path there, here.

    One without a network of its own keeps this machine's, and its folders: the operator's desk.
    """

    name: str
    folder: Path
    address: str = ""
    network: bool = True
    binds: dict[str, Path] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    pid: int = 0

    def boot(self) -> None:
        """Start it, with empty /run and /dev/shm; no sshd yet and no cables."""
        for path in (*OWN, *(p for p, source in self.binds.items() if source.is_dir())):
            self.own(path).mkdir(parents=True, exist_ok=True)
        self._configure()
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child", "--fork", "--pid"]
        words += ["--mount", "--propagation", "private", "--mount-proc", "--uts", "--ipc"]
        words += ["--net"] if self.network else []
        script = self._host_script() if self.network else self._desk_script()
        with (self.folder / "boot.log").open("a") as log:
            self.process = subprocess.Popen(
                [*words, "sh", "-ec", script, "boot", INIT.read_text()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n", f"{self.name} does not boot"
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        self.pid = int(Path(children).read_text().split()[0])

    def _configure(self) -> None:
        etc = self.folder / "containers"
        shutil.copytree("/etc/containers", etc, dirs_exist_ok=True)
        (etc / "containers.conf").write_text(CONTAINERS_CONF)
        stores = f'"{IMAGES}"' if IMAGES in self.binds else ""
        (etc / "storage.conf").write_text(STORAGE_CONF.format(stores=stores))

    def _host_script(self) -> str:
        lines = [f"hostname {self.name}", f"mount --bind {self.folder} /mnt"]
        lines += [f"mount --bind {here} /mnt/own{there}" for there, here in self.binds.items()]
        lines += [f"mount -t tmpfs -o mode=1777,size=2g own {path}" for path in FRESH]
        lines += [f"mount --rbind /mnt/own{path} {path}" for path in OWN]
        lines += ["mount --bind /mnt/containers /etc/containers", "umount -R -l /mnt", "cd /"]
        lines += ["mkdir -p /run/sshd /run/lock", "ip link set lo up"]
        return "\n".join([*lines, f'exec {PYTHON} -c "$1"'])

    def _desk_script(self) -> str:
        lines = [f"mount --bind {here} {there}" for there, here in self.binds.items()]
        return "\n".join([*lines, f'exec {PYTHON} -c "$1"'])

    def enter(self, *argv: str) -> list[str]:
        """The words that run a command there."""
        spaces = ["--mount", "--pid", "--uts", "--ipc", *(["--net"] if self.network else [])]
        return ["nsenter", "--target", str(self.pid), *spaces, "--wd=/", "--", *argv]

    def run(self, *argv: str, seconds: float = 60) -> str:
        """What a command says there, not by ssh; an assertion when it fails."""
        return run(*self.enter(*argv), seconds=seconds)

    def status(self, *argv: str) -> int:
        """The exit status of a command there."""
        return subprocess.run(
            self.enter(*argv), capture_output=True, check=False, timeout=60
        ).returncode

    def own(self, path: str) -> Path:
        """Where a path of OWN of that machine lies on this one."""
        return self.folder / "own" / path.strip("/")

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process there by its pid there."""
        self.run("kill", f"-{number.value}", str(pid))

    def pids(self, *words: str) -> list[int]:
        """The pids there of processes whose command line has all the words as arguments."""
        found = []
        listed = self.run(PYTHON, "-c", _LIST)
        for line in listed.splitlines():
            pid, _, rest = line.partition("\t")
            if set(words) <= set(rest.split("\x1f")):
                found.append(int(pid))
        return found

    def start_sshd(self) -> None:
        """Serve ssh at the machine's address, with its own key; only our own user's key may in."""
        words = [SSHD, "-f", "/dev/null", "-h", "/root/host", "-p", "22"]
        for option in (
            f"ListenAddress={self.address}",
            "StrictModes=no",
            "UsePAM=no",
            "PasswordAuthentication=no",
            "PermitRootLogin=yes",
            "PidFile=/run/sshd.pid",
            "AuthorizedKeysFile=/root/authorized_keys",
            "MaxStartups=100",
        ):
            words += ["-o", option]
        self.run(*words)

    def stop_sshd(self) -> None:
        """Kill the daemon and every connection that it has."""
        for pid in self.run("pgrep", "-x", "sshd").split():
            with contextlib.suppress(AssertionError):  # it ended with the one before
                self.kill(int(pid))

    def halt(self) -> None:
        """End the machine and everything on it at once, as a lost power cord does."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        self._remove_groups()

    def _remove_groups(self) -> None:
        """The control groups of its containers, which the kernel leaves behind empty."""
        containers = self.own("/srv/containers/overlay-containers")
        for found in containers.iterdir() if containers.is_dir() else ():
            for group in Path("/sys/fs/cgroup").glob(f"*/libpod_parent/*{found.name}*"):
                _remove_group(group)


def _remove_group(group: Path) -> None:
    for child in [path for path in group.iterdir() if path.is_dir()]:
        _remove_group(child)
    for _ in range(50):  # a process that was killed leaves its group a moment later
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


_LIST = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().rstrip("\\0").split("\\0")
    except OSError:
        continue
    print(pid, "\\x1f".join(words).replace("\\n", " "), sep="\\t")
"""
