"""Engines as renderers: profile + fleet + rank -> argv, environment, mounts.

The only room that knows an engine's flags and environment names. Each engine is one module
with `render(profile, fleet, rank) -> Launch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from dsv41.fleet import Fleet
from dsv41.profile import Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How one rank is started: its command, environment, mounts and container options."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    # flags with a value, and variables, that may differ from rank to rank
    own_flags: frozenset[str] = field(default_factory=frozenset)
    # flags without a value that may differ
    own_switches: frozenset[str] = field(default_factory=frozenset)
    # where the container has its cache folder; None for an engine without one
    cache: str | None = None


def renderer(engine: str) -> Callable[[Profile, Fleet, int], Launch]:
    """The `render` of an engine that `profile.KNOBS` names."""
    render: Callable[[Profile, Fleet, int], Launch] = import_module(
        f"dsv41.engines.{engine}"
    ).render
    return render
