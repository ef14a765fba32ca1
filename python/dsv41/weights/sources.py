"""Who says what a checkpoint's files should be: the first of these that is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from dsv41 import host
from dsv41.errors import CheckFailed, Error, UsageError
from dsv41.weights import published
from dsv41.weights.published import FOLDER, HUB, Published


def find(
    folder: Path,
    revision: str | None,
    *,
    given: Path | None = None,
    hub: str | None = HUB,
    say: Callable[[str], None],
) -> Published:
    """The list of a checkpoint's files.

    A given list, the one that the download recorded, the hub's (asked once, then recorded), the
    ids that `hf download` left beside the files. Without a revision: dsv41's own list of a
    checkpoint that it made. `hub` None asks nobody.

    Raises UsageError D450 for a folder that is not there or without revision and own list, and
    CheckFailed D451 for a list that is none, or when nobody says anything.
    """
    if not folder.is_dir():
        raise UsageError(
            "D450", f"There is no folder {folder}.", fix="dsv41 weights fetch, or give --dir DIR"
        )
    if revision is None:
        return _own(folder)
    if given is not None:
        return published.read(given, revision=revision)
    kept = folder / FOLDER / published.name_of(revision)
    if kept.is_file():
        return published.read(kept, revision=revision)
    found = from_hub(revision, hub=hub, token=None, keep=kept, say=say)
    return found or _from_records(folder, revision)


def from_hub(
    revision: str,
    *,
    hub: str | None,
    token: str | None,
    keep: Path | None,
    say: Callable[[str], None],
) -> Published | None:
    """The hub's own list, recorded in `keep`; None, with a word about it, when it gives none."""
    if keep is not None and keep.is_file():
        return published.read(keep, revision=revision)
    if hub is None:
        return None
    try:
        found = published.ask(revision, hub=hub, token=token)
    except Error as error:
        say(f"{error.code} {error.says}")
        return None
    if keep is None:
        return found
    with contextlib.suppress(OSError):  # a folder that is read-only: asked again next time
        keep.parent.mkdir(parents=True, exist_ok=True)
        host.write_atomically(keep, found.to_json())
    return found


def _own(folder: Path) -> Published:
    found = published.own_list(folder)
    if found is None:
        raise UsageError(
            "D450",
            f"Nothing says what the files of {folder} should be: it has no {published.OWN_LIST}, "
            "and no revision was named.",
            fix="name the profile whose checkpoint it is: --profile tp3",
        )
    return found


def _from_records(folder: Path, revision: str) -> Published:
    found = published.recorded(folder, revision=revision)
    if not found.files:
        raise CheckFailed(
            "D451",
            f"Nothing says what the files of revision {revision} should be: the hub was not "
            f"asked or gave no list, and {folder} has no records of a download of it.",
            fix="run it once where the hub can be reached, or give --published FILE",
        )
    return found
