"""The tables of speculative decoding: the same on every rank, or on none.

Ranks that disagree about them hang, so a table that the fleet file does not name is removed
everywhere (as the public three-Spark recipe does), and a push that fails is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dsv41.engines.container import TABLES
from dsv41.errors import CheckFailed, Error, UsageError

if TYPE_CHECKING:
    from dsv41.fleet import Fleet
    from dsv41.host.reach import Host


def targets(fleet: Fleet) -> dict[str, str]:
    """Where each table lies on a node, by its key in the fleet file (as `container.mounts`)."""
    folder = PurePosixPath(fleet.state_dir) / "tables"
    return {key: str(folder / PurePosixPath(inside).name) for key, inside in TABLES.items()}


def contents(fleet: Fleet) -> dict[str, bytes | None]:
    """The tables of the fleet file, read here; None for one that it does not name."""
    found: dict[str, bytes | None] = {}
    for key in TABLES:
        path = getattr(fleet, key)
        try:
            found[key] = Path(path).read_bytes() if path else None
        except OSError as error:
            raise UsageError(
                "D459",
                f"{key} is {path}, which cannot be read: {error.strerror}.",
                fix=f"set {key} to a file of this machine, or take it out of the fleet file",
            ) from error
    return found


def push(fleet: Fleet, hosts: Mapping[str, Host]) -> dict[str, dict[str, str]]:
    """Put every table on every node, or remove it there: node -> key -> put, same, removed, absent.

    Raises UsageError D459 for a table that cannot be read here, CheckFailed D459 for a node that
    has another one afterwards, and what `Host` raises.
    """
    tables = contents(fleet)
    return {name: _on_node(fleet, host, tables) for name, host in hosts.items()}


def _on_node(fleet: Fleet, host: Host, tables: Mapping[str, bytes | None]) -> dict[str, str]:
    done: dict[str, str] = {}
    for key, target in targets(fleet).items():
        wanted, there = tables[key], _digest(host, target)
        if wanted is None:
            if there:
                host.ask(["rm", "-f", target], sudo=True)
            done[key] = "removed" if there else "absent"
            continue
        digest = hashlib.sha256(wanted).hexdigest()
        done[key] = "same" if there == digest else "put"
        if there != digest:
            host.put(wanted, target, sudo=True)
            if _digest(host, target) != digest:
                raise _differs(host, target)
    return done


def _digest(host: Host, path: str) -> str:
    done = host.run(["sha256sum", path], sudo=True)
    return done.stdout.split()[0] if done.status == 0 else ""


def _differs(host: Host, target: str) -> Error:
    return CheckFailed(
        "D459",
        f"{host.name}: {target} is not what was put there.",
        fix="dsv41 share --tables, once more; every rank must have the same table",
    )
