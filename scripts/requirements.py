"""Print a part of poetry.lock as a pip requirements file: `requirements.py LOCK build|others`."""

import re
import sys
import tomllib
from pathlib import Path


def main(lock: Path, part: str) -> None:
    """One line a package: name, version, markers, the SHA-256 of each of its files.

    `build` is what builds the two distributions, `others` all else; each package is in one part.
    """
    for package in tomllib.loads(lock.read_text(encoding="utf-8"))["package"]:
        if ("build" in package["groups"]) != (part == "build"):
            continue
        condition = _condition(package["groups"], package.get("markers", ""))
        hashes = " ".join(f"--hash={entry['hash']}" for entry in package["files"])
        sys.stdout.write(f"{package['name']}=={package['version']}{condition} {hashes}\n")


def _condition(groups: list[str], markers: str | dict[str, str]) -> str:
    """When a package is wanted; a table of markers lists only the groups that have one."""
    if isinstance(markers, dict):
        if set(groups) - set(markers):
            return ""
        markers = " or ".join(f"({marker})" for marker in markers.values())
    # every extra is wanted, and pip knows of none while it reads a requirements file
    wanted = re.sub(r'extra == "[\w-]+"', 'python_version >= "3"', markers)
    return f" ; {wanted}" if wanted else ""


main(Path(sys.argv[1]), sys.argv[2])
