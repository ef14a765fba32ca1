"""`dsv41 plan` as a person types it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from dsv41 import plan
from dsv41.cli import main
from planned import SPARK_PROFILES


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> tuple[int, str, str]:
        status = main(["plan", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def where(run: Any, tmp_path: Path) -> Any:
    def example(name: str, **replaced: str) -> str:
        status, text, _ = run("--example", name)
        assert status == 0
        for old, new in replaced.items():
            text = text.replace(old, new)
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return str(path)

    return example


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_from_example_to_plan(run: Any, where: Any, name: str) -> None:
    status, out, err = run("--profile", name, "--fleet", where(name), "--json")
    assert (status, err) == (0, "")
    made = plan.parse(out, where="stdout")
    assert made.budget is not None
    document = json.loads(out)
    assert document["schema"] == "dsv41.plan/1"
    assert {"knob", "reason"} == document["omitted"][0].keys()
    assert document["ranks"][0]["ledger"][0].keys() == {"item", "bytes", "why"}


def test_in_words(run: Any, where: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    status, out, _ = run("--profile", "tp3", "--fleet", where("tp3"), "--why")
    assert status == 0
    for words in (
        "memory tight: 3.1 GiB stay free at the low point on spark1",
        "rank 0 spark1  SSSS",
        "GiB: S system 10.2",
        "   256k   ░░░",
        "disk of each node: 65.",
        "cable 10.0.12.0/24: spark1 rocep1s0f0, spark2 rocep1s0f0",
        "image not known",
        "  NCCL_IB_HCA=rocep1s0f0,rocep1s0f1",
        "  command differs in: --node-rank 1\n",  # 1 is also a value of the head's command
        "  command differs in: --node-rank 2\n",
        "step rank-0 on spark1 [changes hosts]: dsv41 rank exec --plan",
        "note D121 [warn] Tight",
        "omitted serial_load: no adapter yet",
        "chunk = 768  [profiles/tp3.toml]\n    14 B x chunk x prefix",
    ):
        assert words in out, words


def test_overrides(run: Any, where: Any) -> None:
    fleet = where("tp4-cycle")
    base = ("--profile", "tp4-cycle", "--fleet", fleet)
    for words in (("--eager",), ("--set", "eager=true")):
        status, out, _ = run(*base, *words, "--diff", "tp4-cycle")
        assert status == 0
        assert "all ranks: argv --enforce-eager: - -> there" in out
    _, out, _ = run(*base, "--text-only", "--diff", "tp4-cycle")
    assert "--language-model-only: - -> there" in out
    _, out, _ = run(*base, "--set", "draft_sample=probabilistic", "--why")
    assert "draft_sample = 'probabilistic'  [--set draft_sample]" in out
    status, _, err = run("--profile", "tp3", "--fleet", where("tp3"), "--eager")
    assert (status, err[:4]) == (2, "D095")


def test_flags_win_over_the_fleet_file(run: Any, where: Any) -> None:
    words = ("--port", "9000", "--state-dir", "/srv/dsv41", "--api-key-file", "/etc/keys")
    _, out, _ = run("--profile", "tp3", "--fleet", where("tp3"), *words, "--json")
    made = plan.parse(out, where="x")
    assert made.url == "http://10.0.0.1:9000/v1"
    assert made.state_dir == "/srv/dsv41"
    assert made.api_key_file == "/etc/keys"


def test_an_image_has_a_digest(run: Any, where: Any) -> None:
    base = ("--profile", "tp3", "--fleet", where("tp3"), "--json", "--image")
    _, out, _ = run(*base, "reg/dsv41@sha256:" + "a" * 64)
    assert plan.parse(out, where="x").ranks[0].image == "reg/dsv41@sha256:" + "a" * 64
    status, _, err = run(*base, "reg/dsv41:latest")
    assert (status, "D107" in err) == (2, True)


def test_what_does_not_fit_is_refused_with_what_would(run: Any, where: Any) -> None:
    status, out, err = run("--profile", "tp3", "--fleet", where("tp3"), "--set", "chunk=4096")
    assert (status, out) == (5, "")
    assert "D120 Profile tp3 does not fit on spark1" in err
    lowered = "--set chunk=1088, or --set context=53248"
    assert f"fix: leave out --set chunk=4096, or {lowered}, or --profile tp4 with 4 nodes\n" in err
    status, _, err = run("--profile", "tp3", "--fleet", where("tp3"), "--reserve-gib", "4")
    assert (status, "reserve 4.0" in err) == (5, True)


def test_the_recipes_trees(run: Any, where: Any) -> None:
    """On the three-Spark recipe's own build 1024 x 256k failed and 1024 x 208k ran."""
    base = ("--profile", "tp3", "--fleet", where("tp3"), "--tree", "sglang-base", "--json")
    status, out, _ = run(*base, "--set", "chunk=1024", "--set", "context=212992")
    assert (status, json.loads(out)["budget"]["verdict"]) == (0, "tight")
    status, _, err = run(*base, "--set", "chunk=1024")
    assert (status, "--set context=212992" in err) == (5, True)


