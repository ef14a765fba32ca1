"""Check a library that is mounted into an image: `python check_library.py FILE GLIBC MARKER...`.

It must contain the strings of its patches, name no path of the Nix store, and need no newer glibc
than the image has: two glibcs in one process end in a crash at best. Exit status 1 and a line for
each fault. Reads the dynamic section and the version needs by readelf (binutils).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NEEDED = re.compile(r"\((NEEDED|RPATH|RUNPATH)\).*\[(.*)\]")
GLIBC = re.compile(r"Name: GLIBC_([0-9]+(?:\.[0-9]+)+)")


def faults(library: Path, *, glibc: str, markers: list[str]) -> Iterator[str]:
    """Everything that is wrong with a library."""
    content = library.read_bytes()
    for marker in markers:
        if marker.encode() not in content:
            yield f"does not contain {marker!r}: it is not the patched library"
    for kind, value in NEEDED.findall(readelf(library, "--dynamic")):
        if "/" in value:
            yield f"has the {kind} {value}, which an image does not have"
    found = {
        tuple(map(int, v.split("."))) for v in GLIBC.findall(readelf(library, "--version-info"))
    }
    newest, limit = max(found, default=(0,)), tuple(map(int, glibc.split(".")))
    if newest > limit:
        yield f"needs glibc {'.'.join(map(str, newest))}; the image has {glibc}"


def readelf(library: Path, what: str) -> str:
    """What readelf says of a file."""
    command = ["readelf", "--wide", what, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print every fault."""
    library, glibc, *markers = sys.argv[1:]
    found = list(faults(Path(library), glibc=glibc, markers=markers))
    for fault in found:
        sys.stderr.write(f"{library} {fault}\n")
    sys.exit(bool(found))


main()
