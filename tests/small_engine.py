"""Small engines written to disk, for the tests of the plugin's frame."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsv41.adapters import install
from dsv41.adapters.adapter import Adapter, Hook, Kind
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


def put(*adapters: Adapter) -> tuple[str, ...]:
    return install.install("vllm", adapters, ON)


def refused(*adapters: Adapter) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        put(*adapters)
    return caught.value
