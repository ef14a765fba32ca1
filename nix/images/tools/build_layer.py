"""Write a layer, or only list it: `python build_layer.py [--measure] SPEC.json OUT`.

SPEC is `{"sources": [...], "rules": {path: owner or null}}` with the sources of
`layer_sources.read`, the rules of `tar_layer.Layer`. With --measure, OUT is `{"diff_id", "size"}`
of the layer, whose bytes are kept nowhere. What is refused: exit status 1 and one line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from layer_sources import read
from stub_library import NoFunctions
from tar_layer import Layer, Refused, Writable


class Meter:
    """A file that counts and hashes what is written into it."""

    def __init__(self) -> None:
        self.size, self._digest = 0, hashlib.sha256()

    def write(self, data: bytes, /) -> int:
        """Take the bytes; how many there were."""
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    def listed(self) -> dict[str, Any]:
        """What layers.json has of a layer."""
        return {"diff_id": f"sha256:{self._digest.hexdigest()}", "size": self.size}


def build(spec: Path, out: Writable) -> None:
    """Write the layer of a specification."""
    wanted = json.loads(spec.read_text())
    layer = Layer(rules=wanted.get("rules", {}))
    with tempfile.TemporaryDirectory() as scratch:
        for source in wanted["sources"]:
            layer.extend(read(source, scratch=Path(scratch)))
        layer.write(out)


def main() -> int:
    """Do it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("spec", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    try:
        if asked.measure:
            meter = Meter()
            build(asked.spec, meter)
            asked.out.write_text(json.dumps(meter.listed()) + "\n")
        else:
            with asked.out.open("wb") as file:
                build(asked.spec, file)
    except (Refused, NoFunctions) as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
