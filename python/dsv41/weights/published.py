r"""What the files of a checkpoint should be: names, sizes and hashes as somebody published them.

The hub's tree of a revision gives every file's git blob id, and the SHA-256 of those that lie in
large-file storage (GET /api/models/REPO/tree/REVISION, field `lfs.oid`; else `oid`, which is
git's SHA-1 of "blob SIZE\0" and the bytes). `hf download` leaves the same ids beside each file,
as etags. A fixture brings a list of its own.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any

from dsv41.errors import CheckFailed, Unreachable

REPOSITORY = "deepseek-ai/DeepSeek-V4.1-Flash"
HUB = "https://huggingface.co"
SCHEMA = "dsv41.published/1"
FOLDER = ".cache/dsv41"  # below the checkpoint, beside what the hub's client keeps in .cache
OWN_LIST = "dsv41-checkpoint.json"  # in a checkpoint that dsv41 itself made
RECORDS = ".cache/huggingface/download"
SHA256, GIT_BLOB = "sha256", "git-blob"
_DIGITS = {SHA256: 64, GIT_BLOB: 40}
_PATIENCE = 20.0  # seconds without an answer
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """One file: its path below the checkpoint, bytes (None: not known), kind of hash, hex."""

    path: str
    size: int | None
    kind: str
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """The files of a revision. `source`: the hub, the download's records, or dsv41's own list.

    `unknown` are files that are there and of which the source says nothing.
    """

    revision: str
    source: str
    files: tuple[File, ...]
    unknown: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The sum of the sizes that are known."""
        return sum(file.size or 0 for file in self.files)

    def to_json(self) -> str:
        """As it is recorded."""
        files = [asdict(file) for file in self.files]
        data = {"schema": SCHEMA, "repository": REPOSITORY, "revision": self.revision}
        return json.dumps({**data, "files": files}, indent=1) + "\n"


def name_of(revision: str) -> str:
    """The file name of a recorded list."""
    return f"published-{revision}.json"


def read(path: Path, *, revision: str) -> Published:
    """A recorded list; CheckFailed D451 when it is not one, or is of another revision."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(_checked(File(**entry)) for entry in data["files"])
        other = (data["schema"], data["revision"]) != (SCHEMA, revision)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_list(path, revision, repr(error)) from error
    if other:
        raise _no_list(path, revision, f"it is {data['schema']} of {data['revision']}")
    return Published(revision=revision, source="hub", files=files)


def _no_list(path: Path, revision: str, says: str) -> CheckFailed:
    return CheckFailed(
        "D451",
        f"{path} is no list of the files of revision {revision}: {says}.",
        fix=f"rm {path}, and run the same command again",
    )


def from_tree(entries: Sequence[Mapping[str, Any]], *, revision: str) -> Published:
    """The list that the hub's tree is; CheckFailed D451 for an entry of another shape."""
    try:
        files = tuple(_of_entry(entry) for entry in entries if entry["type"] == "file")
    except (KeyError, TypeError, ValueError) as error:
        raise CheckFailed("D451", f"The hub's tree of {revision} has {error!r}.") from error
    return Published(revision=revision, source="hub", files=files)


def _of_entry(entry: Mapping[str, Any]) -> File:
    lfs = entry.get("lfs")
    kind, digest = (SHA256, lfs["oid"]) if lfs else (GIT_BLOB, entry["oid"])
    return _checked(File(path=entry["path"], size=int(entry["size"]), kind=kind, digest=digest))


def _checked(file: File) -> File:
    """The entry; ValueError for a path that leaves the folder or a hash that is none."""
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"the path {file.path!r}")
    if not re.fullmatch(f"[0-9a-f]{{{_DIGITS[file.kind]}}}", file.digest):
        raise ValueError(f"{file.digest!r} for the {file.kind} of {file.path}")
    return file


def ask(revision: str, *, hub: str = HUB, token: str | None = None) -> Published:
    """The list of a revision from the hub itself.

    Raises Unreachable D452 when the hub does not answer, CheckFailed D453 when it refuses.
    """
    entries: list[Mapping[str, Any]] = []
    url: str | None = f"{hub.rstrip('/')}/api/models/{REPOSITORY}/tree/{revision}?recursive=true"
    while url:
        page, url = _page(url, token)
        entries += page
    return from_tree(entries, revision=revision)


def _page(url: str, token: str | None) -> tuple[list[Mapping[str, Any]], str | None]:
    """One page of the tree, and where the next one is."""
    request = urllib.request.Request(url, headers={"User-Agent": "dsv41"})  # noqa: S310 - the hub's
    if token:  # not sent on to another host after a redirect
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310
            link = _NEXT.search(answer.headers.get("Link") or "")
            return json.load(answer), urllib.parse.urljoin(url, link[1]) if link else None
    except urllib.error.HTTPError as error:
        error.close()
        raise CheckFailed(
            "D453",
            f"{url} answers {error.code} {error.reason}.",
            fix="look at the revision of the profile; give a token with --token-file",
        ) from error
    except (OSError, HTTPException, ValueError) as error:
        raise Unreachable(
            "D452",
            f"The hub gave no list of the files: {getattr(error, 'reason', error)}.",
            fix="run it where the hub can be reached, or give --published FILE",
        ) from error


def own_list(folder: Path) -> Published | None:
    """The list that dsv41 wrote into a checkpoint that it made; None when there is none."""
    try:
        data = json.loads((folder / OWN_LIST).read_text(encoding="utf-8"))
        files = [
            _checked(File(path=path, size=None, kind=SHA256, digest=digest))
            for path, digest in data["files"].items()
        ]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckFailed(
            "D451",
            f"{folder / OWN_LIST} is no list of its files: {error}.",
            fix=f"rm -r {folder}, and make it again: dsv41 pack --profile local",
        ) from error
    return Published(revision="", source="own list", files=tuple(files))


def recorded(folder: Path, *, revision: str) -> Published:
    """What `hf download` recorded of each file, as far as it is of this revision.

    A record's first two lines are the commit and the etag: a SHA-256 for a large file, a git blob
    id for a small one.
    """
    known, unknown = [], []
    for path in sorted({*_plain_files(folder), *_shards(folder)}):
        record = folder / RECORDS / f"{path}.metadata"
        found = _of_record(path, record, revision)
        if found:
            known.append(found)
        else:
            unknown.append(path)
    source = "download records"
    return Published(revision=revision, source=source, files=tuple(known), unknown=tuple(unknown))


def _of_record(path: str, record: Path, revision: str) -> File | None:
    try:
        commit, etag, *_ = record.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    kinds = [
        kind for kind, digits in _DIGITS.items() if re.fullmatch(f"[0-9a-f]{{{digits}}}", etag)
    ]
    if commit.strip() != revision or not kinds:
        return None
    try:
        return _checked(File(path=path, size=None, kind=kinds[0], digest=etag))
    except ValueError:
        return None


def _shards(folder: Path) -> set[str]:
    """The files that the index names, there or not."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _plain_files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(".cache/") and not path.is_dir():
            yield name
