"""What `dsv41 plan` says of options: wrong values, options without effect, what mends them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from dsv41 import example, plan, profile
from dsv41.cli import main, options
from dsv41.engines import checks
from dsv41.errors import UsageError
from planned import profile_with


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Plan a shipped profile on its example fleet."""

    def call(name: str, *words: str, text: str = "") -> tuple[int, str, str]:
        path = tmp_path / f"{name}.toml"
        path.write_text(text or example.fleet_text(profile.load(name)))
        status = main(["plan", "--profile", name, "--fleet", str(path), *words])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def fix(err: str) -> str:
    found = [line for line in err.splitlines() if line.startswith("  fix: ")]
    assert len(found) == 1, err
    return found[0].removeprefix("  fix: ")


@pytest.mark.parametrize("gib", ["-5", "-0.001", "nan", "inf", "-inf", "1025"])
def test_a_reserve_is_finite_and_not_negative(run: Any, gib: str) -> None:
    status, out, err = run("tp3", f"--reserve-gib={gib}")
    assert (status, out) == (2, "")
    assert err.startswith("D101 --reserve-gib is ")
    assert fix(err) == "give --reserve-gib 0 to 1024"


def test_a_large_reserve_is_refused_for_memory(run: Any) -> None:
    status, _, err = run("tp3", "--reserve-gib", "1024")
    assert (status, err[:4]) == (5, "D120")
    assert fix(err) == "--reserve-gib 0"


@pytest.mark.parametrize(
    ("words", "code", "mends"),
    [
        ("--eager", "D095", "leave out --eager"),
        ("--tree foo", "D103", "give --tree one of sglang-0.5.23, sglang-branch, sglang-base"),
        ("--tp 0", "D095", "give --tp 1"),
        ("--tp 4", "D096", "give --tp 3, or give the fleet one node per rank"),
        ("--set slots=2", "D104", "give --set graph_slots=2"),
        ("--set slots=two", "D095", "leave out --set slots=two"),
        ("--set context=9999999", "D095", "give --set context=1048576"),
        ("--set slotz=2", "D095", "give --set slots=2"),
        ("--set slotz=999", "D095", "leave out --set slotz=999"),
        ("--set qqqq=2", "D095", "leave out --set qqqq=2"),
        ("--set =3", "D107", "give --set KNOB=3"),
        ("--set max_new_tokens=-1", "D095", "give --set max_new_tokens=0"),
        ("--set served_name=a;b", "D095", "leave out --set served_name='a;b'"),
        ("--set metrics=tru", "D095", "give --set metrics=true"),
        ("--set slots=true", "D095", "leave out --set slots=true"),
        ("--set slots=2.5", "D095", "give --set slots=2"),
        ("--set slots=inf", "D095", "leave out --set slots=inf"),
        ("--set row_engine=urin", "D095", "give --set row_engine=uring"),
        ("--set row_engine=mmap", "D095", "leave out --set row_engine=mmap"),
        ("--set privileged=true", "D106", "give --set privileged=false"),
        ("--set slots", "D107", "give --set slots=VALUE"),
        (
            "--tree sglang-base --set block_verify=true",
            "D103",
            "give --set block_verify=false, or --tree sglang-0.5.23",
        ),
        ("--set row_cache_ways=16", "D103", "give --set row_cache_ways=4"),
        ("--set resident_scales=true", "D103", "give --set resident_scales=false"),
        ("--port 0", "D003", "give --port 1024 to 65535"),
        ("--image x:latest", "D107", None),
        ("--diff /nonexistent.json", "D097", "make one: dsv41 plan ... --json > /nonexistent.json"),
        ("--profile /nonexistent.toml", "D094", None),
    ],
)
def test_a_wrong_flag_is_mended_by_a_flag(
    run: Any, words: str, code: str, mends: str | None
) -> None:
    _, out, err = run("tp3", *words.split())
    assert (out, err[:4]) == ("", code)
    assert mends in (None, fix(err))
    assert "edit" not in fix(err)


DIGEST = "@sha256:" + "0a" * 32


@pytest.mark.parametrize(
    "name",
    [
        "dsv41",
        "localhost/dsv41/tp3",
        "docker.io/library/a_b__c-d.e",
        "Registry.example:5000/a/b",
        "[::1]:5000/a",
        "lmsysorg/sglang:v0.5.23",  # podman and docker go by the digest and leave the tag unread
    ],
)
def test_an_image_is_a_reference_with_a_digest(name: str) -> None:
    assert options.image(name + DIGEST) == name + DIGEST


@pytest.mark.parametrize(
    "text",
    [
        "--help" + DIGEST,
        "-v/:/host" + DIGEST,
        "a b" + DIGEST,
        "a\nb" + DIGEST,
        "a//b" + DIGEST,
        "a/" + DIGEST,
        "name:" + DIGEST,
        "name:-tag" + DIGEST,
        "docker://a/b" + DIGEST,
        "a@b" + DIGEST,
        "Upper" + DIGEST,
        "\N{LATIN SMALL LETTER E WITH ACUTE}" + DIGEST,
        DIGEST,
        "name:tag",
        "name" + DIGEST[:-1],
        "name" + DIGEST + "\n",
        "name" + DIGEST.upper(),
    ],
)
def test_another_image_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--image is .* 64 hex digits"):
        options.image(text)


def test_a_contradiction_names_the_flag_that_brought_it(run: Any) -> None:
    _, _, err = run("tp3", "--set", "slots=2")
    assert "profiles/tp3.toml: knobs.graph_slots is 4, beside --set slots=2; allowed" in err


@pytest.mark.parametrize("code", ["D094", "D100"])
def test_a_file_that_is_not_toml_is_to_be_edited(run: Any, tmp_path: Path, code: str) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("a = ")
    words = ("--profile" if code == "D094" else "--fleet", str(broken))
    _, _, err = run("tp3", *words)
    assert (err[:4], fix(err)) == (code, f"edit {broken}")


