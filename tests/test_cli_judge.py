"""doctor and diagnose as commands: a healthy bundle, a broken one, a real collection, a log."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bundles import fleet_text, healthy, site
from dsv41 import digests
from dsv41.cli import main
from engine_logs import sglang


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


def unreachable_fleet(tmp_path: Path) -> Path:
    """The head is this machine; nothing listens where ssh looks for the others."""
    fleet = tmp_path / "fleet.toml"
    text = re.sub('ssh = ".*"', 'ssh = "ssh://nobody@127.0.0.1:1"', fleet_text("triangle"))
    fleet.write_text(text.replace("ssh://nobody@127.0.0.1:1", "local", 1))
    return fleet


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the OpenSSH client")
@pytest.mark.parametrize("kept", [True, False])
def test_nodes_that_cannot_be_reached(
    kept: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["doctor", "--fleet", str(unreachable_fleet(tmp_path)), "--profile", "tp3"]
    folder = ["--collect", str(tmp_path / "bundle")] if kept else []
    assert main([*command, *folder]) == 3
    lines = capsys.readouterr().out.splitlines()
    for node in ("spark2", "spark3"):
        (place,) = [n for n, line in enumerate(lines) if f" {node}: " in line]
        assert re.fullmatch(r"unknown D068 .* [1-9]\d checks were not made\.", lines[place])
        assert lines[place + 1] == "        fix: ssh ssh://nobody@127.0.0.1:1 true"
    assert any(" spark1: " in line for line in lines)
    if kept:
        offline = [*command, "--bundle", str(tmp_path / "bundle")]
        found = document(capsys, *offline, status=1)  # asked nobody: what failed counts
        assert found["unreachable"] == ["spark2", "spark3"]
        assert sum(f.get("cause") == "D068" for f in found["findings"]) > 80


def test_a_node_without_a_capture_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(fleet_text("triangle"))
    texts = healthy(site("triangle"))
    del texts["spark3"]
    bundle = write(tmp_path / "bundle", texts)
    assert main(["doctor", "--fleet", str(fleet), "--profile", "tp3", "--bundle", str(bundle)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " spark3: " in line]
    assert len(lines) == 1
    assert lines[0].startswith("unknown D201 spark3: Nothing was captured of spark3. ")


@pytest.mark.parametrize(("name", "code"), [("local", "D105"), ("tp4", "D096")])
def test_a_profile_of_another_fleet_is_refused(
    name: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(fleet_text("triangle"))
    command = ["doctor", "--fleet", str(fleet), "--profile", name]
    refused = document(capsys, *command, status=2)
    assert refused["code"] == code
    assert "does not run on a fleet" not in refused["says"]  # `serve` runs local on one


def test_doctor_asks_for_the_image_that_the_plan_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `serve` does; --image gives another one."""
    listed = tmp_path / "digests.json"
    planned, other = "sha256:" + "7" * 64, "sha256:" + "8" * 64
    listed.write_text(json.dumps({"schema": digests.SCHEMA, "images": {"tp3": planned}}))
    monkeypatch.setattr(digests, "PLACES", (listed,))
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(fleet_text("triangle"))
    texts = healthy(site("triangle"))
    for probes in texts.values():
        probes["image"] = f"localhost/dsv41/tp3 {planned}\n"
    bundle = write(tmp_path / "bundle", texts)
    command = ["doctor", "--fleet", str(fleet), "--profile", "tp3", "--bundle", str(bundle)]
    assert document(capsys, *command)["status"] in {"ok", "info"}
    found = document(capsys, *command, "--image", f"localhost/dsv41/tp3@{other}", status=1)
    assert {f["code"] for f in found["findings"] if f["level"] == "fail"} == {"D260"}
    texts["spark2"]["image"] = f"localhost/dsv41/tp3 {other}\n"
    stale = write(tmp_path / "stale", texts)
    found = document(capsys, *command[:-1], str(stale), status=1)
    assert {f["node"] for f in found["findings"] if f["level"] == "fail"} >= {"spark2"}


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


WORDS = {
    "": "status unknown",
    "hello\n": "status unknown",
    sglang(): "stage ready\nrestart not needed\nstatus ok",
    sglang().split("Load weight end")[0]: "stage weights\nrestart allowed\nstatus unknown",
    sglang() + "torch.OutOfMemoryError: CUDA\n": "stage ready\nrestart allowed\nstatus fail",
    "AER: Uncorrectable (Fatal)\n": "restart no: starting again does harm before it is mended\n"
    "status fail",
}


@pytest.mark.parametrize("text", WORDS)
def test_a_diagnosis_in_words(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    status = main(["diagnose", str(path)])
    said = capsys.readouterr().out
    assert said.startswith(WORDS[text] + "\n")
    assert not re.search(r"\b(?:True|False|None)\b", said)
    assert status == int("status fail" in said or "stage" not in WORDS[text])


def test_no_sample_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text("")
    assert main(["diagnose", "--samples", str(path)]) == 1
    assert capsys.readouterr().out.startswith("status unknown\nunknown D340")
    path.write_text('{"t": 1, "generated_tokens_total": 1, "prompt_tokens_total": 1, "running": 0}')
    assert main(["diagnose", "--samples", str(path)]) == 0
    assert capsys.readouterr().out.startswith("verdict idle\nrestart not needed\nstatus ok\n")


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
