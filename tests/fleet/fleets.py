"""The namespace fleet: three or four machines, their cables, a desk with the operator's command."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv41.api import Endpoint
from fleet.cables import MANAGEMENT, Network
from fleet.image import Image
from fleet.machines import IMAGES, Machine, fair_share, run

API_PORT = 8888
SSH_CONFIG = """Host 10.201.*
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


@dataclass(frozen=True, kw_only=True)
class Said:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    def __str__(self) -> str:
        return f"status {self.status} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


@dataclass(kw_only=True)
class Fleet:
    """Machines on their cables. `desk` is where the operator types: this one, other ssh keys."""

    folder: Path
    network: Network
    machines: list[Machine]
    desk: Machine
    image: Image
    topology: str
    fabric: list[Any] = field(default_factory=list)

    def __getitem__(self, rank: int) -> Machine:
        return self.machines[rank]

    @property
    def file(self) -> Path:
        """The fleet file."""
        return self.folder / "fleet.toml"

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{self.machines[0].address}:{API_PORT}/v1"

    @property
    def endpoint(self) -> Endpoint:
        """A client of it."""
        return Endpoint(url=self.url, timeout=60)

    def write(self, *, top: str = "", nodes: dict[int, str] | None = None) -> Path:
        """Write the fleet file; `top` and `nodes` add lines to the fleet and to a node's table."""
        lines = [f'topology = "{self.topology}"', 'state_dir = "/srv/dsv41"']
        lines += ['cache_dir = "/srv/cache"', top]
        for rank, machine in enumerate(self.machines):
            hca = ["rocep1s0f0", "rocep1s0f1"][: len(self.fabric[rank])]
            lines += ["[[nodes]]", f'name = "{machine.name}"', f'ssh = "root@{machine.address}"']
            lines += [f'address = "{machine.address}"', f"hca = {json.dumps(hca)}"]
            lines += [f"fabric = {json.dumps(self.fabric[rank])}"]
            lines += [f'socket_ifname = "{MANAGEMENT}"', 'model_dir = "/srv/model"']
            lines += ['rows_dir = "/srv/rows"', (nodes or {}).get(rank, "")]
        self.file.write_text("\n".join(lines) + "\n")
        return self.file

    def furnish(self, rank: int, *, checkpoint: Path, rows: Path) -> None:
        """Put the checkpoint and the rows of one rank where the fleet file has them."""
        size = len(self.machines)
        model, own = (self[rank].own(f"/srv/{name}") for name in ("model", "rows"))
        shutil.copytree(checkpoint, model, copy_function=os.link, dirs_exist_ok=True)
        own.mkdir(exist_ok=True)
        for file in rows.glob(f"*-r{rank}of{size}-*"):
            shutil.copy(file, own)

    def ask(self, text: str) -> str:
        """One answer of the endpoint."""
        said = [{"role": "user", "content": text}]
        answer = self.endpoint.chat(model="dsv41-fixture", messages=said)
        return str(answer["choices"][0]["message"]["content"])

    def command(self, *words: str) -> list[str]:
        """The operator's command, run at the desk."""
        home = f"HOME={self.folder}"  # where receipts go
        return self.desk.enter("env", home, sys.executable, "-m", "dsv41", *words)

    def dsv41(self, *words: str, seconds: float = 120) -> Said:
        """Run a verb of the operator's command to its end."""
        began = time.monotonic()
        done = subprocess.run(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        took = time.monotonic() - began
        return Said(status=done.returncode, out=done.stdout, err=done.stderr, seconds=took)

    def halt(self) -> None:
        """End everything."""
        self.network.unplug()
        for machine in (*self.machines, self.desk, self.network.switch):
            machine.halt()

    def boot(self, machine: Machine) -> None:
        """Start a machine, its cable to the management network and its sshd."""
        machine.boot()
        self.network.join(machine)
        machine.start_sshd()

    def reboot(self, rank: int) -> None:
        """Take the power of a machine away and give it back; fabric cables stay out."""
        self.network.leave(self.machines[rank])
        self.machines[rank].halt()
        self.boot(self.machines[rank])


def keygen(path: Path) -> str:
    """Make a key; its public half."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
    return path.with_name(f"{path.name}.pub").read_text()


def _machine(folder: Path, name: str, address: str, *, image: Image, user: str) -> Machine:
    own = folder / name / "own" / "root"
    own.mkdir(parents=True)
    (own / "authorized_keys").write_text(user)
    public = keygen(own / "host").split()
    with (folder / "known_hosts").open("a") as known:
        known.write(f"{address} {public[0]} {public[1]}\n")
    binds = {IMAGES: image.store}
    return Machine(name=name, folder=folder / name, address=address, binds=binds)


@contextlib.contextmanager
def running(
    size: int, *, image: Image, topology: str, bare: tuple[int, ...] = ()
) -> Iterator[Fleet]:
    """A fleet whose machines are up and answer ssh; nothing of it is left afterwards.

    The ranks in `bare` have no image.
    """
    if os.geteuid():
        raise AssertionError("namespaces, mounts and network devices need root")
    folder = Path(tempfile.mkdtemp(prefix="fleet-", dir=_place()))
    user = keygen(folder / "user")
    (folder / "ssh_config").write_text(SSH_CONFIG.format(folder=folder))
    switch = Machine(name="switch", folder=folder / "switch")
    network = Network(switch=switch, subnet=_free_subnet())
    machines = [
        _machine(folder, f"spark{n + 1}", network.address(11 + n), image=image, user=user)
        for n in range(size)
    ]
    for rank in bare:
        machines[rank].binds.clear()
    config = {"/etc/ssh/ssh_config": folder / "ssh_config"}
    desk = Machine(name="desk", folder=folder / "desk", network=False, binds=config)
    fleet = Fleet(
        folder=folder,
        network=network,
        machines=machines,
        desk=desk,
        image=image,
        topology=topology,
    )
    with fair_share(size), _ended(fleet):
        switch.boot()
        network.power()
        desk.boot()
        for machine in machines:
            fleet.boot(machine)
        wired = network.triangle if topology == "triangle" else network.switched
        fleet.fabric = list(wired(machines))
        fleet.write()
        yield fleet


@contextlib.contextmanager
def _ended(fleet: Fleet) -> Iterator[None]:
    try:
        yield
    finally:
        fleet.halt()
        shutil.rmtree(fleet.folder)


def _place() -> Path:
    # below /var/tmp, for machines hide /tmp, and unix sockets need short paths
    return Path("/var/tmp")  # noqa: S108


def _free_subnet() -> int:
    taken = run("ip", "-o", "-4", "address")
    numbers = itertools.cycle(range(1, 250))
    start = itertools.islice(numbers, os.getpid() % 249, None)
    return next(n for n in start if f"10.201.{n}." not in taken)
