"""Every code is explained, every explanation is used."""

import re
from pathlib import Path

from dsv41 import errors

SOURCE = Path(errors.__file__).parent
RAISED = re.compile(r'"(D\d{3})"')


def test_codes_and_explanations_agree() -> None:
    used = {code for path in SOURCE.rglob("*.py") for code in RAISED.findall(path.read_text())}
    assert used == errors.explanations().keys()


def test_explanations_are_whole() -> None:
    for entry in errors.explanations().values():
        assert not entry.title.endswith(".")
        assert entry.text.endswith((".", "`"))
        assert len(entry.text) > 20


def test_the_tree_has_its_exit_statuses() -> None:
    statuses = {cls.__name__: cls.exit_status for cls in errors.Error.__subclasses__()}
    assert statuses == {
        "CheckFailed": 1,
        "UsageError": 2,
        "Unreachable": 3,
        "EngineFailed": 4,
        "Unsafe": 5,
    }
