"""Every dsv41 command in the docs is one that the parser takes; every link leads somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from dsv41.cli.parser import parse_arguments
from dsv41.errors import explanations

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in FENCE.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                words = line.removeprefix("$ ").removeprefix(".venv/bin/")
                if words.startswith("dsv41 "):
                    found.append((page.name, words))
    return found


@pytest.mark.parametrize(("page", "line"), dict.fromkeys(commands()))
def test_commands_parse(page: str, line: str) -> None:
    words = shlex.split(line.partition(" > ")[0], comments=True)[1:]
    if "--version" not in words and "--help" not in words:
        assert callable(parse_arguments(words).verb), page


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_code_is_one_of_the_catalogue(page: Path) -> None:
    named = re.findall(r"\bD\d{3}\b", page.read_text())
    assert [code for code in named if code not in explanations()] == []


def test_every_user_report_that_is_named_has_its_line() -> None:
    """A reader can look up what a P number in a reason or a comment stands for."""
    page = (ROOT / "docs" / "reference" / "reports.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| (P\d\d) \|", page, re.MULTILINE))
    files = [p for p in (ROOT / "python" / "dsv41").rglob("*") if p.suffix in {".py", ".toml"}]
    named = {number for file in files for number in re.findall(r"\bP\d\d\b", file.read_text())}
    assert named
    assert named <= known
