"""The command lines of `share` and `weights`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Verb = Callable[..., argparse.ArgumentParser]


def add(verbs: Any, verb: Verb, *, state_dir: Path) -> None:
    """Add both; `verb` makes a command as the parser makes all of them."""
    share = verb(
        verbs,
        "share",
        "data.share",
        effect="changes hosts",
        says="Export one node's checkpoint over NFS and mount it on the others.",
    )
    share.add_argument("--fleet", type=Path, required=True, metavar="F", help="the fleet file")
    share.add_argument("--dry-run", action="store_true", help="print the steps that are left")
    share.add_argument("--remove", action="store_true", help="take mounts and export away")
    share.add_argument(
        "--tables", action="store_true", help="push the tables to every node, or remove them"
    )
    share.add_argument(
        "--rewrite-exporter",
        action="store_true",
        help="also in a container that another launcher started",
    )
    weights = verbs.add_parser("weights", help="the checkpoint's files", allow_abbrev=False)
    inner = weights.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _fetch(
        verb(
            inner,
            "fetch",
            "weights.fetch_all",
            effect="changes hosts",
            says="Fetch the profile's revision onto the nodes that hold it, and verify it.",
        )
    )
    _verify(
        verb(
            inner,
            "verify",
            "weights.verify",
            effect="reads hosts",
            says="Compare every byte with the published hashes.",
        ),
        state_dir,
    )


def _fetch(fetch: argparse.ArgumentParser) -> None:
    fetch.add_argument("--profile", required=True, metavar="P", help="a name or ./file.toml")
    fetch.add_argument("--to", type=Path, metavar="DIR", help="a folder of this machine")
    fetch.add_argument("--image", metavar="REF", help="the engine's image, which has the client")
    fetch.add_argument("--python", metavar="PY", help="a Python with huggingface_hub, no container")
    fetch.add_argument("--xet", action="store_true", help="let the client use Xet transfers")
    fetch.add_argument(
        "--stall", type=float, default=300.0, metavar="S", help="start again after S s of nothing"
    )
    fetch.add_argument("--dry-run", action="store_true", help="print the steps and do nothing")
    _both(fetch)


def _verify(verify: argparse.ArgumentParser, state_dir: Path) -> None:
    verify.add_argument("--profile", metavar="P", help="whose revision; local: the tiny checkpoint")
    verify.add_argument("--dir", type=Path, metavar="DIR", help="a folder of this machine")
    verify.add_argument("--revision", metavar="SHA", help="with --dir, instead of a profile")
    verify.add_argument("--lines", action="store_true", help="progress as JSON lines (over ssh)")
    verify.add_argument("--state-dir", type=Path, default=state_dir, help="of profile local")
    _both(verify)


def _both(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fleet", type=Path, metavar="F", help="the fleet file")
    parser.add_argument("--node", metavar="N", help="this node alone")
    parser.add_argument("--hub", metavar="URL", help="another address of the hub, as a mirror")
    parser.add_argument("--token-file", type=Path, metavar="F", help="the hub's token, mode 0600")
    parser.add_argument("--published", type=Path, metavar="FILE", help="the list of hashes")
    parser.add_argument("--offline", action="store_true", help="ask no hub for the hashes")
    parser.add_argument("--again", action="store_true", help="read files that were read before")
