"""`dsv41 pack --plan`: one rank of a Plan, on the host that holds its checkpoint and its disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsv41 import rows
from dsv41.cli import main
from dsv41.geometry import Shard


@pytest.fixture
def plan_file(tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A Plan of tp3 whose nodes have the tiny checkpoint."""
    assert main(["plan", "--example", "tp3"]) == 0
    text = capsys.readouterr().out
    text = text.replace("/models/DeepSeek-V4.1-Flash", str(checkpoint))
    text = text.replace('"/var/lib/dsv41/rows"', json.dumps(str(tmp_path / "rows")))
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(text)
    assert main(["plan", "--profile", "tp3", "--fleet", str(fleet), "--json"]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    return path


def packed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main(["pack", *arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_the_rows_of_one_rank(
    plan_file: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = packed(capsys, "--plan", str(plan_file), "--rank", "1", "--dry-run")["files"]
    assert not (tmp_path / "rows").exists()
    files = packed(capsys, "--plan", str(plan_file), "--rank", "1")["files"]
    assert files == wanted == [str(path) for path in sorted((tmp_path / "rows").glob("*.rows"))]
    direct = rows.pack(
        checkpoint=checkpoint,
        out=tmp_path / "direct",
        engram=rows.geometry_of(checkpoint),
        partition="weighted",
        shard=Shard(rank=1, tp=3),
    )
    assert [path.read_bytes() for path in direct] == [Path(file).read_bytes() for file in files]


@pytest.mark.parametrize("rank", ["3", "-1"])
def test_no_such_rank(plan_file: Path, rank: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = packed(capsys, "--plan", str(plan_file), "--rank", rank, status=2)
    assert refused["code"] == "D064"
    assert "ranks 0 to 2" in refused["says"]


def test_plan_and_rank_go_together(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert packed(capsys, "--plan", str(plan_file), status=2)["code"] == "D107"
    assert packed(capsys, "--rank", "0", status=2)["code"] == "D107"


def test_a_local_plan_packs_by_its_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--profile", "local", "--json"]) == 0
    path = tmp_path / "local.json"
    path.write_text(capsys.readouterr().out)
    refused = packed(capsys, "--plan", str(path), "--rank", "0", status=2)
    assert refused["fix"] == "dsv41 pack --profile local"
