"""The real SGLang on a CPU. `make test-engines` runs this folder by its Python, once a tree.

In any other Python the folder is left out; tests/test_real_engines.py says so once.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # what several of these tests share lies beside them
INSTALLED = importlib.util.find_spec("sglang") is not None
collect_ignore_glob = [] if INSTALLED else ["*.py"]

# of adapters that are for 0.5.23 alone; the header says so in a run on the older release
NEWER = ["test_verify_cap.py", "test_fp8_twins.py", "test_fast_load.py"]
if INSTALLED:
    from frame_tables import installed

    import engine_cpu

    collect_ignore = NEWER if installed().startswith("0.5.21") else []

    assert engine_cpu.OPERATORS is not None


def pytest_configure(config: pytest.Config) -> None:
    """Warnings of the engine are its own affair; those of dsv41 stay errors."""
    if INSTALLED:
        config.addinivalue_line("filterwarnings", "ignore")
        config.addinivalue_line("filterwarnings", "error:::dsv41")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is marked `engines`; importing SGLang takes eight seconds and more."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engines)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


def pytest_report_header() -> str:
    """Which tree it is, and what is left out in it."""
    if not INSTALLED:
        return ""
    left = f"; LEFT OUT, for 0.5.23 alone: {', '.join(collect_ignore)}" if collect_ignore else ""
    return f"sglang {installed()}{left}"
