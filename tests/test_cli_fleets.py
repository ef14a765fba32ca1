"""`dsv41 serve --fleet`: the steps of every node, and the refusal to go further."""

import json
from pathlib import Path

import pytest

from dsv41.cli import main


@pytest.fixture
def fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["plan", "--example", "tp3"]) == 0
    path = tmp_path / "fleet.toml"
    path.write_text(capsys.readouterr().out)
    return path


def test_the_steps_of_a_fleet(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--profile", "tp3", "--fleet", str(fleet)]
    assert main(["serve", *command, "--dry-run"]) == 0
    steps = capsys.readouterr().out.splitlines()
    assert main(["plan", *command, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [line.split()[1] for line in steps] == [step["id"] for step in planned["steps"]]
    assert main(["serve", *command, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == planned["digest"]


def test_a_fleet_is_not_served_yet(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--profile", "tp3", "--fleet", str(fleet), "--json"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert refused["code"] == "D002"
    assert "dsv41 rank exec" in refused["fix"]
