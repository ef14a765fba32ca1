"""`dsv41 share` between two small machines with Debian's kernel: NFS for real, over ssh and sudo.

`make test-nfs` makes the disk of the machines (scripts/test-nfs.sh) and asks for these tests. The
machines run in qemu without KVM, a minute a boot; their network is a wire between the two and a
way in for ssh, on loopback.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsv41.host import free_port, wait_until

pytestmark = [pytest.mark.nfs, pytest.mark.timeout(900)]
MADE = Path(__file__).parent.parent / ".cache" / "nfs"
MODEL = "/models/DeepSeek-V4.1-Flash"
WIRE = {1: "10.77.0.1", 2: "10.77.0.2"}
UNIT = r"models-DeepSeek\x2dV4.1\x2dFlash"
FLEET = """topology = "switch"
nfs_server = "{server}"
state_dir = "/var/lib/dsv41"
sts_table = "{table}"
"""
NODE = """[[nodes]]
name = "spark{n}"
ssh = "ssh://spark@127.0.0.1:{port}"
sudo = true
address = "{address}"
hca = ["rocep1s0f0"]
fabric = ["10.78.0.{n}/24"]
socket_ifname = "eth1"
model_dir = "{model}"
rows_dir = "/var/lib/dsv41/rows"
"""


@dataclass
class Machine:
    """A running machine; `ask` is a command as root in it."""

    number: int
    port: int
    process: subprocess.Popen[bytes]
    monitor: Path
    ssh: list[str] = field(default_factory=list)

    def run(self, command: str, *, seconds: float = 90) -> subprocess.CompletedProcess[str]:
        words = [*self.ssh, f"ssh://spark@127.0.0.1:{self.port}", "sudo", "sh", "-c"]
        argv = [*words, f"'{command}'"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, check=False)

    def ask(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def boots(self) -> None:
        """Wait until ssh answers and the boot is over."""
        up = "systemctl is-system-running --wait; systemctl is-active network-online.target"
        assert wait_until(lambda: self._answers("true"), seconds=900, every=3)
        assert self._answers(up, seconds=240)

    def _answers(self, command: str, *, seconds: float = 20) -> bool:
        try:
            return self.run(command, seconds=seconds).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def power_cut(self) -> None:
        """What a power cut and a boot are to the machine."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(self.monitor))
            monitor.sendall(b"system_reset\n")
            time.sleep(1)


def start(number: int, folder: Path, wire: int) -> Machine:
    disk, monitor = folder / f"{number}.qcow2", folder / f"m{number}"
    base = ["-b", str(MADE / "disk.img"), "-F", "raw"]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *base, str(disk)], check=True)
    port = free_port("127.0.0.1", 17720 + number)
    end = f"{'listen' if number == 1 else 'connect'}=127.0.0.1:{wire}"
    append = f"root=/dev/vda rw console=ttyS0 quiet systemd.hostname=spark{number} net.ifnames=0"
    argv = ["qemu-system-x86_64", "-accel", "tcg", "-m", "768", "-nographic"]
    argv += ["-kernel", str(MADE / "kernel"), "-initrd", str(MADE / "initrd"), "-append", append]
    argv += ["-drive", f"file={disk},if=virtio,format=qcow2"]
    argv += ["-netdev", f"user,id=way,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"]
    argv += ["-device", f"virtio-net-pci,netdev=way,mac=52:54:00:bb:00:0{number}"]
    argv += ["-netdev", f"socket,id=wire,{end}"]
    argv += ["-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:aa:00:0{number}"]
    argv += ["-monitor", f"unix:{monitor},server,nowait", "-serial", f"file:{folder}/{number}.log"]
    with (folder / f"qemu{number}.log").open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    return Machine(number=number, port=port, process=process, monitor=monitor)


