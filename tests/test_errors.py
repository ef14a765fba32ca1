"""Every code is explained, every explanation is used."""

import re
from pathlib import Path

from dsv41 import errors

SOURCE = Path(errors.__file__).parent
NIX = Path(__file__).parent.parent / "nix"
RAISED = re.compile(r'"(D\d{3})"')
SAID = re.compile(r'"(D\d{3}) ')  # where nothing of dsv41 can be imported


def test_codes_and_explanations_agree() -> None:
    used = {code for path in SOURCE.rglob("*.py") for code in RAISED.findall(path.read_text())}
    builders = [path for path in NIX.rglob("*") if path.suffix in {".nix", ".py"}]
    used |= {code for path in builders for code in SAID.findall(path.read_text())}
    assert used == errors.explanations().keys()


def test_explanations_are_whole() -> None:
    for entry in errors.explanations().values():
        assert not entry.title.endswith(".")
        assert entry.text.endswith((".", "`"))
        assert len(entry.text) > 20


def test_the_tree_has_its_exit_statuses() -> None:
    tree = [errors.CheckFailed, errors.UsageError, errors.Unreachable]
    tree += [errors.EngineFailed, errors.Unsafe]
    assert [kind.exit_status for kind in tree] == [1, 2, 3, 4, 5]
    assert all(kind.__base__ is errors.Error for kind in tree)
