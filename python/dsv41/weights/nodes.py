"""`weights verify` on the nodes that hold the checkpoint, by the program that is put there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dsv41 import zipped
from dsv41.errors import CheckFailed, EngineFailed, UsageError
from dsv41.share.texts import server_of
from dsv41.weights.published import name_of

if TYPE_CHECKING:
    from dsv41.fleet import Fleet
    from dsv41.host.reach import Host

PROGRESS = "dsv41.progress/1"  # schema of the lines before the document
ERROR = "dsv41.error/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What to verify on a node; `published` is the list to compare with, when it is at hand."""

    folder: str
    state_dir: str
    revision: str | None
    published: bytes | None = None
    hub: str | None = None
    offline: bool = False
    again: bool = False


def holders(fleet: Fleet, only: str | None = None) -> tuple[int, ...]:
    """The ranks whose nodes hold the checkpoint on a disk of their own.

    `only` is one of them by its name; UsageError D450 for a name that is none.
    """
    server = server_of(fleet)
    ranks = tuple(range(len(fleet.nodes))) if server is None else (server,)
    names = {fleet.nodes[rank].name: rank for rank in ranks}
    if only is not None and only not in names:
        raise UsageError(
            "D450",
            f"{only} holds no checkpoint of its own; these do: {', '.join(names)}.",
            fix=f"give --node {next(iter(names))}, or no --node",
        )
    return ranks if only is None else (names[only],)


def verify(host: Host, asked: Asked, *, progress: Callable[[int, int], object]) -> dict[str, Any]:
    """The document of one node, as `dsv41 weights verify --dir` prints it there.

    Raises what the node's own command raised (D450, D451), EngineFailed D458 when it ended without
    a word.
    """
    words = ["weights", "verify", "--json", "--lines", f"--dir={asked.folder}"]
    words += [f"--revision={asked.revision}"] * bool(asked.revision)
    words += [f"--hub={asked.hub}"] * bool(asked.hub)
    words += ["--offline"] * asked.offline + ["--again"] * asked.again
    if asked.published is not None and asked.revision is not None:
        place = str(PurePosixPath(asked.state_dir) / "weights" / name_of(asked.revision))
        host.put(asked.published, place, sudo=True)
        words.append(f"--published={place}")
    argv = ["python3", place_program(host, asked.state_dir), *words]
    last = ""
    for line in host.follow(argv, sudo=True):
        document = _document(line)
        schema = document.get("schema")
        if schema == PROGRESS:
            progress(document["done"], document["total"])
        elif schema == ERROR:
            says = f"{host.name}: {document['says']}"
            raise CheckFailed(document["code"], says, fix=document["fix"])
        elif schema:
            return document
        last = line.strip() or last
    raise EngineFailed(
        "D458",
        f"{host.name}: weights verify ended without a word: {last or 'no output'}.",
        fix=f"on {host.name}: {' '.join(argv)}",
    )


def place_program(host: Host, state_dir: str) -> str:
    """The path of our own program on a node, put there when it is not yet."""
    program = zipped.program()
    place = str(PurePosixPath(state_dir) / "bin" / zipped.name_of(program))
    if host.run(["test", "-s", place], sudo=True).status:
        host.put(program, place, sudo=True)
    return place


def _document(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
