"""Every adapter of the table: documented, small, of known names, asked for by somebody."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from dsv41 import changes, profile
from dsv41.adapters import preflight
from dsv41.adapters.adapter import KINDS, OFF_WORDS, Adapter, is_on
from dsv41.adapters.table import TABLES
from dsv41.cli import main
from dsv41.engines.trees import ADAPTER, TREES
from dsv41.errors import Error
from dsv41.switches import SWITCHES

ROOT = Path(__file__).parent.parent
ALL = [(engine, adapter) for engine, table in TABLES.items() for adapter in table]
each = pytest.mark.parametrize(("engine", "adapter"), ALL, ids=[f"{e}-{a.name}" for e, a in ALL])
RENDERED = {
    (name, tree): changes.environment(profile.load(name).on_tree(tree))
    for name in ("tp3", "tp4", "tp4-cycle")
    for tree in {profile.load(name).tree, *profile.load(name).trees}
}


@each
def test_its_names_are_known(engine: str, adapter: Adapter) -> None:
    assert engine in adapter.engines
    assert set(adapter.trees) <= {name for name in TREES if TREES[name].engine == engine}
    assert engine in SWITCHES[adapter.switch].engines
    assert set(adapter.trees) <= set(SWITCHES[adapter.switch].trees)
    assert {hook.kind for hook in adapter.hooks} <= set(KINDS)
    assert all(hook.target.startswith(f"{engine}.") for hook in adapter.hooks)
    assert adapter.hooks


def test_names_and_places_are_taken_once() -> None:
    for table in TABLES.values():
        assert len({adapter.name for adapter in table}) == len(table)


def test_no_adapter_is_over_250_lines() -> None:
    folder = ROOT / "python" / "dsv41" / "adapters"
    long = {p.name: n for p in folder.rglob("*.py") if (n := len(p.read_text().splitlines())) > 250}
    assert long == {}


@each
def test_some_profile_turns_it_on_or_says_why_not(engine: str, adapter: Adapter) -> None:
    asked = SWITCHES[adapter.switch].env
    trees = [
        tree
        for (_, tree), env in RENDERED.items()
        if is_on(adapter, env) or env.get(asked) in OFF_WORDS
    ]
    assert {tree for tree in trees if TREES[tree].engine == engine} == set(adapter.trees)


@pytest.mark.parametrize("tree", [name for name in TREES if name != "local"])
def test_what_a_tree_has_by_an_adapter_is_in_the_table(tree: str) -> None:
    promised = {what for what, how in TREES[tree].capabilities.items() if how == ADAPTER}
    table = [a for a in TABLES[TREES[tree].engine] if tree in a.trees]
    assert promised - {a.name for a in table} - {a.switch for a in table} == set()


def test_explain_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "adapters"]) == 0
    text = capsys.readouterr().out
    assert main(["explain", "adapters", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "dsv41.adapters/1"
    assert [(a["engine"], a["name"]) for a in document["adapters"]] == [(e, a.name) for e, a in ALL]
    for change in document["adapters"]:
        assert f"{change['name']} ({change['engine']})  {change['env']}, unset is off" in text
        keys = (*changes.SECTIONS.values(), "says", "hooks", "profiles")
        assert all(change[key] for key in keys)
    pad = next(a for a in document["adapters"] if a["name"] == "tp_pad")
    assert [p["state"] for p in pad["profiles"] if p["tree"] == "sglang-0.5.23"][:2] == [
        "on",
        "off",
    ]
    assert "  tp3: sglang-0.5.23 on (1)" in text


def test_the_entry_points_stand_in_both_tables() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    points = whole["project"]["entry-points"]
    assert points == whole["tool"]["poetry"]["plugins"]
    assert set(points) == set(preflight._GROUPS.values())
    assert {name for group in points.values() for name in group} == {preflight.PLUGIN}


def found(environ: dict[str, str]) -> list[Error]:
    return list(preflight.problems("sglang", environ))


def test_the_preflight_asks_only_for_what_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found({}) == []
    with pytest.raises(SystemExit, match=r"preflight: D141 .*no package sglang") as ended:
        preflight.main(["--engine", "sglang"], {"DSV41_SCALE_REPAIR": "1"})
    assert len(str(ended.value).splitlines()) == 2  # and what mends it
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    errors = found({"DSV41_THINKING_ALIAS": "1", "SGLANG_PLUGINS": "other, more"})
    del sys.modules["sglang"]
    assert {error.code for error in errors} == {"D140", "D141"}
    assert any("SGLANG_PLUGINS is 'other, more'" in error.says for error in errors)
    assert not any("tp_pad" in error.says for error in errors)
    preflight.main(["--engine", "vllm"], {})


@pytest.mark.parametrize(
    ("engine", "allowed", "loads"),
    [
        ("sglang", "", True),
        ("sglang", "other, dsv41", True),
        ("sglang", ",", False),
        ("vllm", "other,dsv41", True),
        ("vllm", "other, dsv41", False),  # vLLM compares " dsv41"
        ("vllm", "", False),  # and takes this for a list without us
    ],
)
def test_the_preflight_reads_the_list_of_plugins_as_the_engine_does(
    engine: str, allowed: str, *, loads: bool
) -> None:
    switch, variable = {
        "sglang": ("DSV41_TP_PAD", "SGLANG_PLUGINS"),
        "vllm": ("DSV41_SM12_PAGES", "VLLM_PLUGINS"),
    }[engine]
    errors = list(preflight.problems(engine, {switch: "1", variable: allowed}))
    assert loads is not any(f"{variable} is {allowed!r}" in error.says for error in errors)
