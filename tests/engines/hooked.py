"""Adapters in this process's SGLang, and the engine as it was afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context, get_parallel

from dsv41.adapters import install, probe
from dsv41.adapters.adapter import Adapter


@contextmanager
def hooked(*adapters: Adapter, **environ: str) -> Iterator[None]:
    """Install what `environ` asks for, as the plugin does, and take it out again."""
    before = dict(_places(adapters))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        names = install.install("sglang", adapters, environ)
        assert names == tuple(adapter.name for adapter in adapters)
        try:
            yield
        finally:
            _put_back(before)


def _places(adapters: tuple[Adapter, ...]) -> Iterator[tuple[str, Any]]:
    for hook in [hook for adapter in adapters for hook in adapter.hooks]:
        try:
            yield hook.target, probe.find(hook.target).raw
        except LookupError:
            assert hook.optional, hook.target


def _put_back(before: Mapping[str, Any]) -> None:
    for target, raw in before.items():
        place = probe.find(target)
        setattr(place.owner, place.name, raw)
        for module in [m for m in sys.modules.values() if hasattr(m, "__dict__")]:
            for name in [n for n, value in vars(module).items() if value is place.value]:
                setattr(module, name, raw)
    HookRegistry.reset()
    install._installed.clear()


@contextmanager
def published(**settings: Any) -> Iterator[None]:
    """This process's configuration, as a scheduler of one rank without a model has it."""
    with (
        get_context().override_server_args(model_path="dummy", **settings),
        get_parallel().override(dp_rank=0, attn_tp_rank=0),
    ):
        yield