@pytest.fixture(scope="module")
def machines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Machine, Machine]]:
    if request.config.option.markexpr != "nfs" or not (MADE / "disk.img").exists():
        pytest.skip("two machines and minutes: make test-nfs")
    folder = tmp_path_factory.mktemp("nfs")
    wire = free_port("127.0.0.1", 17710)
    first = start(1, folder, wire)
    time.sleep(1)  # the wire's end that listens comes first
    pair = (first, start(2, folder, wire))
    known = "".join(
        f"[127.0.0.1]:{m.port} {(MADE / 'host.pub').read_text().strip()}\n" for m in pair
    )
    (folder / "known_hosts").write_text(known)
    lines = ["Host *", f" IdentityFile {MADE}/key", " IdentitiesOnly yes"]
    lines += [f" UserKnownHostsFile {folder}/known_hosts", " ConnectTimeout 60"]
    (folder / "config").write_text("\n".join(lines) + "\n")
    for machine in pair:
        machine.ssh = ["ssh", "-F", str(folder / "config"), "-o", "BatchMode=yes"]
    # the fleet file has no place for ssh's own options: a user has them in ~/.ssh/config
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)
    os.environ["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
    try:
        for machine in pair:
            machine.boots()
        yield pair
    finally:
        for machine in pair:
            machine.process.terminate()
            machine.process.wait(timeout=20)


@pytest.fixture(scope="module")
def fleet(machines: tuple[Machine, Machine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet") / "fleet.toml"
    table = path.with_name("sts.json")
    table.write_text('{"sts": [1, 2]}')
    nodes = "".join(
        NODE.format(n=m.number, port=m.port, address=WIRE[m.number], model=MODEL) for m in machines
    )
    path.write_text(FLEET.format(server=WIRE[1], table=table) + nodes)
    return path


def dsv41(*words: str, status: int = 0) -> str:
    argv = [sys.executable, "-m", "dsv41", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def share(fleet: Path, *words: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = json.loads(
        dsv41("share", "--fleet", str(fleet), "--json", *words)
    )
    return found


def same_file(pair: tuple[Machine, Machine], name: str) -> bool:
    server, client = (machine.ask(f"sha256sum < {MODEL}/{name}") for machine in pair)
    return server == client


def test_a_folder_that_is_not_there_is_not_exported(
    machines: tuple[Machine, Machine], fleet: Path
) -> None:
    assert "D464" in dsv41("share", "--fleet", str(fleet), status=1)
    assert machines[1].run(f"test -e {MODEL}").returncode


def test_share_exports_and_mounts(machines: tuple[Machine, Machine], fleet: Path) -> None:
    server, client = machines
    server.ask(f"mkdir -p {MODEL}; echo {{}} > {MODEL}/config.json")
    server.ask(f"head -c 3000000 /dev/urandom > {MODEL}/model-00001-of-00001.safetensors")
    dry = dsv41("share", "--fleet", str(fleet), "--dry-run")
    assert "put /etc/exports.d/dsv41.exports" in dry
    assert server.run("test -e /etc/exports.d/dsv41.exports").returncode
    made = share(fleet)
    assert len(made["changes"]) == len(dry.splitlines())
    assert made["says"] == [f"spark2 reads the checkpoint from {WIRE[1]}:/"]
    assert same_file(machines, "model-00001-of-00001.safetensors")
    mount = client.ask(f"grep {MODEL} /proc/self/mounts | grep -v autofs")
    words = set(mount.split()[3].split(","))
    assert mount.split()[2] == "nfs4"
    assert {"ro", "vers=4.2", "nconnect=8", "hard", "timeo=600"} <= words
    assert client.run(f"touch {MODEL}/x").returncode
    table = server.ask("exportfs -v")
    assert "no_root_squash" in table
    assert "insecure" in table
    lines = server.ask("cat /var/lib/nfs/etab").splitlines()
    allowed = {line.split("(")[0].split()[-1] for line in lines}
    assert allowed == {WIRE[2], "10.78.0.2"}


def test_a_second_time_there_is_nothing_to_do(fleet: Path) -> None:
    assert share(fleet)["changes"] == []


def test_only_what_differs_is_mended(machines: tuple[Machine, Machine], fleet: Path) -> None:
    machines[1].ask(f'systemctl disable --now "{UNIT}.automount" 2>&1'.replace("\\", "\\\\"))
    made = share(fleet)
    assert [step["id"] for step in made["changes"]] == ["enable-spark2"]  # type: ignore[index]
    assert same_file(machines, "config.json")


def test_both_survive_a_power_cut(machines: tuple[Machine, Machine], fleet: Path) -> None:
    server, client = machines
    server.power_cut()
    server.boots()
    # the mount of before goes on: hard, and the server has the same root
    assert same_file(machines, "model-00001-of-00001.safetensors")
    client.power_cut()
    client.boots()
    assert same_file(machines, "model-00001-of-00001.safetensors")
    assert share(fleet)["changes"] == []


def test_a_client_that_boots_before_the_server(machines: tuple[Machine, Machine]) -> None:
    server, client = machines
    server.ask("systemctl stop nfs-server")
    client.power_cut()
    client.boots()  # its boot does not wait for the mount
    server.ask("systemctl start nfs-server")
    assert wait_until(
        lambda: client.run(f"cat {MODEL}/config.json").returncode == 0, seconds=240, every=5
    )


def test_tables_are_pushed_and_removed(machines: tuple[Machine, Machine], fleet: Path) -> None:
    words = ("share", "--fleet", str(fleet), "--tables")
    assert dsv41(*words).count("sts_table put") == 2
    assert dsv41(*words).count("sts_table same") == 2
    places = [machine.ask("cat /var/lib/dsv41/tables/dspark_sts.json") for machine in machines]
    assert places == ['{"sts": [1, 2]}'] * 2
    text = fleet.read_text()
    without = fleet.with_name("without.toml")
    without.write_text("\n".join(line for line in text.splitlines() if "sts_table" not in line))
    assert dsv41("share", "--fleet", str(without), "--tables").count("sts_table removed") == 2
    assert machines[0].run("test -e /var/lib/dsv41/tables/dspark_sts.json").returncode


def test_weights_are_verified_by_the_program_that_is_put_there(
    machines: tuple[Machine, Machine], fleet: Path
) -> None:
    lines = machines[0].ask(f"cd {MODEL} && sha256sum *").splitlines()
    files = [
        {"path": name, "size": None, "kind": "sha256", "digest": digest}
        for digest, name in (line.split() for line in lines)
    ]
    revision = "fb2764a5cf321eaa5070ca8f9e892818f477c16d"
    listed = fleet.with_name("published.json")
    head = {"schema": "dsv41.published/1", "repository": "x", "revision": revision}
    listed.write_text(json.dumps({**head, "files": files}))
    asked = ["weights", "verify", "--profile", "tp3", "--fleet", str(fleet)]
    asked += ["--published", str(listed), "--json"]
    nodes = json.loads(dsv41(*asked))["nodes"]
    assert [(node["node"], node["status"], node["known"]) for node in nodes] == [
        ("spark1", "ok", 0)
    ]
    assert json.loads(dsv41(*asked))["nodes"][0]["known"] == 2


def test_own_copies_refuse_what_is_left_of_a_share(fleet: Path) -> None:
    own = fleet.with_name("own.toml")
    text = fleet.read_text()
    own.write_text("\n".join(line for line in text.splitlines() if "nfs_server" not in line))
    said = dsv41("share", "--fleet", str(own), status=1)
    assert "D465" in said
    assert f"spark2 mounts {WIRE[1]}:/" in said


def test_remove_takes_all_away(machines: tuple[Machine, Machine], fleet: Path) -> None:
    server, client = machines
    share(fleet, "--remove")
    assert server.run("test -e /etc/exports.d/dsv41.exports").returncode
    assert server.ask("exportfs -v") == ""
    assert client.run(f"grep {MODEL} /proc/self/mounts").returncode
    assert client.run("ls /etc/systemd/system | grep models-").returncode
    assert server.ask(f"ls {MODEL}").splitlines()[0] == "config.json"
    assert share(fleet, "--remove")["changes"] == []
    client.ask(f"touch {MODEL}/mine")
    assert "D466" in dsv41("share", "--fleet", str(fleet), status=5)
