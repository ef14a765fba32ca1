"""doctor and diagnose as commands: a healthy bundle, a broken one, a real collection, a log."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bundles import fleet_text, healthy, site
from dsv41.cli import main


def document(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def write(folder: Path, texts: dict[str, dict[str, str]]) -> Path:
    for node, probes in texts.items():
        (folder / node).mkdir(parents=True)
        for name, text in probes.items():
            (folder / node / f"{name}.txt").write_text(text)
    return folder


def test_a_collection_from_this_machine_is_judged_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This machine is no Spark: much is unknown or fails, every finding has a code."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(re.sub('ssh = ".*"', 'ssh = "local"', fleet_text("triangle")))
    bundle = tmp_path / "bundle"
    assert (
        main(["doctor", "--fleet", str(fleet), "--profile", "tp3", "--collect", str(bundle)]) == 1
    )
    words = capsys.readouterr().out
    assert "status fail" in words
    assert (bundle / "spark1" / "uname.txt").read_text().startswith("Linux")
    again = document(
        capsys,
        *("doctor", "--fleet", str(fleet), "--profile", "tp3", "--bundle", str(bundle)),
        status=1,
    )
    assert again["schema"] == "dsv41.doctor/1"
    assert all(finding["code"].startswith("D") for finding in again["findings"])


def test_doctor_on_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(fleet_text("triangle"))
    texts = healthy(site("triangle"))
    command = ["doctor", "--fleet", str(fleet), "--profile", "tp3", "--bundle"]
    good = document(capsys, *command, str(write(tmp_path / "good", texts)))
    assert good["status"] in {"ok", "info"}
    del texts["spark2"]["meminfo"]
    bad = document(capsys, *command, str(write(tmp_path / "bad", texts)))
    assert bad["status"] == "unknown"
    assert {f["node"] for f in bad["findings"] if f["level"] == "unknown"} == {"spark2"}
    texts["spark3"]["checkpoint"] = ""
    worse = document(capsys, *command, str(write(tmp_path / "worse", texts)), status=1)
    assert (worse["findings"][0]["level"], worse["findings"][0]["node"]) == ("fail", "spark3")
    assert document(capsys, *command, str(tmp_path / "none"), status=2)["code"] == "D200"


def test_diagnose_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "samples.jsonl"
    sample: dict[str, Any] = {
        "generated_tokens_total": 9,
        "prompt_tokens_total": 9,
        "running": 2,
        "queued": 0,
    }
    sample |= {"gpu_util": 96, "power_w": 20.0, "prefill_progress": False}
    path.write_text("".join(json.dumps({"t": 10 * n, **sample}) + "\n" for n in range(6)))
    found = document(capsys, "diagnose", "--samples", str(path), status=1)
    assert (found["verdict"], found["restart"]) == ("wedged", True)


def test_diagnose_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(
        b"\xff\xfe junk\nncclSystemError ibv_reg_mr_iova2 failed Cannot allocate memory\n"
    )
    status = main(["diagnose", str(path), "--profile", "tp3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "dsv41.diagnose/1"
    assert status == (1 if found["status"] == "fail" else 0)


@pytest.mark.parametrize(
    ("arguments", "code"), [([], "D006"), (["x", "--samples", "y"], "D006"), (["/none"], "D007")]
)
def test_diagnose_usage(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "diagnose", *arguments, status=2)["code"] == code


def test_cache_clear_removes_the_keyed_folders_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    caches = tmp_path / "a cache"
    for name in ("0123456789abcdef", "fedcba9876543210", "models", "0123456789abcde"):
        (caches / name).mkdir(parents=True)
        (caches / name / "file").write_text("x" * 1000)
    (caches / "aaaaaaaaaaaaaaaa").symlink_to(caches / "models")
    fleet = tmp_path / "fleet.toml"
    text = re.sub('ssh = ".*"', 'ssh = "local"', fleet_text("triangle"))
    fleet.write_text(f'cache_dir = "{caches}"\n{text}')
    listed = document(capsys, "cache", "clear", "--fleet", str(fleet), "--dry-run")
    assert (listed["removed"], len(listed["folders"])) == (False, 6)  # three nodes, one disk
    assert listed["folders"][0]["bytes"] > 1000
    cleared = document(capsys, "cache", "clear", "--fleet", str(fleet))
    assert [folder["node"] for folder in cleared["folders"]] == ["spark1", "spark1"]
    left = {path.name for path in caches.iterdir()}
    assert left == {"models", "0123456789abcde", "aaaaaaaaaaaaaaaa"}
    assert (caches / "models" / "file").exists()
