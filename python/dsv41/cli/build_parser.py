"""The command line of `build`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add(verbs: Any, verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Add it; `verb` makes a command as the parser makes all of them."""
    build = verb(
        verbs,
        "build",
        "build.build",
        effect="changes hosts",
        says="Bring the engine's image to every node, by its digest.",
    )
    build.add_argument("--profile", metavar="P", help="a name or ./file.toml")
    build.add_argument("--fleet", type=Path, metavar="F", help="the fleet file")
    build.add_argument("--tree", metavar="T", help="another engine build, as sglang-branch")
    build.add_argument("--image", metavar="REF", help="another image, with its digest")
    build.add_argument(
        "--from",
        dest="source",
        metavar="S",
        help="nix (default), an OCI folder, an archive of one, or HOST/NAME@sha256:...",
    )
    build.add_argument(
        "--node", action="append", default=[], metavar="NAME", help="this node alone; may repeat"
    )
    build.add_argument("--plan", type=Path, metavar="FILE", help="on a node: the Plan's image")
    build.add_argument("--rank", type=int, metavar="N", help="with --plan: which rank")
    build.add_argument("--dry-run", action="store_true", help="say what would be sent")
