"""A Plan in other words: container commands, units, the recipe, differences, golden cases."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41 import compare, containers, fleet, formats, plan, profile
from dsv41.errors import UsageError
from planned import IMAGE, SPARK_PROFILES, fleet_for, planned, profile_with

CASES = Path(__file__).parent / "cases"


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_golden(name: str) -> None:
    """Change a case on purpose only: scripts/cases.py writes them again."""
    assert planned(name).to_json() == (CASES / f"plan-{name}.json").read_text()


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_reading_back_gives_the_same_plan(name: str) -> None:
    made = planned(name)
    assert plan.parse(made.to_json(), where="x") == made
    assert planned(name) == made
    assert {item.item for item in made.ranks[0].ledger} > {"weights", "kv", "window", "nccl"}


def rendered(how: str, name: str, **knobs: Any) -> str:
    chosen = profile_with(name, **knobs)
    where = fleet_for(chosen, api_key_file="/etc/dsv41/keys")
    return formats.render(how, plan.plan(chosen, where, {name: IMAGE}), chosen, where)


@pytest.mark.parametrize("how", ["docker", "podman"])
@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_a_container_command_holds_the_whole_rank(how: str, name: str) -> None:
    made = planned(name)
    lines = rendered(how, name).splitlines()
    commands = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert [words[:3] for words in commands] == [[how, "run", "--detach"]] * len(made.ranks)
    assert commands[-1][3] == "--name=dsv41-rank0"  # workers first
    for words, rank in zip(commands, (*made.ranks[1:], made.ranks[0]), strict=True):
        at = words.index(IMAGE)
        assert [words[at - 1].removeprefix("--entrypoint="), *words[at + 1 :]] == list(rank.argv)
        env = dict(w.removeprefix("--env=").split("=", 1) for w in words if w.startswith("--env="))
        assert env.items() >= rank.env.items()
        assert {f"--volume={mount}" for mount in rank.mounts} <= set(words)
        assert "keys" not in " ".join(w for w in words if "api-key" not in w)
    assert sum(line.startswith("#") for line in lines) == 2 * len(made.ranks) + 1


ODD = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1)


@settings(max_examples=40, deadline=None)
@given(ODD, ODD)
def test_odd_characters_survive_quoting(folder: str, value: str) -> None:
    """Spaces, quotes, # and $ in a path or a value (user report P82)."""
    rank = replace(planned("tp3").ranks[0], mounts=(f"/{folder}:/x:ro",), env={"A": value})
    command = containers.detached("podman", rank)
    assert shlex.split(shlex.join(command)) == command
    assert {f"--volume=/{folder}:/x:ro", f"--env=A={value}"} <= set(command)


def test_a_node_that_needs_sudo_has_it() -> None:
    chosen = profile.load("tp3")
    where = fleet_for(chosen)
    where = replace(where, nodes=(replace(where.nodes[0], sudo=True), *where.nodes[1:]))
    text = formats.render("docker", plan.plan(chosen, where, {}), chosen, where)
    starts = [line.split()[0] for line in text.splitlines() if not line.startswith("#")]
    assert starts == ["docker", "docker", "sudo"]


def test_without_a_digest_the_image_is_said_to_be_missing() -> None:
    chosen = profile.load("tp3")
    where = fleet_for(chosen)
    text = formats.render("podman", plan.plan(chosen, where, {}), chosen, where)
    assert text.startswith("# put the image's reference for IMAGE")


@pytest.mark.parametrize("name", ["tp3", "tp4-cycle"])
def test_units_run_the_same_commands(name: str, tmp_path: Path) -> None:
    chosen = profile.load(name)
    where = fleet_for(chosen)
    made = plan.plan(chosen, where, {name: IMAGE})
    steps = {step.id: " ".join(step.command) for step in made.steps}
    for rank in made.ranks:
        written = formats.units(made, rank, where)
        assert f"env {steps[f'rank-{rank.rank}']}\n" in written["dsv41-rank.service"]
        assert f"env {steps[f'pack-{rank.rank}']}\n" in written["dsv41-rows.service"]
        # what the rank requires must not fail for once, or the rank never starts
        assert "\nRequires=dsv41-rows.service\n" in written["dsv41-rank.service"]
        assert "\nRestart=on-failure\nRestartMode=direct\n" in written["dsv41-rows.service"]
    for unit, text in formats.units(made, made.ranks[0], where).items():
        (tmp_path / unit).write_text(text)
    if shutil.which("systemd-analyze"):
        verify = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())]
        done = subprocess.run(verify, capture_output=True, text=True, check=False)
        # a systemd before 254 says that it does not know this one
        said = [line for line in done.stderr.splitlines() if "'RestartMode'" not in line]
        assert (done.returncode, said) == (0, [])
    text = rendered("systemd", name)
    assert text.count("/etc/systemd/system/") == 3 * len(made.ranks)


