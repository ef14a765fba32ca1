"""Says once, in the plain run, that the real-engine suite (tests/engines) runs elsewhere."""

from pathlib import Path

import pytest

PYTHON = Path(__file__).parent.parent / ".cache" / "engines" / "sglang-0.5.23" / "bin" / "python"


def test_the_real_engines() -> None:
    if not PYTHON.exists():
        pytest.skip("THE ENGINES ARE NOT INSTALLED: make test-engines installs them (3 GB)")
    pytest.skip("the real engines have their own Python and run: make test-engines")
