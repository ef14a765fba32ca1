"""Write a layer: `python build_layer.py SPEC.json OUT`.

SPEC is `{"sources": [...], "rules": {path: owner or null}}` with the sources of
`layer_sources.read`, the rules of `tar_layer.Layer`. What is refused: exit status 1 and one line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from layer_sources import read
from tar_layer import Layer, Refused


def build(spec: Path, out: Path) -> None:
    """Write the layer of a specification."""
    wanted = json.loads(spec.read_text())
    layer = Layer(rules=wanted.get("rules", {}))
    with tempfile.TemporaryDirectory() as scratch:
        for source in wanted["sources"]:
            layer.extend(read(source, scratch=Path(scratch)))
        with out.open("wb") as file:
            layer.write(file)


def main() -> int:
    """Do it."""
    spec, out = map(Path, sys.argv[1:])
    try:
        build(spec, out)
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
