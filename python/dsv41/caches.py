"""The compile caches on the nodes: one folder per image and engine environment.

A folder's name is the key that `plan` mounts: 16 hexadecimal digits. Nothing else in the cache
folder is touched. A cleared cache costs the next start the minutes of its kernel builds.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from dsv41.errors import CheckFailed
from dsv41.fleet import Fleet, Node

Run = Callable[[Node, str], tuple[int, str, str]]

_NAME = "[0-9a-f]" * 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Cached:
    """One cache folder of a node, with its bytes."""

    node: str
    path: str
    bytes: int


def command(fleet: Fleet, node: Node, *, remove: bool) -> str:
    """The command that lists a node's cache folders, `bytes<TAB>path` a line, and removes them."""
    sudo = "sudo -n " if node.sudo else ""
    step = f'{sudo}rm -rf -- "$d" || exit 1; ' if remove else ""
    return (
        f"for d in {shlex.quote(fleet.cache_dir)}/{_NAME}; do "
        '[ -d "$d" ] && [ ! -L "$d" ] || continue; '
        f's=$({sudo}du -sb -- "$d" | cut -f1); {step}'
        'printf "%s\\t%s\\n" "$s" "$d"; done'
    )


def clear(run: Run, fleet: Fleet, *, remove: bool = True) -> list[Cached]:
    """List every node's cache folders and, unless told otherwise, remove them.

    Raises CheckFailed D008 when a node could not remove one.
    """
    found = []
    for node in fleet.nodes:
        status, out, error = run(node, command(fleet, node, remove=remove))
        found += [_parse(node, line) for line in out.splitlines() if "\t" in line]
        if status != 0:
            raise CheckFailed(
                "D008",
                f"{node.name} could not clear its cache: {error.strip() or f'status {status}'}.",
                fix="give the node sudo = true in the fleet file, or clear it by hand",
            )
    return found


def _parse(node: Node, line: str) -> Cached:
    size, _, path = line.partition("\t")
    return Cached(node=node.name, path=path, bytes=int(size or 0))
