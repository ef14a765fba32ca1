"""Every command of ours that a fix or an explanation names is one that the parser takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv41 import errors
from dsv41.cli.parser import parse_arguments

ROOT = Path(errors.__file__).parent
SOURCES = [*(ROOT / "doctor").glob("*.py"), *(ROOT / "diagnose").glob("*.py")]
GROUPS = ("cache", "rank", "rows", "weights")  # commands that have commands
# a value is a placeholder or has a sign that no word of a sentence has; `tp3` is a profile
VALUE = r"(?:[A-Z]{1,9}\b|tp[34]\b|[^\s;,]*[./][^\s;,]*\w)"
NAMED = re.compile(
    rf"(?<!from )\bdsv41 (?P<verb>(?:{'|'.join(GROUPS)}) [a-z]+|[a-z-]+)"
    rf"(?P<rest>(?: --[a-z-]+(?: (?:podman|{VALUE}))?| {VALUE}| -(?= ))*)"
)
# what the bare name of a command stands for: its required arguments
WHOLE = {
    "doctor": "--fleet F --profile P",
    "explain": "D001",
    "rows import": "FILE --out D",
    "rows verify": "FILE",
    "cache clear": "--fleet F",
    "share": "--fleet F",
}


def strings(path: Path) -> Iterator[str]:
    """The strings of a module, with VALUE where an f-string has an expression."""
    inner = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "VALUE"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in inner:
            yield str(node.value)


def commands(text: str) -> Iterator[str]:
    for found in NAMED.finditer(" ".join(text.split())):
        yield f"{found['verb']}{found['rest'] or ' ' + WHOLE.get(found['verb'], '')}".strip()


def explained() -> Iterator[tuple[str, str]]:
    for code, entry in errors.explanations().items():
        for quoted in re.findall(r"`([^`]+)`", entry.text):
            if re.match(r"dsv41\s", quoted):
                yield from ((code, command) for command in commands(quoted))


NAMES = [(path.stem, c) for path in SOURCES for text in strings(path) for c in commands(text)]
NAMES += explained()


def test_they_are_found() -> None:
    assert ("D023", "pack") in NAMES
    assert ("fixes", "plan --profile PROFILE --fleet FLEET --why") in NAMES
    assert ("packed", "rows verify VALUE") in NAMES
    assert list(commands("dsv41 weights fetch on spark1 goes on")) == ["weights fetch"]
    assert list(commands("dsv41 doctor --fleet f.toml names")) == ["doctor --fleet f.toml"]
    assert list(commands("dsv41 doctor names, dsv41 stop, then")) == [
        "doctor --fleet F --profile P",
        "stop",
    ]


@pytest.mark.parametrize(("where", "command"), sorted(set(NAMES)))
def test_the_parser_takes_it(where: str, command: str) -> None:
    if command.endswith("--help"):
        with pytest.raises(SystemExit) as left:
            parse_arguments(shlex.split(command))
        assert left.value.code == 0
    else:
        assert callable(parse_arguments(shlex.split(command)).verb), where


@pytest.mark.parametrize("command", ["weights", "share --remove", "doctor --fleet F"])
def test_what_is_no_command_is_seen(command: str) -> None:
    with pytest.raises(errors.UsageError, match="D001"):
        parse_arguments(shlex.split(command))


def test_no_fix_starts_or_stops_what_runs_on_this_machine_only() -> None:
    """Without --fleet, `serve`, `stop`, `pack`, `status` and `logs` mean this machine alone."""
    fixes = [command for where, command in NAMES if not re.match(r"D\d|reference$", where)]
    assert {command.split()[0] for command in fixes} == {"doctor", "explain", "plan", "rows"}
