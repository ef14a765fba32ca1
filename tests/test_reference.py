"""The generated reference pages are what the code makes of its data; their examples run."""

import dataclasses
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from dsv41 import errors, example, fleet, profile
from dsv41.cli import main
from dsv41.knobs import KNOBS

ROOT = Path(__file__).parent.parent


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = script()


@pytest.mark.parametrize("name", list(REFERENCE.PAGES))
def test_the_committed_page_is_the_made_one(name: str) -> None:
    """`make reference` writes them again."""
    assert (ROOT / "docs" / "reference" / name).read_text() == REFERENCE.page(name)


def test_every_key_code_and_knob_is_there() -> None:
    keys = {field.name for kind in (fleet.Fleet, fleet.Node) for field in dataclasses.fields(kind)}
    assert keys == REFERENCE.KEYS.keys()
    page = REFERENCE.page("errors.md")
    assert all(f"## {code}:" in page for code in errors.explanations())
    profiles = REFERENCE.page("profiles.md")
    assert all(f"`{knob}`" in profiles for rules in KNOBS.values() for knob in rules)


def test_the_profile_of_the_page_is_planned_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both by its file and by the flags that stand below it."""
    monkeypatch.chdir(tmp_path)
    page = REFERENCE.page("profiles.md")
    text, below = page.split("```toml\n", 1)[1].split("```\n", 1)
    Path("mine.toml").write_text(text)
    Path("fleet.toml").write_text(example.fleet_text(profile.load("tp4")))
    commands = re.findall("`dsv41 (plan [^`]+)`", below)
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)) == 0, command
