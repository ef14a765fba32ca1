"""Fetch the checkpoint onto a machine: the hub's own client, in the engine's container there.

The client is in both engine images, so a node needs nothing else. Where no image is (a laptop, a
file server), any Python that has huggingface_hub does: `python`. The container goes on when the
terminal is closed; the same command finds it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dsv41.errors import CheckFailed, EngineFailed, Error
from dsv41.steps import Step
from dsv41.weights.published import REPOSITORY

if TYPE_CHECKING:
    from dsv41.host.reach import Host

CONTAINER = "dsv41-fetch"
_TARGET, _PROGRAM, _TOKEN = "/checkpoint", "/dsv41-hub.py", "/run/dsv41-token"
_FIXES = {
    "D454": "give a Python that has huggingface_hub with --python, or the engine's image",
    "D456": "free space below model_dir, or set it to a folder on a larger disk",
    "D457": "dsv41 weights fetch, once more: what is whole is kept",
}

Progress = Callable[[int, int], object]  # bytes on the disk, bytes in all


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What to fetch, where to, and by what.

    `folder` and `state_dir` are paths of the machine; `engine` is podman or docker. With `python`,
    a program of the machine, no container is used and `image` does not matter.
    """

    folder: str
    state_dir: str
    revision: str
    engine: str = "podman"
    image: str | None = None
    image_python: str = "python3"
    python: str | None = None
    hub: str | None = None
    token: bytes | None = None
    xet: bool = False
    stall_seconds: float = 300.0

    @property
    def program(self) -> str:
        """Where the program lies on the machine."""
        return str(PurePosixPath(self.state_dir) / "bin" / "dsv41-hub.py")

    @property
    def token_file(self) -> str:
        """Where the token lies while it is needed, mode 0600."""
        return str(PurePosixPath(self.state_dir) / "run" / "hub-token")


def command(wanted: Wanted) -> tuple[str, ...]:
    """The command that fetches."""
    inside = wanted.python is None
    target, token = (_TARGET, _TOKEN) if inside else (wanted.folder, wanted.token_file)
    words = [f"--repository={REPOSITORY}", f"--revision={wanted.revision}", f"--to={target}"]
    words += [f"--stall={wanted.stall_seconds:g}"]
    words += [f"--hub={wanted.hub}"] * bool(wanted.hub) + ["--xet"] * wanted.xet
    words += [f"--token-file={token}"] * bool(wanted.token)
    if wanted.python is not None:
        return (wanted.python, wanted.program, *words)
    run = [wanted.engine, "run", "--detach", f"--name={CONTAINER}", "--pull=never"]
    run += ["--network=host", "--env=HOME=/tmp"]
    run += [f"--volume={wanted.folder}:{_TARGET}", f"--volume={wanted.program}:{_PROGRAM}:ro"]
    run += [f"--volume={wanted.token_file}:{_TOKEN}:ro"] * bool(wanted.token)
    image = (f"--entrypoint={wanted.image_python}", wanted.image or "IMAGE", _PROGRAM)
    return (*run, *image, *words)


def steps(node: str, wanted: Wanted) -> tuple[Step, ...]:
    """What `fetch` does, for a person to read."""
    put: list[tuple[str, tuple[str, ...]]] = [("program", ("put", wanted.program))]
    put += [("token", ("put", wanted.token_file, "mode", "0600"))] * bool(wanted.token)
    done = [("folder", ("mkdir", "-p", wanted.folder)), *put, ("fetch", command(wanted))]
    return tuple(
        Step(id=f"{name}-{node}", node=node, effect="changes hosts", command=words)
        for name, words in done
    )


def program() -> bytes:
    """The program that runs where the hub's client is."""
    return files("dsv41.weights").joinpath("hub.py").read_bytes()


def fetch(host: Host, wanted: Wanted, *, progress: Progress) -> dict[str, Any]:
    """Fetch what is not there yet; files and bytes of the whole.

    Raises CheckFailed D454 without a client, D455 when the hub refuses or is away, D456 when the
    disk is too small, D457 when files are not whole afterwards; EngineFailed D458 when it stands
    still twice.
    """
    if wanted.python is None:
        _require_image(host, wanted)
    host.ask(["mkdir", "-p", wanted.folder], sudo=True)
    host.put(program(), wanted.program, sudo=True)
    if wanted.token:
        host.put(wanted.token, wanted.token_file, mode=0o600, sudo=True)
    try:
        return _until_done(host, wanted, progress)
    finally:
        if wanted.token and not _runs(host, wanted):
            host.run(["rm", "-f", wanted.token_file], sudo=True)


def _until_done(host: Host, wanted: Wanted, progress: Progress) -> dict[str, Any]:
    """Start again after a standstill, as long as each start brought something."""
    best = -1
    while True:
        last = _once(host, wanted, progress)
        if last["event"] == "done":
            return last
        if last["event"] == "error":
            raise _refused(host, last)
        if last["done"] <= best:
            raise EngineFailed(
                "D458",
                f"{host.name}: nothing came for {last['seconds']:.0f} s, twice; "
                f"{last['done']:,} of {last['total']:,} bytes are there.",
                fix="look at the node's way to the hub, then run the same command again",
            )
        best = last["done"]


def _once(host: Host, wanted: Wanted, progress: Progress) -> dict[str, Any]:
    """One run of the program; its last word."""
    last: dict[str, Any] = {}
    words = ""
    for line in _lines(host, wanted):
        event = _event(line)
        if not event:
            words = line.strip() or words
        elif event["event"] == "progress":
            progress(event["done"], event["total"])
        elif event["event"] == "list":
            progress(event["there"], event["bytes"])
        else:
            last = event
    if wanted.python is None:
        _remove(host, wanted)
    return last or {"event": "error", "code": "D455", "says": words or "it ended without a word"}


def _lines(host: Host, wanted: Wanted) -> Iterator[str]:
    if wanted.python is not None:
        yield from host.follow(command(wanted), sudo=True)
        return
    if not _runs(host, wanted):
        _remove(host, wanted)
        host.ask(list(command(wanted)), sudo=True, seconds=120)
    yield from host.follow([wanted.engine, "logs", "--follow", CONTAINER], sudo=True)


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _runs(host: Host, wanted: Wanted) -> bool:
    """Whether a container of an earlier command is still at it."""
    if wanted.python is not None:
        return False
    show = [wanted.engine, "inspect", "--format={{.State.Running}}", CONTAINER]
    said: str = host.run(show, sudo=True).stdout
    return said.strip() == "true"


def _remove(host: Host, wanted: Wanted) -> None:
    host.run([wanted.engine, "rm", "--force", CONTAINER], sudo=True)


def _require_image(host: Host, wanted: Wanted) -> None:
    """The image by its digest, which holds the client; nothing is pulled."""
    asked = [wanted.engine, "image", "inspect", "--format={{.Id}}", wanted.image or ""]
    if wanted.image is None or host.run(asked, sudo=True).status:
        raise CheckFailed(
            "D454",
            f"{host.name} has no image with the hub's client: expected "
            f"{wanted.image or 'an image that is known by its digest'}.",
            fix="dsv41 build first; or give --image REF@sha256:..., or --python with a Python "
            "that has huggingface_hub",
        )


def _refused(host: Host, event: dict[str, Any]) -> Error:
    code = str(event.get("code", "D455"))
    fix = _FIXES.get(code, "look at network, revision and token, then run the same command again")
    return CheckFailed(code, f"{host.name}: {event['says']}.", fix=fix)
