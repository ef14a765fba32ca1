"""Build the project of the current folder by its own build backend and install the wheel into $out.

A PEP 517 front end of a screenful, with two checks that nixpkgs makes as well: every requirement
of [build-system] and every run-time requirement must be among the declared inputs, in a fitting
version. It leaves out RECORD and compiles to bytecode that is keyed to nothing, so that the result
is the same bytes every time and no later run as root writes into the store.

Environment: `out`, `site` (the virtual environment's site-packages), `sitePackages` (below `out`),
`host_python`, `PYTHONPATH` (the declared inputs), `pythonImportsCheck` (modules, by blanks).
"""

import compileall
import email
import importlib
import os
import py_compile
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.append(os.environ["site"])
from packaging.requirements import Requirement  # the virtual environment's own

sys.path.remove(os.environ["site"])

inputs = [path for path in os.environ["PYTHONPATH"].split(":") if path]
target = Path(os.environ["out"]) / os.environ["sitePackages"]


def check(requirements: list[str], *, kind: str) -> None:
    """Refuse a requirement that the declared inputs do not fulfill."""
    for text in requirements:
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(needed.name)
        except PackageNotFoundError:
            sys.exit(f"{kind} requirement {text!r} is not among the declared inputs")
        if not needed.specifier.contains(found, prereleases=True):
            sys.exit(f"{kind} requirement {text!r} is not met by {needed.name} {found}")


def build(folder: Path) -> Path:
    """Build the wheel of the current folder and return its path."""
    system = tomllib.loads(Path("pyproject.toml").read_text())["build-system"]
    check(system["requires"], kind="build")
    sys.path[:0] = system.get("backend-path", [])
    backend = importlib.import_module(system["build-backend"])
    return folder / str(backend.build_wheel(str(folder)))


def command(path: Path, entry: str) -> None:
    """Write a console script that finds this package and its inputs, and nothing of the host's."""
    module, function = entry.split(":")
    search = [str(target), *inputs]
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"#!{os.environ['host_python']} -IS\n"
        f"import sys\nsys.path += {search!r}\n"
        f"from {module} import {function}\nsys.exit({function}())\n"
    )
    path.chmod(0o755)


def install(wheel: Path) -> None:
    """Unpack the wheel, check what it requires, write its commands."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    (info,) = target.glob("*.dist-info")
    (info / "RECORD").unlink()
    metadata = email.message_from_string((info / "METADATA").read_text())
    check(metadata.get_all("Requires-Dist", []), kind="run-time")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(target, quiet=1, invalidation_mode=unchecked)
    entries = ConfigParser()
    entries.read(info / "entry_points.txt")
    scripts = entries["console_scripts"] if entries.has_section("console_scripts") else {}
    for name, entry in scripts.items():
        command(Path(os.environ["out"], "bin", name), entry)


def main() -> None:
    """Build, install, import."""
    with tempfile.TemporaryDirectory() as folder:
        install(build(Path(folder)))
    for module in os.environ["pythonImportsCheck"].split():
        code = f"import sys; sys.path.insert(0, {str(target)!r}); import {module}"
        subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


main()
