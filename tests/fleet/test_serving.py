"""Three machines from nothing to an endpoint, and what the operator's commands say of them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

from fleet import serving
from fleet.fleets import Fleet
from fleet.waiting import until


def test_serve_brings_three_empty_machines_up_and_smoke_passes(three: Fleet) -> None:
    said = serving.serve(three, "--detach", "--json")
    assert said.status == 0, said
    seconds = said.document["seconds"]
    assert list(seconds) == ["image", "rows", "started", "listening", "answer", "warm", "smoke"]
    assert said.document["url"] == three.url
    assert said.document["nodes"] == ["spark1", "spark2", "spark3"]
    assert Path(said.document["receipt"]).is_file()
    if kept := os.environ.get("DSV41_RECEIPT"):  # for docs/evidence/fleet.json
        shutil.copyfile(said.document["receipt"], kept)
    code, found = serving.status(three)
    assert (code, found["status"]) == (0, "serving")
    assert [rank["state"] for rank in found["ranks"]] == ["running"] * 3
    assert len({rank["fingerprint"] for rank in found["ranks"]}) == 1
    assert {rank["plan"] for rank in found["ranks"]} == {said.document["digest"]}
    for rank, machine in enumerate(three.machines):
        rows = sorted(path.name for path in machine.own("/srv/rows").glob("*.rows"))
        assert rows == [f"engram-l{layer}-r{rank}of3-weighted.rows" for layer in (1, 2)]
        assert machine.run("stat", "-c", "%a", "/srv/dsv41/run/control.key").strip() == "600"


def test_smoke_logs_and_connect_reach_the_fleet(three: Fleet) -> None:
    serving.served(three)
    at = ("--fleet", str(three.file))
    smoked = three.dsv41("smoke", *at, "--json", "--receipt", str(three.folder / "smoke.json"))
    assert (smoked.status, smoked.document["status"]) == (0, "ok"), smoked
    logs = three.dsv41("logs", *at, "--lines", "3")
    assert logs.status == 0, logs
    assert {line.split(" | ")[0] for line in logs.out.splitlines()} == {
        "spark1",
        "spark2",
        "spark3",
    }
    one = three.dsv41("logs", *at, "--rank", "1", "--json")
    assert list(one.document["ranks"]) == ["1"]
    shown = three.dsv41("connect", *at, "--json").document
    assert (shown["url"], shown["model"]) == (three.url, "dsv41-fixture")


def test_a_second_serve_is_told_that_the_fleet_serves(three: Fleet) -> None:
    serving.served(three)
    serving.refused(serving.serve(three), "D063", 5, three.url)
    assert serving.status(three)[0] == 0


def test_a_stranger_on_the_control_port_is_dropped_and_told_about(three: Fleet) -> None:
    serving.served(three)
    before = serving.round_of(three)
    with socket.create_connection((three[0].address, 20001), timeout=10) as stranger:
        stranger.settimeout(20)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 2000)
        read = b"".join(iter(lambda: _received(stranger), b""))
    assert len(read) < 4096
    log = serving.log_of(three[0], 0)
    assert f"a connection from {three.network.address(1)} was dropped" in log
    assert (serving.status(three)[0], serving.round_of(three)) == (0, before)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def test_a_refused_key_and_a_changed_host_key_name_the_machine(three: Fleet) -> None:
    serving.served(three)
    keys = three[1].own("/root/authorized_keys")
    kept = keys.read_text()
    keys.write_text("")
    try:
        serving.refused(serving.serve(three), "D068", 3, "spark2", "Permission denied")
        code, found = serving.status(three)
        assert (code, found["ranks"][1]["state"]) == (3, "lost")
    finally:
        keys.write_text(kept)
    known = three.folder / "known_hosts"
    kept = known.read_text()
    lines = kept.splitlines()
    lines[2] = f"{three[2].address} {' '.join(lines[0].split()[1:])}"  # the key of spark1
    known.write_text("\n".join(lines) + "\n")
    try:
        serving.refused(serving.serve(three), "D068", 3, "spark3", "Host key verification failed")
    finally:
        known.write_text(kept)
    code, found = serving.status(three)
    assert (code, found["status"]) == (0, "serving")


def test_ranks_outlive_their_sshd(three: Fleet) -> None:
    serving.served(three)
    before = serving.round_of(three)
    three[1].stop_sshd()
    try:
        code, found = serving.status(three)
        assert (code, found["ranks"][1]["code"]) == (3, "D068")
        assert "spark2" in found["ranks"][1]["says"]
        assert "42" in three.ask("What is 19 + 23?")
        stopped = three.dsv41("logs", "--fleet", str(three.file), "--rank", "1")
        assert stopped.status == 3, stopped
    finally:
        three[1].start_sshd()
    code, found = serving.status(three)
    assert (code, serving.round_of(three)) == (0, before)


def test_stop_is_told_apart_from_nothing_to_stop(three: Fleet) -> None:
    serving.served(three)
    said = serving.stop(three)
    assert (said.status, said.out.count("stopped")) == (0, 3), said
    for machine in three.machines:
        assert not machine.run("podman", "ps", "--all", "--quiet").strip()
        assert list(machine.own("/srv/rows").glob("*.rows"))
    again = serving.stop(three)
    assert (again.status, again.out.count("nothing runs")) == (0, 3), again
    code, found = serving.status(three)
    assert (code, found["status"]) == (1, "stopped")


def test_of_two_serves_at_once_one_is_refused_and_ctrl_c_leaves_the_ranks(three: Fleet) -> None:
    serving.stop(three)
    log = three.folder / "attached.log"
    with serving.attached(three, log) as first:
        lock = three[0].own("/srv/dsv41/run/serve.lock")
        until(lambda: "pid" in (lock.read_text() if lock.is_file() else ""), seconds=60)
        until(
            lambda: three[0].status("flock", "-n", "/srv/dsv41/run/serve.lock", "true"), seconds=60
        )
        serving.refused(serving.serve(three), "D063", 5, "spark1", "is starting this fleet already")
        until(lambda: "ready http" in log.read_text() or first.poll() is not None, seconds=200)
        serving.interrupt(three)
        assert first.wait(60) == 0, log.read_text()
    assert "detached" in log.read_text()
    assert f"dsv41 stop --fleet {three.file}" in log.read_text()
    assert serving.status(three)[0] == 0


def test_units_run_what_ssh_runs(three: Fleet) -> None:
    """The ExecStart lines of the units, as systemd would start them; the Plan is the same."""
    serving.served(three)
    by_ssh = serving.status(three)[1]["digest"]
    serving.stop(three)
    at = ("--profile", "local", "--fleet", str(three.file), "--image", three.image.reference)
    plan = json.loads(three.dsv41("plan", *at, "--json").out)
    assert plan["digest"] == by_ssh
    units = three.dsv41("plan", *at, "--format", "systemd").out
    started = [line.partition("=")[2] for line in units.splitlines() if line[:10] == "ExecStart="]
    running = []
    try:
        for rank, machine in enumerate(three.machines):
            mine = [line.split() for line in started if line.split()[-1] == str(rank)]
            _install(machine.own("/srv/path"), serving.program(machine))
            path = "PATH=/srv/path:/usr/sbin:/usr/bin:/sbin:/bin"
            *before, last = mine
            for words in before:
                machine.run("env", path, *words, seconds=280)
            running.append(subprocess.Popen(machine.enter("env", path, *last)))
        until(lambda: three.endpoint.status("/ready") == 200, seconds=serving.ROUND)
        assert "42" in three.ask("What is 19 + 23?")
        states = [serving.state_of(machine, rank) for rank, machine in enumerate(three.machines)]
        assert {state["plan"] for state in states} == {by_ssh}
    finally:
        stopped = serving.stop(three)
        statuses = [process.wait(90) for process in running]
    assert stopped.status == 0, stopped
    assert statuses == [0, 0, 0]


def _install(folder: Path, program: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "dsv41").write_text(f'#!/bin/sh\nexec python3 {program} "$@"\n')
    (folder / "dsv41").chmod(0o755)
