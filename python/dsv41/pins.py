"""What is pinned: every third-party source, by commit and hash.

`sources.manifest` has a row for each file that is fetched by itself, `flake.lock` a node for each
input of the flake (version 7, https://nix.dev/manual/nix/latest/command-ref/new-cli/nix3-flake). A
source that stands in both is one Pin with both hashes, and its commits must be equal.

This is the only reader of the manifest. Nix reads `nix/pins.json`, which is made from it here and
held to it by a test: a second parser, written in Nix, could read the same rows differently, and
making the JSON at evaluation would be import from derivation, which the flake does without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dsv41.errors import UsageError

MANIFEST, LOCK, FOR_NIX = "sources.manifest", "flake.lock", "nix/pins.json"
SCHEMA = "dsv41.pins/1"

# SPDX. A flake input has a hash in flake.lock and no place for its license, so it stands here.
INPUT_LICENSES: Mapping[str, str] = {
    "b12x": "Apache-2.0",
    "flashinfer": "Apache-2.0",
    "nccl": "Apache-2.0 AND BSD-3-Clause",
    "nixpkgs": "MIT",
    "poetry2nix": "MIT",
    "sglang": "Apache-2.0",
    "sparkring": "Apache-2.0",
}

_FORMS = {
    "component": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*"),
    "commit": re.compile(r"[0-9a-f]{40}"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
    "url": re.compile(r"https://[^\s/]+/\S+"),
    "license": re.compile(r"[A-Za-z0-9][A-Za-z0-9.+ ()-]*"),
}
_NAR_HASH = re.compile(r"sha256-[A-Za-z0-9+/]{43}=")
_REPOSITORY = re.compile(r"https://[^/]+/([^/]+/[^/]+)/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """One third-party source.

    `sha256` is of the file at `url`, in hex; `nar_hash` is Nix's hash of the unpacked tree, SRI.
    A source that is only an input of the flake has no `sha256`; one that is only in the manifest
    has no `nar_hash`, and neither has an input that was locked where it could not be computed.
    """

    name: str
    commit: str
    sha256: str | None
    nar_hash: str | None
    url: str
    license: str
    is_input: bool

    @property
    def repository(self) -> str:
        """Owner and name of the repository, as in `owner/name`."""
        found = _REPOSITORY.match(self.url)
        return found[1] if found else self.url


def read(manifest: str, lock: str) -> tuple[Pin, ...]:
    """All pins, by name, from the texts of the two files.

    Raises UsageError: D171 for a malformed row, D172 for a component that stands twice, D173 for
    two commits of one source, D174 for a lock that is not one of version 7 with inputs of GitHub,
    or an input without a license.
    """
    found = {pin.name: pin for pin in _of_lock(lock)}
    for row in _of_manifest(manifest):
        locked = found.get(row.name)
        found[row.name] = row if locked is None else _joined(row, locked)
    return tuple(found[name] for name in sorted(found))


def _joined(row: Pin, locked: Pin) -> Pin:
    if row.commit != locked.commit:
        raise UsageError(
            "D173",
            f"{MANIFEST} pins {row.name} at {row.commit}, {LOCK} at {locked.commit}.",
            fix=f"give both the same commit, then: dsv41 pins verify {row.name}",
        )
    return replace(row, nar_hash=locked.nar_hash, is_input=True)


def _of_manifest(text: str) -> Iterator[Pin]:
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        pin = _of_row(line, number)
        if pin.name in seen:
            raise UsageError(
                "D172",
                f"{MANIFEST} line {number}: {pin.name} stands on line {seen[pin.name]} already.",
                fix="leave one row a component",
            )
        seen[pin.name] = number
        yield pin


def _of_row(line: str, number: int) -> Pin:
    columns = dict(zip(_FORMS, line.split(maxsplit=len(_FORMS) - 1), strict=False))
    where = f"{MANIFEST} line {number}"
    if len(columns) < len(_FORMS):
        raise _malformed(where, f"has {len(columns)} columns of {len(_FORMS)}: {', '.join(_FORMS)}")
    columns["license"] = columns["license"].strip()
    for name, form in _FORMS.items():
        if not form.fullmatch(columns[name]):
            raise _malformed(where, f"has {columns[name]!r} as its {name}, not {form.pattern}")
    if columns["commit"] not in columns["url"]:
        raise _malformed(where, f"has a URL without its commit {columns['commit']}")
    return Pin(
        name=columns["component"],
        commit=columns["commit"],
        sha256=columns["sha256"],
        nar_hash=None,
        url=columns["url"],
        license=columns["license"],
        is_input=False,
    )


def _malformed(where: str, says: str) -> UsageError:
    return UsageError("D171", f"{where} {says}.", fix=f"mend the row in {MANIFEST}")


def _of_lock(text: str) -> Iterator[Pin]:
    nodes = lock_nodes(text)
    for name in sorted(nodes):
        at = nodes[name]
        if name not in INPUT_LICENSES:
            raise _bad_lock(f"pins {name}, whose license is not known", fix="add it to pins.py")
        url = f"https://github.com/{at['owner']}/{at['repo']}/archive/{at['rev']}.tar.gz"
        yield Pin(
            name=name,
            commit=at["rev"],
            sha256=None,
            nar_hash=at.get("narHash"),
            url=url,
            license=INPUT_LICENSES[name],
            is_input=True,
        )


def lock_nodes(text: str) -> dict[str, dict[str, str]]:
    """What each third-party input of a flake.lock is locked to; a folder of this tree is none.

    UsageError D174 for any other text.
    """
    try:
        lock = json.loads(text)
        names = lock["nodes"][lock["root"]]["inputs"]
        nodes = {name: dict(lock["nodes"][node]["locked"]) for name, node in names.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise _bad_lock(f"is not a lock file ({error!r})") from error
    if lock.get("version") != 7:
        raise _bad_lock(f"is of version {lock.get('version')}, not 7")
    nodes = {name: at for name, at in nodes.items() if at.get("type") != "path"}
    for name, at in nodes.items():
        if at.get("type") != "github" or not _FORMS["commit"].fullmatch(str(at.get("rev"))):
            raise _bad_lock(f"does not lock {name} to a commit on GitHub")
        if "narHash" in at and not _NAR_HASH.fullmatch(str(at["narHash"])):
            raise _bad_lock(f"has {at['narHash']!r} as the narHash of {name}")
    return nodes


def _bad_lock(
    says: str, *, fix: str = "take the committed one: git checkout flake.lock"
) -> UsageError:
    return UsageError("D174", f"{LOCK} {says}.", fix=fix)


def filled(lock: str, hashes: Mapping[str, str]) -> str:
    """The text of a lock, as nix writes it, with the narHash of the named inputs filled in.

    A hash that is there is never replaced: ValueError.
    """
    data = json.loads(lock)
    for name, nar_hash in hashes.items():
        locked = data["nodes"][data["nodes"][data["root"]]["inputs"][name]]["locked"]
        if locked.setdefault("narHash", nar_hash) != nar_hash:
            raise ValueError(name)
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def document(pins: tuple[Pin, ...]) -> dict[str, Any]:
    """The pins as `dsv41 pins --json` gives them, without the schema."""
    return {"pins": [asdict(pin) for pin in pins]}


def for_nix(pins: tuple[Pin, ...]) -> str:
    """The text of nix/pins.json."""
    return json.dumps({"schema": SCHEMA, **document(pins)}, indent=2) + "\n"
