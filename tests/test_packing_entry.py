"""What an image runs on a node: the tiny checkpoint in a given folder, and one rank's rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsv41 import rows
from dsv41.errors import UsageError
from dsv41.local.fixture import checkpoint
from dsv41.rows import packing


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    checkpoint.fill(folder, geometry="fixture")
    return folder


def test_a_folder_is_filled_once_and_again_after_a_cut(model: Path) -> None:
    digest = checkpoint.digest(model)
    made = (model / "config.json").stat().st_mtime_ns
    checkpoint.fill(model, geometry="fixture")
    assert (model / "config.json").stat().st_mtime_ns == made
    (model / ".making").mkdir()
    (model / checkpoint.MARKER).unlink()
    (model / "config.json").unlink()
    checkpoint.fill(model, geometry="fixture")
    assert checkpoint.digest(model) == digest
    assert not (model / ".making").exists()


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "model-00001.safetensors").write_text("weights of somebody")
    with pytest.raises(UsageError, match="other files") as caught:
        checkpoint.fill(tmp_path, geometry="fixture")
    assert caught.value.code == "D043"
    assert [path.name for path in tmp_path.iterdir()] == ["model-00001.safetensors"]


def test_one_rank_is_packed_and_kept(model: Path, tmp_path: Path) -> None:
    words = ["--checkpoint", str(model), "--out", str(tmp_path), "--partition", "weighted"]
    command = [sys.executable, "-m", "dsv41.rows.packing", *words, "--rank", "1", "--tp", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    files = [Path(line) for line in done.stdout.split()]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(result.ok for result in rows.verify(files))
    kept = [path.stat().st_mtime_ns for path in files]
    assert packing.main([*words, "--rank", "1", "--tp", "3"]) == 0
    assert [path.stat().st_mtime_ns for path in files] == kept


def test_a_checkpoint_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--checkpoint", str(tmp_path / "no"), "--out", str(tmp_path)]
    assert packing.main([*words, "--partition", "weighted", "--rank", "0", "--tp", "1"]) == 1
    assert capsys.readouterr().err.startswith("D028 ")


def test_progress_names_the_file_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = packing.Progress(say=said.append)
    for second in range(21):
        now[0] = float(second)
        progress(Path("/r/a.rows"), second * 2**30, 40 * 2**30)
    assert said[0] == "a.rows: 5.0 of 40.0 GiB, about 35 s left"
    assert len(said) == 4