def test_a_broken_plan_is_to_be_made_again(run: Any, tmp_path: Path) -> None:
    broken = tmp_path / "plan.json"
    broken.write_text("{}")
    _, _, err = run("tp3", "--diff", str(broken))
    assert (err[:4], fix(err)) == ("D097", "make one: dsv41 plan ... --json > plan.json")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tp3", "--set chunk=4096"),
        ("tp3", "--reserve-gib 1"),
        ("tp3", "--set row_cache_gib=64"),
        ("tp3", "--set row_cache_gib=2 --set chunk=4096"),
        ("tp3", "--tree sglang-base --set chunk=1024"),
        ("tp4", "--tree sglang-branch --set slots=64 --set graph_slots=64"),
        ("tp4-cycle", "--set context=1048576 --set slots=64"),
    ],
)
def test_what_would_fit_can_be_typed(run: Any, name: str, words: str) -> None:
    status, _, err = run(name, *words.split())
    assert status == 5
    for step in fix(err).split(", or "):
        flags, _, nodes = step.partition(" with ")
        left = f"{words} "
        for back in flags.split(" and ") if flags.startswith("leave out ") else ():
            left = left.replace(back.removeprefix("leave out ") + " ", "")
        if not flags.startswith("leave out "):
            left += flags
        wide = profile.load(name).with_values("test", tp=int(nodes.split()[0]) if nodes else None)
        status, out, err = run(name, *left.split(), text=example.fleet_text(wide))
        assert (status, step, err) == (0, step, "")
        assert "stops at load" not in out


def test_fewer_streams_take_their_graphs_along(run: Any) -> None:
    _, _, err = run("tp3", "--set", "slots=256", "--set", "graph_slots=256")
    assert "graph_slots=" in fix(err)
    step = next(f for f in fix(err).split(", or ") if f.startswith("--set slots="))
    words = ("--set", "slots=256", "--set", "graph_slots=256", *shlex.split(step))
    assert run("tp3", *words)[0] == 0


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("tp4", {"tp": 8, "ep": 3}),
        ("tp4", {"tp": 8, "ep": 1}),
        ("tp3", {"tp_pad": False}),
        ("tp3", {"fp8_gemm": "triton"}),
        ("tp3", {"context": 1_048_576}),
        ("tp3", {"slots": 2}),
        ("tp3", {"reasoning_parser": "x"}),
        ("tp3", {"tool_call_parser": "x"}),
        ("tp4-cycle", {"draft_window": 7}),
        ("tp4-cycle", {"tp": 3}),
        ("tp4-cycle", {"partition": "weighted"}),
        ("tp3", {"nccl_min_channels": 64}),
    ],
)
def test_what_a_contradiction_offers_is_right(name: str, knobs: dict[str, Any]) -> None:
    rules = [rule for rule in checks.RULES if profile.load(name).engine in rule.engines]
    chosen = profile_with(name, **knobs)
    broken = [rule for rule in rules if rule.wrong(chosen)]
    assert broken
    for rule in broken:
        right = rule.right(chosen)
        assert right is not None
        assert not rule.wrong(chosen.with_values("test", **{rule.key: right}))


@pytest.mark.parametrize(
    "words",
    [
        "--json --draw map",
        "--json --format docker",
        "--why --format docker",
        "--why --draw map",
        "--why --diff tp4",
        "--check --diff tp4",
        "--example tp3 --set slots=2",
    ],
)
def test_an_option_without_effect_is_refused(run: Any, words: str) -> None:
    status, _, err = run("tp3", *words.split())
    assert (status, err[:4], "has no effect beside" in err) == (2, "D107", True)
    assert fix(err).startswith("leave out --")


@pytest.mark.parametrize("words", ["--tree x", "--reserve-gib 0", "--image x@sha256:0"])
def test_profile_local_takes_no_option_of_a_fleet(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err[:4]) == ("", "D107")
    assert fix(err).startswith(f"leave out {words.split(maxsplit=1)[0]}, or")


def test_reasons_are_in_the_document_and_not_in_the_plan(run: Any, tmp_path: Path) -> None:
    bare, full = run("tp3", "--json")[1], run("tp3", "--json", "--why")[1]
    document = json.loads(full)
    why = document.pop("why")
    assert document == json.loads(bare)
    assert why["chunk"].keys() == {"value", "source", "why"}
    assert (why["chunk"]["value"], why["chunk"]["source"]) == (768, "profiles/tp3.toml")
    assert not why.keys() & {entry["knob"] for entry in document["omitted"]}
    assert plan.parse(full, where="x") == plan.parse(bare, where="x")
    path = tmp_path / "why.json"
    path.write_text(full)
    assert run("tp3", "--diff", str(path))[2] == "nothing differs\n"


def test_the_plain_text_is_short_and_ends_with_the_verdict(run: Any) -> None:
    lines = run("tp3")[1].splitlines()
    assert not [line for line in lines if line.startswith("omitted ")]
    omitted = [knob for knob in profile.load("tp3").knobs.values() if knob.omitted]
    assert lines[-2].startswith(f"omitted: {len(omitted)} knobs; --why lists them")
    assert lines[-1].startswith("memory tight: ")
    assert lines.count(lines[-1]) == 2
    why = run("tp3", "--why")[1].splitlines()
    assert sum(line.startswith("omitted ") for line in why) == len(omitted)
    assert why[-1] == lines[-1]


def test_a_check_that_saw_nothing_says_so(run: Any) -> None:
    status, _, err = run("tp3", "--check")
    assert status == 0
    assert err.startswith("warning: --check looked at no node: none of 3 has ssh")
