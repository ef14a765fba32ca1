"""The frame of the engine plugin, on small engines on disk; tests/engines has the real one."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsv41.adapters import install, probe
from dsv41.adapters.adapter import Adapter, Hook, Kind, is_on
from dsv41.errors import CheckFailed

ON = {"DSV41_TP_PAD": "1"}
NUMBERS = itertools.count()
CORE = """
def add(a, b=1):
    return a + b

class Table:
    def __init__(self, rows):
        self.rows = rows
    def read(self, row):
        return self.rows[row]
    @classmethod
    def named(cls, name):
        return f"{cls.__name__} {name}"
    @staticmethod
    def double(x):
        return 2 * x
    class Inner:
        def size(self):
            return 0

class Smaller(Table):
    pass

LIMIT = 3
"""
USER = "from {name}.core import add, Table\n"


class Engine:
    """A package of its own name, with the modules `core`, `user` and `broken`."""

    def __init__(self, folder: Path) -> None:
        self.name = f"engine_{next(NUMBERS)}"
        package = folder / self.name
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "core.py").write_text(CORE)
        (package / "user.py").write_text(USER.format(name=self.name))
        (package / "broken.py").write_text("import libgpu_that_no_machine_has\n")

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self.name}.{name}")

    def hook(self, target: str, kind: Kind, call: Callable[..., object], **more: Any) -> Hook:
        return Hook(target=f"{self.name}.{target}", kind=kind, call=call, **more)

    def adapter(self, *hooks: Hook, name: str = "one", **more: Any) -> Adapter:
        return Adapter(name=name, switch="tp_pad", engines=("vllm",), trees=(), hooks=hooks, **more)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.syspath_prepend(tmp_path)
    return Engine(tmp_path)


def put(*adapters: Adapter) -> tuple[str, ...]:
    return install.install("vllm", adapters, ON)


def refused(*adapters: Adapter) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        put(*adapters)
    return caught.value


def test_every_kind_does_what_it_says(engine: Engine) -> None:
    core = engine.module("core")
    hooks = (
        engine.hook("core.add", "before", lambda a, b=1: ((a * 10,), {"b": b})),
        engine.hook("core.Table.read", "after", lambda result, _self, row: (result, row)),
        engine.hook("core.Table.double", "around", lambda double, x: double(x) + 1),
        engine.hook("core.Table.named", "after", lambda result, _cls, _name: result.upper()),
        engine.hook("core.Table.Inner.size", "replace", lambda _old: lambda _self: 7),
    )
    assert put(engine.adapter(*hooks)) == ("one",)
    assert core.add(2, b=3) == 23
    assert core.Table({1: "x"}).read(1) == ("x", 1)
    assert core.Table.double(4) == 9
    assert core.Table.named("engram") == "TABLE ENGRAM"
    assert core.Table.Inner().size() == 7


def test_none_leaves_things_as_they_are(engine: Engine) -> None:
    hooks = (
        engine.hook("core.add", "before", lambda *_a, **_k: None),
        engine.hook("core.add", "after", lambda *_a, **_k: None),
    )
    put(engine.adapter(*hooks))
    assert engine.module("core").add(2, 3) == 5


def test_later_adapters_are_around_earlier_ones(engine: Engine) -> None:
    one = engine.adapter(engine.hook("core.add", "around", lambda f, *a: f"({f(*a)})"))
    two = engine.adapter(engine.hook("core.add", "around", lambda f, *a: f"[{f(*a)}]"), name="two")
    assert put(one, two) == ("one", "two")
    assert engine.module("core").add(1, 1) == "[(2)]"


def test_a_class_is_replaced_first_and_everywhere(engine: Engine) -> None:
    user, core = engine.module("user"), engine.module("core")

    def larger(original: Any) -> type:
        class Larger(original):  # type: ignore[misc]
            def read(self, row: int) -> object:
                return f"larger {super().read(row)}"

        return Larger

    put(
        engine.adapter(engine.hook("core.Table.read", "around", lambda f, *a: f"<{f(*a)}>")),
        engine.adapter(engine.hook("core.Table", "replace", larger, takes=("rows",)), name="two"),
    )
    assert user.Table is core.Table
    assert user.Table([5]).read(0) == "<larger 5>"


def test_the_second_replacement_gets_the_first(engine: Engine) -> None:
    one = engine.adapter(engine.hook("core.add", "replace", lambda f: lambda *a: f(*a) + 100))
    two = engine.adapter(
        engine.hook("core.add", "replace", lambda f: lambda *a: -f(*a)), name="two"
    )
    put(one, two)
    assert engine.module("user").add(1, 2) == -103


def test_a_second_call_changes_nothing(engine: Engine) -> None:
    one = engine.adapter(engine.hook("core.add", "after", lambda result, *_a: result + 1))
    two = engine.adapter(
        engine.hook("core.Table.double", "after", lambda result, *_a: -result), name="two"
    )
    assert put(one) == put(one) == ("one",)
    core = engine.module("core")
    assert core.add(1, 1) == 3
    put(one, two)
    assert (core.add(1, 1), core.Table.double(2)) == (3, -4)


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


@pytest.mark.parametrize(
    ("environ", "switch", "on"),
    [
        ({}, "tp_pad", False),
        ({"DSV41_TP_PAD": "0"}, "tp_pad", False),
        ({"DSV41_TP_PAD": "1"}, "tp_pad", True),
        ({}, "loop_abort", False),  # its default is on, but nobody asked
        ({"DSV41_LOOP_ABORT": "1"}, "loop_abort", True),
        ({"DSV41_LOOP_ABORT": "0"}, "loop_abort", False),
        ({"DSV41_MXFP8_BACKEND": "off"}, "mxfp8_backend", False),
        ({"DSV41_MXFP8_BACKEND": "b12x"}, "mxfp8_backend", True),
        ({"DSV41_PACKED_DIR": "/engram"}, "engram_dir", True),
        ({"DSV41_PACKED_DIR": " "}, "engram_dir", False),
    ],
)
def test_what_is_on(environ: dict[str, str], switch: str, on: bool) -> None:
    adapter = Adapter(name="x", switch=switch, engines=(), trees=(), hooks=())
    assert is_on(adapter, environ) is on


def test_off_touches_nothing(engine: Engine) -> None:
    adapter = engine.adapter(engine.hook("broken.add", "around", print))
    assert install.install("vllm", (adapter,), {"DSV41_TP_PAD": "0"}) == ()
    assert f"{engine.name}.broken" not in sys.modules
    assert not [name for name in sys.modules if name.startswith(engine.name)]


def test_find_gives_the_owner(engine: Engine) -> None:
    place = probe.find(f"{engine.name}.core.Table.named")
    assert (place.owner, place.name) == (engine.module("core").Table, "named")
    assert isinstance(place.raw, classmethod)


@pytest.mark.parametrize("group", ["sglang.srt.plugins", "vllm.general_plugins"])
def test_the_installed_entry_point_loads_nothing_when_all_is_off(group: str) -> None:
    code = f"""
import sys
from importlib.metadata import entry_points
(point,) = entry_points(group={group!r}, name="dsv41")
point.load()()
heavy = {{"torch", "numpy", "sglang", "vllm", "rich"}}
print(sorted(heavy & {{name.split(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
