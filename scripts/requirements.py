"""Print poetry.lock as a pip requirements file with hashes."""

import sys
import tomllib
from pathlib import Path


def main(lock: Path) -> None:
    """One line a package: name, version, markers, the SHA-256 of each of its files."""
    for package in tomllib.loads(lock.read_text(encoding="utf-8"))["package"]:
        markers = package.get("markers", "")
        if isinstance(markers, dict):  # one marker a dependency group; all groups are wanted
            markers = " or ".join(f"({marker})" for marker in markers.values())
        condition = f" ; {markers}" if markers else ""
        hashes = " ".join(f"--hash={entry['hash']}" for entry in package["files"])
        sys.stdout.write(f"{package['name']}=={package['version']}{condition} {hashes}\n")


main(Path(sys.argv[1]))
