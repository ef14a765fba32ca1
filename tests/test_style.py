"""The measures of the code that the house keeps to."""

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "python").rglob("*.py"))
NATIVE = [
    path
    for path in sorted((ROOT / "csrc").rglob("*"))
    if path.suffix in (".cpp", ".hpp", ".h", ".c") and "build" not in path.parts
]
FORBIDDEN = {"utils", "common", "helpers", "manager"}


def function_lengths() -> list[int]:
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())))
    functions = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return sorted((f.end_lineno or f.lineno) - f.lineno + 1 for f in functions)


def test_functions_are_short() -> None:
    lengths = function_lengths()
    assert statistics.median(lengths) <= 9
    assert lengths[int(len(lengths) * 0.9)] <= 35


def test_files_are_short() -> None:
    paths = [*SOURCES, *NATIVE, *(ROOT / "tests").rglob("*.py"), *(ROOT / "nix").rglob("*.nix")]
    long = {p.name: n for p in paths if (n := len(p.read_text().splitlines())) > 300}
    assert not long


def test_no_file_is_named_after_nothing() -> None:
    assert not [p for p in SOURCES if p.stem in FORBIDDEN]


def test_only_the_command_prints() -> None:
    talkers = {
        p.relative_to(ROOT / "python" / "dsv41").as_posix()
        for p in SOURCES
        for node in ast.walk(ast.parse(p.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert talkers <= {"cli/talk.py"}
