"""The fleet itself: apart from each other, reached by ssh, and gone without a trace."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dsv41 import containers, plan
from fleet import fleets
from fleet.fleets import Fleet
from fleet.image import Image
from fleet.machines import run
from fleet.waiting import until

STATE = ("/srv/model", "/srv/rows", "/srv/cache")


def ssh(fleet: Fleet, rank: int, command: str) -> str:
    return fleet.desk.run("ssh", "-o", "BatchMode=yes", f"root@{fleet[rank].address}", command)


def test_machines_have_their_own_name_network_and_folders(three: Fleet) -> None:
    for rank, machine in enumerate(three.machines):
        ssh(three, rank, f"echo {machine.name} > /srv/name; echo $$ > /run/pid")
    for rank, machine in enumerate(three.machines):
        said = ssh(three, rank, "hostname; cat /srv/name; ip -br address; podman ps --all --quiet")
        assert said.split()[:2] == [machine.name] * 2
        assert all(address in said for address in (machine.address, *three.fabric[rank]))
    assert not Path("/srv/name").exists()


def test_a_pulled_cable_and_a_dead_sshd_cut_a_machine_off(three: Fleet) -> None:
    reach = ["ssh", "-o", "ConnectTimeout=1", f"root@{three[1].address}", "true"]
    assert three.desk.status(*reach) == 0
    three.network.pull(three[1])
    assert three.desk.status(*reach) == 255
    three.network.plug(three[1])
    until(lambda: three.desk.status(*reach) == 0, seconds=10)
    three[1].stop_sshd()
    assert three.desk.status(*reach) == 255
    three[1].start_sshd()
    assert three.desk.status(*reach) == 0


def test_ranks_that_a_person_starts_by_ssh_answer(
    three: Fleet, checkpoint: Path, rows_dir: Path
) -> None:
    """The Plan's own command lines, one container a machine, without any of our verbs on it."""
    said = three.dsv41(
        *("plan", "--profile", "local", "--fleet", str(three.file)),
        *("--image", three.image.reference, "--json"),
    )
    assert said.status == 0, said
    made = plan.parse(said.out, where="plan")
    clients = []
    try:
        for rank in reversed(made.ranks):
            three.furnish(rank.rank, checkpoint=checkpoint, rows=rows_dir)
            there = [mount.split(":")[0] for mount in rank.mounts]
            ssh(three, rank.rank, f"mkdir -p {' '.join(there)}")
            words = containers.attached("podman", rank, name="by-hand")
            command = ["ssh", "-n", f"root@{three[rank.rank].address}", "--", *words]
            clients.append(subprocess.Popen(three.desk.enter(*command)))
        until(lambda: three.endpoint.status("/ready") == 200, seconds=120)
        assert "42" in three.ask("What is 19 + 23?")
    finally:
        for rank in made.ranks:
            ssh(three, rank.rank, "podman rm --force --time 5 by-hand")
        for client in clients:
            client.wait(20)
    for machine in three.machines:
        machine.run("rm", "-r", *STATE)


def test_nothing_is_left_of_a_fleet_that_failed(local_image: Image) -> None:
    context = fleets.running(3, image=local_image, topology="triangle")
    fleet = context.__enter__()
    start = ["podman", "run", "--detach", local_image.reference, "sleep", "1000"]
    held = [ssh(fleet, rank, " ".join(start)).strip() for rank in range(3)]
    pids = [machine.pid for machine in fleet.machines]
    error = RuntimeError("in the middle of it")
    assert not context.__exit__(RuntimeError, error, None)  # it goes on to whoever has the fleet
    folder = fleet.folder
    assert not folder.exists()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert f"dsv41f{fleet.network.subnet}" not in run("ip", "-o", "link")
    assert not [c for c in held if list(Path("/sys/fs/cgroup").glob(f"*/libpod_parent/*{c}*"))]
    assert str(folder) not in Path("/proc/mounts").read_text()
