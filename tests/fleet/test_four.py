"""Four machines on a switch serve by the same commands."""

from __future__ import annotations

from fleet import serving
from fleet.fleets import Fleet


def test_four_machines_serve_pass_smoke_and_stop(four: Fleet) -> None:
    said = serving.serve(four, "--detach", "--json", "--tp", "4")
    assert said.status == 0, said
    assert "smoke" in said.document["seconds"]
    code, found = serving.status(four)
    assert (code, [rank["state"] for rank in found["ranks"]]) == (0, ["running"] * 4)
    assert "42" in four.ask("What is 19 + 23?")
    before = serving.round_of(four)
    four[3].run("podman", "kill", "--signal", "KILL", "dsv41-rank3")
    serving.comes_back(four, after=before)
    stopped = serving.stop(four)
    assert (stopped.status, stopped.out.count("stopped")) == (0, 4), stopped