@pytest.mark.parametrize("how", ["docker", "podman", "systemd", "recipe"])
def test_formats(run: Any, where: Any, how: str) -> None:
    status, out, _ = run("--profile", "tp4-cycle", "--fleet", where("tp4-cycle"), "--format", how)
    assert status == 0
    assert {"docker": "docker run", "podman": "podman run", "systemd": "[Unit]"}.get(
        how, "{"
    ) in out


@pytest.mark.parametrize("which", ["memory", "map", "cables"])
def test_pictures(run: Any, where: Any, which: str) -> None:
    status, out, _ = run("--profile", "tp4", "--fleet", where("tp4"), "--draw", which)
    assert status == 0
    assert ET.fromstring(out).tag.endswith("svg")  # noqa: S314 - our own text


def test_differences_from_a_file(run: Any, where: Any, tmp_path: Path) -> None:
    base = ("--profile", "tp3", "--fleet", where("tp3"))
    _, out, _ = run(*base, "--json")
    before = tmp_path / "before.json"
    before.write_text(out)
    status, out, err = run(*base, "--diff", str(before))
    assert (status, out, err) == (0, "", "nothing differs\n")
    _, out, _ = run(
        *base, "--set", "slots=2", "--set", "graph_slots=2", "--diff", str(before), "--json"
    )
    document = json.loads(out)
    assert document["schema"] == "dsv41.plan-diff/1"
    change = {"where": "all ranks", "kind": "argv", "name": "--max-running-requests"}
    assert {**change, "before": "4", "after": "2"} in document["changes"]
    status, _, err = run(*base, "--diff", str(tmp_path / "none.json"))
    assert (status, err[:4]) == (2, "D097")


def test_tables_are_read_and_hashed(run: Any, where: Any, tmp_path: Path) -> None:
    fleet = Path(where("tp4"))
    table = tmp_path / "sps.json"
    fleet.write_text(f'sps_table = "{table}"\n' + fleet.read_text())
    base = ("--profile", "tp4", "--fleet", str(fleet), "--json")
    status, _, err = run(*base)
    assert (status, "D108 sps_table" in err) == (2, True)
    prints = []
    for content in ("[1]", "[2]"):
        table.write_text(content)
        prints.append(plan.parse(run(*base)[1], where="x").ranks[0].fingerprint)
    assert prints[0] != prints[1]


def test_check_looks_at_this_machine(run: Any, where: Any, tmp_path: Path) -> None:
    local = {"user@10.0.0.1": "local", "/models/DeepSeek-V4.1-Flash": str(tmp_path)}
    fleet = where("tp3", **local)
    status, _, err = run("--profile", "tp3", "--fleet", fleet, "--check")
    assert status == 1
    assert "D131 spark1" in err
    assert "looked at 1 of 3 nodes" in err
    (tmp_path / "config.json").write_text('{"architectures": ["DeepseekV41ForCausalLM"]}')
    shard = "model-00001-of-00001.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": shard}}))
    (tmp_path / shard).write_bytes(b"x")
    status, _, err = run("--profile", "tp3", "--fleet", fleet, "--check")
    assert (status, "D13" in err) == (0, False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--profile", "tp3"), "D002"),
        (("--example", "local"), "D107"),
        (("--example", "tp9"), "D093"),
        (("--draw", "map"), "D107"),
        (("--format", "docker"), "D107"),
        (("--set", "slots"), "D107"),
        (("--set", "slotz=3"), "D095"),
        (("--fleet", "/nonexistent.toml", "--profile", "tp3"), "D100"),
        (("--example", "tp3", "--draw", "map"), "D001"),
    ],
)
def test_what_does_not_go(run: Any, words: tuple[str, ...], code: str) -> None:
    status, out, err = run(*words)
    assert (status, out, err[:4]) == (2, "", code)


def test_profile_local_needs_no_fleet(run: Any) -> None:
    status, out, _ = run("--set", "slots=2", "--json")
    assert status == 0
    assert "--slots 2" in " ".join(plan.parse(out, where="x").ranks[0].argv)


def cpu_seconds(*words: str) -> float:
    """CPU time of one run of the command, which other work on the machine does not lengthen."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "dsv41", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_plan_takes_little_more_than_the_version(where: Any) -> None:
    fleet = where("tp4-ring")  # the profile with the longest line of ancestors
    words = ("plan", "--profile", "tp4-ring", "--fleet", fleet)
    plans = min(cpu_seconds(*words) for _ in range(3))
    assert plans - min(cpu_seconds("--version") for _ in range(3)) <= 0.3
