"""What fleets meet: lost ranks, containers, links, machines, disks; each time it comes back."""

from __future__ import annotations

import json
import signal

import pytest

from fleet import serving
from fleet.fleets import Fleet
from fleet.waiting import until

# five failures within two hours of one rank 0, and the ranks give up (D426): a new one begins anew
CONTAINERS = (2, 1, 0)
PROCESSES = (0, 2, 1)


@pytest.mark.parametrize("rank", CONTAINERS)
def test_a_killed_container_starts_a_new_round_by_itself(three: Fleet, rank: int) -> None:
    serving.served(three)
    before = serving.round_of(three)
    three[rank].run("podman", "kill", "--signal", "KILL", f"dsv41-rank{rank}")
    serving.comes_back(three, after=before)
    assert serving.round_of(three) == before + 1
    assert "SIGKILL" in serving.log_of(three[rank], rank)
    assert serving.status(three)[0] == 0


def test_status_sees_a_container_that_is_gone_before_its_rank_does(three: Fleet) -> None:
    serving.served(three)
    before = serving.round_of(three)
    pid = serving.state_of(three[1], 1)["pid"]
    three[1].kill(pid, signal.SIGSTOP)
    try:
        three[1].run("podman", "kill", "--signal", "KILL", "dsv41-rank1")
        code, found = serving.status(three)
    finally:
        three[1].kill(pid, signal.SIGCONT)
    rank = found["ranks"][1]
    assert (code, rank["state"], rank["container"]) == (1, "running", "ended"), found
    assert "rank 1 without its container" in found["says"]
    serving.comes_back(three, after=before)


@pytest.mark.parametrize("rank", PROCESSES)
def test_a_killed_rank_stops_the_others_until_the_next_serve(three: Fleet, rank: int) -> None:
    serving.served(three)
    before = serving.round_of(three)
    (pid,) = [serving.state_of(three[rank], rank)["pid"]]
    three[rank].kill(pid)
    others = [other for other in range(3) if other != rank]
    until(lambda: _all_wait(three, others), seconds=60)
    code, found = serving.status(three)
    assert (code, found["ranks"][rank]["alive"]) == (1, False)
    assert found["ranks"][rank]["node"] == f"spark{rank + 1}"
    assert all(f"rank {rank}" in found["ranks"][other]["says"] for other in others)
    said = serving.serve(three)
    assert said.status == 0, said
    assert "going on: " in said.err
    assert serving.round_of(three) == before + 1
    assert len(three[rank].run("podman", "ps", "--quiet").split()) == 1


def _all_wait(fleet: Fleet, ranks: list[int]) -> bool:
    states = [serving.state_of(fleet[rank], rank) for rank in ranks]
    return all(state["state"] == "waiting" for state in states) and not any(
        fleet[rank].run("podman", "ps", "--quiet", "--filter", f"name=dsv41-rank{rank}").strip()
        for rank in ranks
    )


def test_a_pulled_cable_ends_the_round_and_a_plugged_one_starts_the_next(three: Fleet) -> None:
    serving.served(three)
    before = serving.round_of(three)
    three.network.pull(three[2])
    try:
        until(lambda: _all_wait(three, [0, 1]), seconds=60)
        code, found = serving.status(three)
        assert (code, found["ranks"][2]["state"]) == (3, "lost")
        assert "spark3" in found["ranks"][2]["says"]
        serving.refused(serving.serve(three), "D068", 3, "spark3")
    finally:
        three.network.plug(three[2])
    serving.comes_back(three, after=before)
    assert serving.status(three)[0] == 0


def test_a_rebooted_head_is_told_and_the_next_serve_goes_on(three: Fleet) -> None:
    serving.served(three)
    before = serving.round_of(three)
    three.reboot(0)
    until(lambda: _all_wait(three, [1, 2]), seconds=60)
    code, found = serving.status(three)
    assert (code, found["ranks"][0]["alive"]) == (1, False)
    said = serving.serve(three)
    assert said.status == 0, said
    assert "going on: rank 1, rank 2" in said.err
    assert "42" in three.ask("What is 19 + 23?")
    assert serving.round_of(three) > before


def test_what_an_earlier_service_left_behind_is_no_obstacle(three: Fleet) -> None:
    """A state file of a rank that is gone, a lock file with a pid of another, its container."""
    serving.served(three)
    serving.stop(three)
    run = three[1].own("/srv/dsv41/run")
    stale = {**serving.state_of(three[1], 1), "state": "running", "pid": 1}
    (run / "rank1.json").write_text(json.dumps(stale))
    (run / "rank1.lock").write_text("1\n")
    words = ("--name", "dsv41-rank1", three.image.reference, "sleep", "1000")
    three[1].run("podman", "run", "--detach", *words)
    assert serving.status(three)[1]["ranks"][1]["alive"] is False
    said = serving.serve(three)
    assert said.status == 0, said
    assert len(three[1].run("podman", "ps", "--quiet").split()) == 1


def test_a_full_disk_is_named_and_what_was_packed_stays(three: Fleet) -> None:
    serving.served(three)
    serving.stop(three)
    small = ("mount", "-t", "tmpfs", "-o", "size=1m", "small", "/srv/rows")
    three[2].run(*small)
    try:
        said = serving.serve(three)
        assert said.status not in {0, 3}, said
        assert "spark3" in said.err
        assert "No space" in said.err or "does not fit" in said.err or "free" in said.err, said
        assert not three[0].run("podman", "ps", "--quiet").strip()
    finally:
        three[2].run("umount", "/srv/rows")
    assert list(three[2].own("/srv/rows").glob("*.rows"))
    said = serving.serve(three)
    assert said.status == 0, said


def test_a_rank_with_another_plan_is_refused_for_good(three: Fleet) -> None:
    """Its own Plan, as a node that missed a change has it; serve brings the present one."""
    serving.served(three)
    serving.stop(three)
    at = ("--profile", "local", "--fleet", str(three.file), "--image", three.image.reference)
    other = three.dsv41("plan", *at, "--set", "slots=4", "--json")
    assert other.status == 0, other
    plans = [three[rank].own("/srv/dsv41/run/plan.json") for rank in (0, 1)]
    plans[1].write_text(other.out)
    for rank in (1, 0):
        words = ("rank", "start", "--plan", "/srv/dsv41/run/plan.json", "--rank", str(rank))
        three[rank].run("python3", serving.program(three[rank]), *words)
    until(lambda: serving.state_of(three[1], 1).get("state") == "ended", seconds=60)
    state = serving.state_of(three[1], 1)
    assert (state["code"], state["exit"]) == ("D422", 5)
    head = json.loads(plans[0].read_text())["digest"]
    assert head in state["says"]
    assert other.document["digest"] in state["says"]
    code, found = serving.status(three)
    assert (code, found["ranks"][1]["code"]) == (1, "D422")
    said = serving.serve(three)
    assert said.status == 0, said
    assert serving.status(three)[0] == 0


def test_the_end_of_the_last_service_leaves_empty_machines(three: Fleet) -> None:
    assert serving.stop(three).status == 0
    for machine in three.machines:
        assert not machine.run("podman", "ps", "--all", "--quiet").strip()
        assert not machine.pids("rank", "exec")
