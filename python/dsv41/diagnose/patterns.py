"""All known failures, in the order of cause and consequence."""

from __future__ import annotations

from dsv41.diagnose import patterns_engine, patterns_fabric, patterns_plugin
from dsv41.diagnose.pattern import Pattern

PATTERNS: tuple[Pattern, ...] = (
    *patterns_plugin.CAUSES,
    *patterns_fabric.CAUSES,
    *patterns_engine.CAUSES,
    *patterns_fabric.CONSEQUENCES,
    *patterns_engine.CONSEQUENCES,
)
