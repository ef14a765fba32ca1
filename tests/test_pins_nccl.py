"""Package `nccl-sparkring`: its check of a library, and its variants against the served ring."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsv41.steps import MARKER
from planned import planned

ROOT = Path(__file__).parent.parent
CHECK_LIBRARY = ROOT / "nix" / "packages" / "check_library.py"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library that has a marker, names a folder of the store, and calls glibc."""
    folder = tmp_path_factory.mktemp("library")
    source = folder / "library.c"
    source.write_text('#include <stdlib.h>\nchar *find(void) { return getenv("A_MARKER"); }\n')
    made = folder / "lib.so"
    link = ["-shared", "-fPIC", "-Wl,-rpath,/nix/store/none"]
    command = ["g++", "-x", "c", *link, "-o", str(made), str(source)]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize(
    ("glibc", "marker", "faults"),
    [
        ("99", "A_MARKER", ["/nix/store/none, which an image does not have"]),
        ("99", "B_MARKER", ["does not contain 'B_MARKER'", "/nix/store/none"]),
        ("2.0", "A_MARKER", ["/nix/store/none", "; the image has 2.0"]),
    ],
)
def test_a_library_that_an_image_cannot_take_is_refused(
    library: Path, glibc: str, marker: str, faults: list[str]
) -> None:
    command = [sys.executable, str(CHECK_LIBRARY), str(library), glibc, marker]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == len(faults)
    assert all(fault in line for fault, line in zip(faults, lines, strict=True))


def test_the_switches_of_the_built_nccl_are_those_that_a_ring_is_served_with() -> None:
    """The variants are data of the flake; the Plan sets what switches the patches on."""
    variants = json.loads((ROOT / "nix" / "packages" / "nccl-variants.json").read_text())
    pinned = json.loads((ROOT / "nix" / "pins.json").read_text())["pins"]
    files = {pin["name"] for pin in pinned if pin["sha256"]}
    ring = planned("tp4-ring").ranks[0].env
    assert MARKER in variants["switchless-cycle"]["markers"]
    for variant in variants.values():
        assert variant["switches"].items() <= ring.items()
        for patch in variant["patches"]:
            assert patch.get("pin", "") in files or re.fullmatch(r"[0-9a-f]{64}", patch["sha256"])
