"""What the frame of the engine plugin refuses, and how it says so."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from dsv41.adapters import install
from dsv41.adapters.adapter import Hook, Kind
from dsv41.errors import CheckFailed
from small_engine import Engine, put, refused


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.syspath_prepend(tmp_path)
    return Engine(tmp_path)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("core.gone", "has no gone"),
        ("core.Table.gone", "Table has no gone"),
        ("gone.add", "has no gone"),
        ("core.Gone.read", "has no Gone"),
        ("core.Smaller.read", "Smaller inherits it from Table"),
        ("broken.add", "cannot be imported: No module named 'libgpu_that_no_machine_has'"),
    ],
)
def test_what_is_missing_is_named(engine: Engine, target: str, reason: str) -> None:
    error = refused(engine.adapter(engine.hook(target, "around", print)))
    assert error.code == "D140"
    assert f"adapter one hooks {engine.name}.{target}" in error.says
    assert reason in error.says


def test_an_engine_that_is_not_there_is_named() -> None:
    hook = Hook(target="engine_of_nobody.core.add", kind="around", call=print)
    error = refused(Engine.adapter(None, hook))  # type: ignore[arg-type]
    assert "there is no module engine_of_nobody" in error.says


def test_all_problems_come_together_and_nothing_is_changed(engine: Engine) -> None:
    core = engine.module("core")
    before = dict(vars(core))

    def check(_environ: object) -> None:
        raise CheckFailed("D150", "a probe says no.", fix="")

    error = refused(
        engine.adapter(
            engine.hook("core.add", "around", print),
            engine.hook("core.gone", "around", print),
            needs=(f"{engine.name}.user.none",),
        ),
        engine.adapter(engine.hook("core.Table", "after", print), name="two", check=check),
    )
    assert error.code == "D140"
    lines = error.says.splitlines()
    assert ["D140 adapter one needs" in lines[1], "D142 adapter two" in lines[2]] == [True, True]
    assert "D150 a probe says no." in lines[3]
    assert dict(vars(core)) == before


@pytest.mark.parametrize(
    ("target", "kind", "takes", "reason"),
    [
        ("core.add", "around", ("a", "c"), "takes a, b; expected c too"),
        ("core.Table", "replace", ("columns",), "takes self, rows; expected columns too"),
        ("core.Table", "before", (), "is a class"),
        ("core.LIMIT", "replace", (), "is int, not a function or class"),
    ],
)
def test_drift_is_named(
    engine: Engine, target: str, kind: Kind, takes: tuple[str, ...], reason: str
) -> None:
    error = refused(engine.adapter(engine.hook(target, kind, print, takes=takes)))
    assert error.code == "D142"
    assert reason in error.says


def test_an_optional_hook_goes_where_its_target_is(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    gone = engine.hook("core.gone", "around", print, optional=True)
    there = engine.hook("core.add", "after", lambda *_a: 0, optional=True)
    put(engine.adapter(gone, there))
    assert engine.module("core").add(1, 1) == 0
    assert f"adapter one does without {engine.name}.core.gone" in caplog.text
    broken = engine.hook("broken.add", "around", print, optional=True)
    assert refused(engine.adapter(broken, name="two")).code == "D140"


def test_needs_may_be_a_module(engine: Engine) -> None:
    needs = (f"{engine.name}.user", f"{engine.name}.core.Table.Inner.size")
    assert put(engine.adapter(needs=needs)) == ("one",)


def test_a_hook_that_does_not_take_is_named(engine: Engine) -> None:
    """A module that ignores what is set on it stands for whatever may go wrong there."""
    module = engine.module("core")

    class Deaf(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            """Ignore it."""

    module.__class__ = Deaf
    error = refused(engine.adapter(engine.hook("core.add", "around", print)))
    assert error.code == "D143"
    assert f"one on {engine.name}.core.add" in error.says


def test_a_replacement_that_fails_is_named(engine: Engine) -> None:
    def fails(_original: object) -> object:
        raise KeyError("rows")

    error = refused(engine.adapter(engine.hook("core.Table", "replace", fails)))
    assert (error.code, "adapter one" in error.says) == ("D143", True)


@pytest.mark.parametrize("raised", [CheckFailed("D151", "no.", fix="mend"), RuntimeError("odd")])
def test_register_ends_the_process(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    """SystemExit is all that SGLang's loader lets through; an unforeseen exception becomes one."""

    def replace(_original: object) -> object:
        raise raised

    monkeypatch.setenv("DSV41_TP_PAD", "1")
    adapter = engine.adapter(engine.hook("core.Table", "replace", replace))
    with pytest.raises(SystemExit) as ended:
        install.register("vllm", (adapter,))
    assert str(ended.value.code).startswith(f"dsv41: {getattr(raised, 'code', 'D143')} ")
    with pytest.raises(SystemExit, match=r"D143 the engine_of_nobody plugin failed"):
        install.register(
            "engine_of_nobody", (engine.adapter(engine.hook("core.add", "after", print)),)
        )
