"""What a fleet file must not leave open, and what must lie on a node; the caller reads the files.

With `engines.wiring` and the rules of profile and fleet these are the checks that the launcher of
the public four-Spark cycle makes before it starts anything.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator

from dsv41.errors import UsageError
from dsv41.finding import Finding
from dsv41.fleet import Fleet, Node
from dsv41.profile import Profile
from dsv41.steps import MARKER

ARCHITECTURE = "DeepseekV41ForCausalLM"
INDEX = "model.safetensors.index.json"
_OPEN = re.compile(r"<[A-Za-z][A-Za-z0-9_ -]*>|REPLACE_WITH_|CHANGE_?ME", re.IGNORECASE)

# the bytes of a file, None when there is none; b"" will do for a file that is only asked for
Read = Callable[[str], bytes | None]


def no_placeholders(fleet: Fleet) -> None:
    """UsageError D130 for the first value that was left as a form has it."""
    for key, value in _strings(fleet):
        if _OPEN.search(value):
            raise UsageError(
                "D130",
                f"{key} is {value!r}, a placeholder.",
                fix=f"give {key} its value in the fleet file",
            )


def _strings(fleet: Fleet) -> Iterator[tuple[str, str]]:
    for place, node in enumerate(fleet.nodes):
        yield from _values(node, f"nodes[{place}].")
    yield from _values(fleet, "")


def _values(record: Fleet | Node, prefix: str) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                yield prefix + field.name, text


def on_node(profile: Profile, node: Node, read: Read) -> tuple[Finding, ...]:
    """Findings D131 and D132 about one node's checkpoint and NCCL; none is good."""
    return tuple(_on_node(profile, node, read))


def _on_node(profile: Profile, node: Node, read: Read) -> Iterator[Finding]:
    config = read(f"{node.model_dir}/config.json")
    if config is None:
        yield _fault("D131", node, f"{node.model_dir} has no config.json")
    elif ARCHITECTURE.encode() not in config:
        yield _fault("D131", node, f"config.json does not name {ARCHITECTURE}")
    shards = _shards(read(f"{node.model_dir}/{INDEX}"))
    if not shards:
        yield _fault("D131", node, f"{INDEX} is missing or names no file")
    missing = [name for name in shards if read(f"{node.model_dir}/{name}") is None]
    if missing:
        yield _fault("D131", node, f"{missing[-1]} of the checkpoint is missing")
    if node.nccl_library and profile.get("nccl_build") == "sparkring":
        library = read(node.nccl_library)
        if library is None:
            yield _fault("D132", node, f"there is no library at {node.nccl_library}")
        elif MARKER.encode() not in library:
            yield _fault(
                "D132", node, f"{node.nccl_library} lacks {MARKER}: it is not the patched one"
            )


def _shards(index: bytes | None) -> list[str]:
    """The names of the shards; none when the index is missing or broken."""
    try:
        return sorted({str(name) for name in json.loads(index or b"")["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _fault(code: str, node: Node, says: str) -> Finding:
    fixes = {
        "D131": "fetch the revision that the profile names into model_dir",
        "D132": "install the patched NCCL of the profile",
    }
    return Finding(code=code, level="fail", node=node.name, says=f"{says}.", fix=fixes[code])
