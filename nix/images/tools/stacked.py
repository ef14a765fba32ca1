"""Do the layers of an image agree? `python stacked.py SPEC.json`, the SPEC of oci_image.py.

An upper layer covers what lower ones have of the same path, and nothing says so when the image
runs. So a path of two layers must be the same folder in both, unless the upper one's `replaces`
names it; and what `replaces` names must be there to be replaced, once. Of a base nothing is read,
of the other layers the headers.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tar_layer import Refused


def headers(layer: Path) -> Iterator[tuple[str, str]]:
    """Path and kind of all that a layer has; a folder's kind has its mode."""
    with tarfile.open(layer) as archive:
        for member in archive:
            yield member.name, f"folder {member.mode:o}" if member.isdir() else "file"


def check(layers: Iterable[tuple[str, Iterable[tuple[str, str]], Iterable[str]]]) -> None:
    """Layers from bottom to top: name, paths with their kinds, the paths that it replaces.

    Raises:
        Refused: D184 for a path of two layers, and for a replacement of nothing or of two.
    """
    seen: dict[str, list[tuple[str, str]]] = {}
    for name, paths, replaces in layers:
        left = set(replaces)
        for path, kind in paths:
            below = seen.setdefault(path, [])
            if path in left and kind == "file":
                if [before for _, before in below] != ["file"]:
                    raise Refused(f"D184 {name} replaces {path}, which {_owners(below)} below it.")
                left.remove(path)
            elif below and (kind == "file" or below[-1][1] != kind):
                owner, before = below[-1]
                raise Refused(
                    f"D184 {path} is a {before} of the layer {owner} and a {kind} of {name}."
                )
            below.append((name, kind))
        if left:
            raise Refused(f"D184 {name} does not have {min(left)}, which it would replace.")


def _owners(below: list[tuple[str, str]]) -> str:
    if not below:
        return "no layer has"
    return f"{', '.join(name for name, _ in below)} {'have' if len(below) > 1 else 'has'}"


def of_image(spec: Mapping[str, Any]) -> None:
    """Check the layers of an image's specification."""
    check(
        (layer["comment"], headers(Path(layer["blob"])), layer["replaces"])
        for layer in spec["layers"]
    )


def main() -> int:
    """Do it."""
    try:
        of_image(json.loads(Path(sys.argv[1]).read_text()))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