def test_the_recipe_has_the_fields_of_the_published_one() -> None:
    """sparkring-recipe/v1, deepseek-v41-flash-cycle at SR-PR261."""
    document = json.loads(rendered("recipe", "tp4-cycle"))
    assert document["schema"] == "sparkring-recipe/v1"
    assert document["hardware"]["topology"] == "direct-cycle-4"
    assert document["model"]["revision"] == "dba1be0a40aa45a94ad051997016db3960a90277"
    serving = document["serving"]
    assert {key: serving[key] for key in ("max_model_len", "max_num_seqs", "block_size")} == {
        "max_model_len": 430_080,
        "max_num_seqs": 8,
        "block_size": 128,
    }
    assert serving["cuda_graphs"]["capture_sizes"][-1] == 48
    assert document["evidence"]["status"] == "none"
    assert "not run" in document["evidence"]["result"]
    eager = json.loads(rendered("recipe", "tp4-cycle", eager=True))
    assert eager["serving"]["cuda_graphs"] == {"mode": "none", "capture_sizes": []}


@pytest.mark.parametrize(("how", "name"), [("recipe", "tp4-ring"), ("recipe", "tp3")])
def test_a_format_that_does_not_apply(how: str, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        rendered(how, name)
    assert caught.value.code == "D107"


def test_loopback_has_no_containers() -> None:
    here = fleet.loopback(tp=3, state_dir="/s", port=1, master_port=2)
    with pytest.raises(UsageError, match="processes here"):
        formats.render("docker", planned("tp3"), profile.load("local"), here)


def difference(before: plan.Plan, after: plan.Plan) -> list[str]:
    return [str(change) for change in compare.changes(before, after)]


def test_nothing_differs_from_itself() -> None:
    assert difference(planned("tp3"), planned("tp3")) == []


def test_a_change_on_all_ranks_is_said_once() -> None:
    assert difference(planned("tp3"), planned("tp3", watchdog_seconds=900)) == [
        "all ranks: argv --watchdog-timeout: 1800 -> 900"
    ]
    said = difference(planned("tp3"), planned("tp3", row_threads=32))
    assert "all ranks: env DSV41_IO_THREADS: 96 -> 32" in said
    assert any(line.startswith("all ranks: mount /cache") for line in said)  # a cache of its own


def test_a_change_on_one_rank_names_it() -> None:
    chosen = profile.load("tp3")
    where = fleet_for(chosen)
    pinned = replace(where.nodes[1], gid_index=4)
    other = replace(where, nodes=(where.nodes[0], pinned, where.nodes[2]), api_port=9000)
    said = difference(plan.plan(chosen, where, {}), plan.plan(chosen, other, {}))
    assert said == [
        "plan: field url: http://10.0.0.1:8888/v1 -> http://10.0.0.1:9000/v1",
        "all ranks: argv --port: 8888 -> 9000",
        "rank 1: env NCCL_IB_GID_INDEX: - -> 4",
    ]


def test_plans_of_different_sizes() -> None:
    said = difference(planned("tp3"), planned("tp4"))
    assert "rank 3: rank node: - -> spark4" in said


KNOBS = st.fixed_dictionaries(
    {
        "slots": st.integers(4, 16),
        "row_threads": st.integers(1, 256),
        "served_name": st.from_regex(r"[A-Za-z0-9._/-]{1,20}", fullmatch=True),
        "nccl_debug": st.sampled_from(["WARN", "INFO"]),
        "sleep_on_idle": st.booleans(),
    }
)
LOADED = profile.load("tp4")
WHERE = fleet_for(LOADED)


@settings(max_examples=30, deadline=None)
@given(KNOBS)
def test_any_plan_is_deterministic_and_reads_back(knobs: dict[str, Any]) -> None:
    chosen = LOADED.with_values("test", **knobs, graph_slots=4)
    made = plan.plan(chosen, WHERE, {"tp4": IMAGE})
    text = made.to_json()
    assert text == plan.plan(chosen, WHERE, {"tp4": IMAGE}).to_json()
    assert plan.parse(text, where="x") == made
    assert len({rank.fingerprint for rank in made.ranks}) == 1
    assert all(sum(item.bytes for item in rank.ledger) > 0 for rank in made.ranks)
    assert compare.changes(made, plan.parse(text, where="x")) == []
