"""Write the golden Plans below tests/cases again; tests/test_plan_formats.py holds plan to them."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from planned import SPARK_PROFILES, planned  # noqa: E402 - found on the path above


def main() -> None:
    """One file a profile."""
    for name in SPARK_PROFILES:
        (TESTS / "cases" / f"plan-{name}.json").write_text(planned(name).to_json())


if __name__ == "__main__":
    main()
