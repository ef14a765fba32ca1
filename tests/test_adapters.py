"""The frame of the engine plugin, on small engines on disk; tests/engines has the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv41.adapters import install, probe
from dsv41.adapters.adapter import Adapter, is_on
from dsv41.errors import UsageError
from small_engine import Engine, put


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.syspath_prepend(tmp_path)
    return Engine(tmp_path)


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


@pytest.mark.parametrize("text", ["true", "on", "1.0", "no", "0x1", "1 0"])
def test_what_is_no_number_is_not_off(text: str) -> None:
    adapter = Adapter(name="x", switch="tp_pad", engines=(), trees=(), hooks=())
    with pytest.raises(UsageError, match=rf"D074 DSV41_TP_PAD is '{text}'; expected an integer"):
        is_on(adapter, {"DSV41_TP_PAD": text})


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
