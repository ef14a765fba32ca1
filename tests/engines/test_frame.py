"""The frame in the real engines: every hook in its place, every loss named, nothing when off.

The table as it stands is asked, so an adapter that is added is covered. Two programs of this folder
do the work, because hooks stay: frame_probe (forks) and frame_processes (spawns).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from frame_tables import SGLANG, TABLES

HERE = Path(__file__).parent
VLLM_FILES = HERE.parent.parent / ".cache" / "engines" / "vllm-0.33.0"
# what the plugin's own checks need no files for: enough to see the same set in every process
ASKED = {
    "DSV41_TP_PAD": "1",
    "DSV41_SCALE_REPAIR": "1",
    "DSV41_PREFILL_EMPTY_CACHE_TOKENS": "8192",
    "DSV41_LOOP_ABORT": "1",
    "DSV41_THINKING_ALIAS": "1",
}
HOOKS = [(e, a, hook) for e, table in TABLES.items() for a in table for hook in a.hooks]
ONCE = version("sglang") != "0.5.23"  # vLLM's answer is the same beside either SGLang
pytestmark = pytest.mark.timeout(1500)  # 30 s a program on two idle cores, minutes on busy ones


def environ(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(HERE.parent)]))
    plain = {k: v for k, v in os.environ.items() if not k.startswith("DSV41_")}
    return {**plain, "PYTHONPATH": path, **more}


def ask(script: str, *arguments: str, **more: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, HERE / script, *arguments],
        env=environ(**more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.rsplit("\nANSWER ", 1)[1])
    return found


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """What frame_probe says, by engine."""
    found = {"sglang": ask("frame_probe.py", "sglang")}
    if not ONCE:
        path = os.pathsep.join([str(VLLM_FILES), str(HERE.parent)])
        found["vllm"] = ask("frame_probe.py", "vllm", PYTHONPATH=path)
    return found


def of(answers: dict[str, dict[str, Any]], engine: str) -> dict[str, Any]:
    if engine not in answers:
        pytest.skip("asked in the run on sglang 0.5.23")
    return answers[engine]


@pytest.mark.parametrize("engine", TABLES)
def test_every_target_is_there_and_takes_what_it_must(
    answers: dict[str, dict[str, Any]], engine: str
) -> None:
    resolved = of(answers, engine)["resolved"]
    assert set(resolved) == {adapter.name for adapter in TABLES[engine]} | {"always"}
    assert {name: reasons for name, reasons in resolved.items() if reasons} == {}


@pytest.mark.parametrize("engine", TABLES)
@pytest.mark.parametrize("how", ["unset", "off"])
def test_off_changes_no_symbol_of_the_engine(
    answers: dict[str, dict[str, Any]], engine: str, how: str
) -> None:
    """After the engine's own loader has run our entry point."""
    count, differ, new = of(answers, engine)[how]
    assert count > 10_000
    assert (differ, new) == ([], [])


@pytest.mark.parametrize("engine", TABLES)
def test_all_together_are_in_their_places_once(
    answers: dict[str, dict[str, Any]], engine: str
) -> None:
    names = [adapter.name for adapter in TABLES[engine]]
    expected = {"names": names, "again": names, "same": [], "twice": []}
    assert of(answers, engine)["installed"] == expected


@pytest.mark.parametrize(
    ("engine", "name"),
    [(e, a.name) for e, table in TABLES.items() for a in table],
    ids=[f"{e}-{a.name}" for e, table in TABLES.items() for a in table],
)
def test_each_alone_is_in_its_place(
    answers: dict[str, dict[str, Any]], engine: str, name: str
) -> None:
    expected = {"names": [name], "again": [name], "same": [], "twice": []}
    assert of(answers, engine)["each"][name] == expected


@pytest.mark.parametrize(
    ("engine", "adapter", "hook"), HOOKS, ids=[f"{e}-{a.name}-{h.target}" for e, a, h in HOOKS]
)
def test_a_deleted_target_ends_the_process_by_name(
    answers: dict[str, dict[str, Any]], engine: str, adapter: Any, hook: Any
) -> None:
    """An optional one is named in a warning instead, when the adapter's check does not mind."""
    said = of(answers, engine)["deleted"].get(f"{adapter.name} {hook.target}")
    if said is None:
        assert hook.optional, "only what some trees lack may be missing here"
        pytest.skip("this tree has never had it")
    if hook.optional and not said.startswith("SystemExit"):
        assert f"adapter {adapter.name} does without {hook.target}" in said
    elif not hook.optional:
        assert said.startswith("SystemExit: dsv41: D14")
        assert f"D140 adapter {adapter.name} hooks {hook.target}, which is not there" in said


def test_the_frames_own_hooks_are_missed_too(answers: dict[str, dict[str, Any]]) -> None:
    for target, said in answers["sglang"]["deleted always"].items():
        assert f"SystemExit: dsv41: D140 the sglang plugin hooks {target}" in said


@pytest.mark.parametrize(
    ("how", "names"), [("workers", "--tokenizer-worker-num is 2"), ("rust", "SGLANG_RUST_SERVER")]
)
def test_processes_without_plugins_are_refused(
    answers: dict[str, dict[str, Any]], how: str, names: str
) -> None:
    said = answers["sglang"][how]
    assert said.startswith(f"SystemExit: dsv41: D141 {names}")


def test_the_preflight_passes_here_and_knows_who_loads_it(
    answers: dict[str, dict[str, Any]],
) -> None:
    """With the entry point as it is installed in the engine's Python."""
    assert answers["sglang"]["preflight"] == []
    (said,) = answers["sglang"]["left out"]
    assert said == "D141 SGLANG_PLUGINS is 'b12x', which leaves dsv41 out."


def test_every_process_that_serves_has_the_adapters() -> None:
    """0.5.21's detokenizer loads no plugin by itself; the frame sees to it."""
    found = ask("frame_processes.py", **ASKED)
    on = ("tp_pad", "scale_repair", "prefill_empty_cache", "loop_stop", "thinking_alias")
    wanted = {
        f"{a.name} {h.target}" for a in SGLANG if a.name in on for h in a.hooks if not h.optional
    }
    for kind in ("main", "scheduler", "detokenizer"):
        assert wanted <= set(found[kind]), kind
    assert found["main"] == found["scheduler"] == found["detokenizer"]
    assert found["refused"] == ["1", "True"]  # a scheduler whose plugin says no exits, unserved


def test_the_server_does_not_start_when_the_plugin_says_no() -> None:
    """`python -m sglang.launch_server`, as the renderer writes it."""
    program = "import engine_cpu, runpy; runpy.run_module('sglang.launch_server', None, '__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program, "--model-path", "/nonexistent"],
        env=environ(DSV41_API_KEY_FILE="/nonexistent/keys"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "dsv41: D070" in done.stderr
    assert "/nonexistent/keys" in done.stderr
