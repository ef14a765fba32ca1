"""One truth in pyproject.toml: what Poetry 2 reads and what poetry2nix reads agree."""

import re
import tomllib
from pathlib import Path
from typing import Any

import dsv41

ROOT = Path(__file__).parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, POETRY = PYPROJECT["project"], PYPROJECT["tool"]["poetry"]
LOCK: dict[str, Any] = tomllib.loads((ROOT / "poetry.lock").read_text())


def requirement(text: str) -> tuple[str, str]:
    found = re.match(r"([\w.-]+)(.*)", text)
    assert found is not None
    return found[1].lower(), found[2].removeprefix("==").strip()


def test_the_two_tables_agree() -> None:
    for key in ("name", "version", "description", "scripts"):
        assert PROJECT[key] == POETRY[key]
    assert PROJECT["version"] == dsv41.__version__
    assert PROJECT["requires-python"] == POETRY["dependencies"]["python"]
    extra = dict(map(requirement, PROJECT["optional-dependencies"]["local"]))
    assert extra == POETRY["group"]["local"]["dependencies"]


def test_the_operator_command_needs_rich_at_most() -> None:
    assert set(POETRY["dependencies"]) <= {"python", "rich"}


def test_the_lock_has_no_torch_and_no_urls() -> None:
    text = (ROOT / "poetry.lock").read_text()
    assert "://" not in text
    names = {package["name"] for package in LOCK["package"]}
    assert names >= {"numpy", "deepseek-recipe", "starlette", "pytest", "scikit-build-core"}
    assert not {n for n in names if n.startswith(("torch", "nvidia", "triton", "cuda"))}
    for package in LOCK["package"]:
        assert all(entry["hash"].startswith("sha256:") for entry in package["files"])


def test_the_lock_has_the_published_wheels() -> None:
    """The SHA-256 of the two DeepSeek wheels, as the facts about the model record them."""
    hashes = {entry["hash"] for package in LOCK["package"] for entry in package["files"]}
    assert "sha256:259812bf382bc82668b672707c5922095cc4f5f60a6c514ff89640bb62a746f7" in hashes
    assert "sha256:b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88" in hashes
