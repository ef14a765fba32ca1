"""The program that fetches: the hub's own client, run by whatever Python has it.

It needs nothing of dsv41, so that it runs as one file in the engine's container, where
huggingface_hub is (both wheel locks have it). It prints one JSON object a line: `list`,
`progress`, then `done`, `stalled` or `error`. Whole files are kept. The client goes on within a
file while it runs; a file that an ended client had begun starts again, because 1.33 gives each
try a name of its own. Such rests are removed first, or they would fill the disk.

A client that ends well is not believed: every size is compared afterwards, because one ended with
0 and left `.incomplete` files (huggingface_hub#4223, report P36). Xet transfers are off unless
asked for: they hang at 98 to 99.9 % (xet-core#883, report P37). A download that makes no headway
for `--stall` seconds ends with 75, and whoever started this starts it again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIST = "published-{}.json"
EXIT_STALLED = 75  # EX_TEMPFAIL of sysexits.h
_EVERY = 2.0  # seconds between two looks at the disk


def say(**event: Any) -> None:
    """One event on stdout."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch; 0 done, 1 refused or not whole, 75 no headway."""
    args = _parser().parse_args(arguments)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if not args.xet:
        os.environ["HF_HUB_DISABLE_XET"] = "1"
    try:
        return _fetch(args)
    except ModuleNotFoundError as error:
        say(event="error", code="D454", says=f"this Python has no {error.name}: {sys.executable}")
    except OSError as error:  # the client's errors of the network are OSErrors as well
        say(event="error", code="D455", says=_line(error))
    except Exception as error:  # noqa: BLE001 - the client's own kinds are not importable here
        say(event="error", code="D455", says=_line(error))
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Fetch a revision of a repository of the hub.")
    parser.add_argument("--repository", required=True)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--hub", help="another address of the hub")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--stall", type=float, default=300.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--xet", action="store_true")
    return parser


def _fetch(args: argparse.Namespace) -> int:
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415 - set up by variables

    token = args.token_file.read_text(encoding="utf-8").strip() if args.token_file else False
    api = HfApi(endpoint=args.hub, token=token)
    files = [_entry(file) for file in _files_of(api, args)]
    _record(args, files)
    for rest in (args.to / ".cache" / "huggingface" / "download").rglob("*.incomplete"):
        rest.unlink()
    total = sum(file["size"] for file in files)
    say(event="list", files=len(files), bytes=total, there=_there(args.to, files))
    free = os.statvfs(args.to)
    need = total - _there(args.to, files)
    if free.f_bavail * free.f_frsize < need:
        says = f"{need:,} bytes are still to come, {free.f_bavail * free.f_frsize:,} are free"
        say(event="error", code="D456", says=says)
        return 1
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(args, files, total, stop), daemon=True)
    watch.start()
    try:
        snapshot_download(
            args.repository,
            revision=args.revision,
            local_dir=args.to,
            token=token,
            endpoint=args.hub,
            max_workers=args.workers,
        )
    finally:
        stop.set()
    return _judge(args.to, files)


def _files_of(api: Any, args: argparse.Namespace) -> list[Any]:
    tree = api.list_repo_tree(args.repository, revision=args.revision, recursive=True)
    return [entry for entry in tree if hasattr(entry, "blob_id")]


def _entry(file: Any) -> dict[str, Any]:
    """A file as `published.File` has it."""
    lfs = file.lfs
    kind, digest = ("sha256", lfs.sha256) if lfs else ("git-blob", file.blob_id)
    return {"path": file.path, "size": file.size, "kind": kind, "digest": digest}


def _record(args: argparse.Namespace, files: list[dict[str, Any]]) -> None:
    """Keep the list beside the files: `weights verify` needs no network then."""
    folder = args.to / ".cache" / "dsv41"
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "schema": "dsv41.published/1",
        "repository": args.repository,
        "revision": args.revision,
        "files": files,
    }
    part = folder / f".list.{os.getpid()}"
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / LIST.format(args.revision))


def _watch(
    args: argparse.Namespace, files: list[dict[str, Any]], total: int, stop: threading.Event
) -> None:
    """Say how far it is; end the process when nothing has come for too long."""
    last, since = -1, time.monotonic()
    while not stop.wait(_EVERY):
        done = _there(args.to, files)
        if done != last:
            last, since = done, time.monotonic()
            say(event="progress", done=done, total=total)
        elif time.monotonic() - since > args.stall:
            say(event="stalled", done=done, total=total, seconds=args.stall)
            os._exit(EXIT_STALLED)


def _there(folder: Path, files: list[dict[str, Any]]) -> int:
    """Bytes of the wanted files that are on the disk, finished or begun."""
    whole: int = sum(min(_size(folder / file["path"]), file["size"]) for file in files)
    missing = {file["digest"] for file in files if not (folder / file["path"]).exists()}
    begun = (folder / ".cache" / "huggingface" / "download").rglob("*.incomplete")
    return whole + sum(_size(rest) for rest in begun if any(d in rest.name for d in missing))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _judge(folder: Path, files: list[dict[str, Any]]) -> int:
    """Done only when every file has its size, whatever the client said."""
    bad = [file["path"] for file in files if _size(folder / file["path"]) != file["size"]]
    if bad:
        says = f"the client ended, and these files are not whole: {', '.join(bad)}"
        say(event="error", code="D457", says=says)
        return 1
    say(event="done", files=len(files), bytes=sum(file["size"] for file in files))
    return 0


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:400]
    return f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main())
