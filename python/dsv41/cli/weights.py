"""`dsv41 weights`: fetch the checkpoint onto the nodes that hold it, and verify every byte."""

from __future__ import annotations

import shutil
import stat
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41 import fleet, profile
from dsv41.cli import defaults, options
from dsv41.cli.data import all_of, line, reached
from dsv41.cli.parser import DEFAULT_STATE_DIR
from dsv41.engines.trees import TREES
from dsv41.errors import CheckFailed, UsageError
from dsv41.host.reach import Host, each
from dsv41.weights import check, fetch, nodes, published, sources
from dsv41.weights.receipt import Receipt

if TYPE_CHECKING:
    from dsv41.cli.talk import Talk

KEPT = Path.home() / ".cache" / "dsv41"  # lists of the hub's files, one a revision
HERE = DEFAULT_STATE_DIR.parent
_GIB = 2**30
_EVERY = 10.0  # seconds between two lines of progress
_MARKS = {"ok": "ok", "unknown": "?"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A machine that holds the checkpoint: how to reach it, the folder, podman or docker."""

    host: Host
    folder: str
    state_dir: str
    engine: str


def fetch_all(args: Namespace, talk: Talk) -> int:
    """Fetch the checkpoint onto every node that holds it, or into a folder here; then verify."""
    chosen = profile.load(args.profile)
    revision = _revision(chosen)
    if (args.fleet is None) == (args.to is None):
        raise UsageError(
            "D450",
            "The checkpoint goes onto a fleet's nodes or into a folder here.",
            fix="give --fleet FILE or --to DIR, one of them",
        )
    with _places(args) as places:
        wanted = {name: _wanted(args, chosen, place) for name, place in places.items()}
        if args.dry_run:
            for name, one in wanted.items():
                for step in fetch.steps(name, one):
                    talk.put(line(step))
            return 0
        hosts = tuple(place.host for place in places.values())
        try:
            all_of(
                each(
                    hosts,
                    lambda h: fetch.fetch(h, wanted[h.name], progress=_progress(talk, h.name)),
                )
            )
        except KeyboardInterrupt:
            if args.python is None:
                talk.say(
                    f"the container goes on; this finds it again, and this ends it: {_ending(args)}"
                )
            raise
        results = _verified(places, revision, args, talk)
    return _tell(results, args, talk)


def _ending(args: Namespace) -> str:
    return f"podman rm --force {fetch.CONTAINER}" + (" on the node" if args.fleet else "")


def verify(args: Namespace, talk: Talk) -> int:
    """Compare every file with what was published: on the nodes, or in a folder here."""
    if args.fleet is not None and args.dir is not None:
        raise UsageError("D450", "--fleet and --dir exclude each other.", fix="give one of them")
    if args.fleet is None:
        result = _verify_here(args, talk)
        if args.lines:
            talk.document("weights", **result)
            return 0 if result["status"] == "ok" else CheckFailed.exit_status
        return _tell([{"node": None, **result}], args, talk)
    revision = profile.load(args.profile).get("revision") if args.profile else args.revision
    with _places(args) as places:
        results = _verified(places, None if revision is None else str(revision), args, talk)
    return _tell(results, args, talk)


def _verify_here(args: Namespace, talk: Talk) -> dict[str, Any]:
    folder, revision = args.dir, args.revision
    if args.profile is not None:
        chosen = profile.load(args.profile)
        revision = chosen.get("revision")
        if folder is None and chosen.engine == "local":
            folder = args.state_dir / "checkpoints" / "fixture"
    if folder is None:
        raise UsageError("D450", "No folder was named.", fix="give --fleet FILE or --dir DIR")
    hub = None if args.offline else args.hub or published.HUB
    found = sources.find(folder, revision, given=args.published, hub=hub, say=talk.say)
    # a fixture is small and knows each file that it holds: nothing is written there
    receipt = Receipt(None) if revision is None else Receipt.of(folder)
    began = time.monotonic()
    progress = _lines(talk) if args.lines else _progress(talk, "")
    result = check.verify(folder, found, receipt=receipt, again=args.again, progress=progress)
    return {
        "status": result.status,
        "folder": str(folder),
        "revision": revision,
        "source": found.source,
        "seconds": round(time.monotonic() - began, 3),
        **{key: value for key, value in asdict(result).items() if key != "files"},
        "files": [asdict(file) for file in result.files],
    }


@contextmanager
def _places(args: Namespace) -> Iterator[dict[str, Place]]:
    """Where the checkpoint is or goes: the holders of the fleet, or a folder here."""
    if args.fleet is None:
        engine = next((e for e in fleet.CONTAINERS if shutil.which(e)), "podman")
        here = Host(name="here", destination="local")
        folder = str(args.to.absolute())
        yield {"here": Place(host=here, folder=folder, state_dir=str(HERE), engine=engine)}
        return
    found = fleet.load(args.fleet)
    ranks = nodes.holders(found, args.node)
    with reached(found, ranks) as hosts:
        yield {
            found.nodes[rank].name: Place(
                host=hosts[found.nodes[rank].name],
                folder=found.nodes[rank].model_dir,
                state_dir=found.state_dir,
                engine=found.container_of(rank),
            )
            for rank in ranks
        }


def _wanted(args: Namespace, chosen: profile.Profile, place: Place) -> fetch.Wanted:
    known = defaults.known_image(chosen)
    return fetch.Wanted(
        folder=place.folder,
        state_dir=place.state_dir,
        revision=_revision(chosen),
        engine=place.engine,
        image=options.image(args.image) if args.image else known,
        image_python=TREES[chosen.tree].python,
        python=args.python,
        hub=args.hub,
        token=_token(args.token_file),
        xet=args.xet,
        stall_seconds=args.stall,
    )


def _revision(chosen: profile.Profile) -> str:
    revision = chosen.get("revision")
    if revision is None:
        raise UsageError(
            "D450",
            f"Profile {chosen.name} names no revision: its checkpoint is made, not fetched.",
            fix=f"dsv41 pack --profile {chosen.name}",
        )
    return str(revision)


def _token(path: Path | None) -> bytes | None:
    """The hub's token; UsageError D450 for a file that others may read."""
    if path is None:
        return None
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise UsageError(
            "D450",
            f"The token file {path} has mode {mode:04o}; it must be 0600 or stricter.",
            fix=f"chmod 600 {path}",
        )
    return path.read_bytes()


def _verified(
    places: Mapping[str, Place], revision: str | None, args: Namespace, talk: Talk
) -> list[dict[str, Any]]:
    """What every place said of its files, one document each."""
    found = None
    if revision is not None and args.published is not None:
        found = published.read(args.published, revision=revision)
    elif revision is not None:
        found = sources.from_hub(
            revision,
            hub=None if args.offline else args.hub or published.HUB,
            token=(_token(args.token_file) or b"").decode().strip() or None,
            keep=None
            if args.hub
            else KEPT / published.name_of(revision),  # a mirror's list is its own
            say=talk.say,
        )

    def one(host: Host) -> dict[str, Any]:
        place = places[host.name]
        asked = nodes.Asked(
            folder=place.folder,
            state_dir=place.state_dir,
            revision=revision,
            published=found.to_json().encode() if found else None,
            hub=args.hub,
            offline=args.offline,
            again=args.again,
        )
        return nodes.verify(host, asked, progress=_progress(talk, host.name))

    results = all_of(each([place.host for place in places.values()], one))
    return [{"node": name, **result} for name, result in results.items()]


def _tell(results: list[dict[str, Any]], args: Namespace, talk: Talk) -> int:
    """Every file that is not as published; the worst status decides."""
    statuses = {result["status"] for result in results}
    status = next((worst for worst in ("fail", "unknown") if worst in statuses), "ok")
    if args.json:
        inner = [{k: v for k, v in result.items() if k != "schema"} for result in results]
        talk.document("weights", status=status, nodes=inner)
    else:
        for result in results:
            for line in _told(result):
                talk.put(line)
    return 0 if status == "ok" else CheckFailed.exit_status


def _told(result: Mapping[str, Any]) -> Iterator[str]:
    where = f"{result['node']}: " if result["node"] else ""
    for file in result["files"]:
        if file["status"] != "ok":
            mark = _MARKS.get(file["status"], "BAD")
            yield f"{mark:4} {where}{file['path']}  {file['status']}: {file['says']}"
    for name in result["left"]:
        yield f"left {where}{name}  the rest of a download that was broken off"
    if result["receipt_fault"]:
        yield f"?    {where}the next verify reads all again: {result['receipt_fault']}"
    good = sum(file["status"] == "ok" for file in result["files"])
    read, seconds = result["read_bytes"] / _GIB, max(result["seconds"], 0.001)
    yield (
        f"{_MARKS.get(result['status'], 'BAD'):4} {where}{good} of {len(result['files'])} files "
        f"in {result['folder']} are as published ({result['source']}); {read:.1f} GiB read in "
        f"{result['seconds']:.1f} s ({read / seconds:.2f} GiB/s), {result['known']} files were "
        "known from before"
    )


def _progress(talk: Talk, name: str) -> Callable[[int, int], None]:
    """A line every ten seconds for the person who waits."""
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            share_of = done / total if total else 1.0
            says = f"{done / _GIB:.1f} of {total / _GIB:.1f} GiB ({share_of:.0%})"
            talk.say(f"{name}: {says}" if name else says)

    return tell


def _lines(talk: Talk) -> Callable[[int, int], None]:
    """A JSON line each time, for the machine that asked over ssh."""
    return lambda done, total: talk.document("progress", done=done, total=total)
