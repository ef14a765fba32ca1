"""The command lines for one rank's container and for its image; docker and podman alike.

The image's own entry point is not relied on: the Plan says what runs. Host names and folders that
the command needs are all in the Plan, so it reads the same on every machine. Answers are read here
as well: `container inspect` of both programs has the same names, `stats` not the same units.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsv41.plan import Rank

PLACEHOLDER = "IMAGE"  # stands where no digest is known
RESTART = "--restart="
_SIZE = re.compile(r"(?P<number>[0-9.]+)(?P<unit>[kKMGT]?)(?P<binary>i?)B\b")


def name_of(rank: Rank) -> str:
    """The container's name; one service a host, so the rank is enough."""
    return f"dsv41-rank{rank.rank}"


def detached(program: str, rank: Rank) -> list[str]:
    """Start it and return: for a person's own use."""
    return _run(program, rank, name=name_of(rank), how=["--detach"], options=rank.options)


def attached(program: str, rank: Rank, *, name: str, image: str | None = None) -> list[str]:
    """Stay with it until it ends, passing on signals, output and exit status.

    It stays for a look at how it ended; `removed` is what ends that. Whoever runs this starts it
    again or not, so the Plan's restart policy stays out. `image` is
    what this machine calls the Plan's image, where that is another word (`images.require`).
    """
    kept = [word for word in rank.options if not word.startswith(RESTART)]
    meant = rank if image is None else replace(rank, image=image)
    return _run(program, meant, name=name, how=[], options=kept)


def removed(program: str, name: str) -> list[str]:
    """End it if it runs, by a KILL, and remove it: who should end by itself had its TERM before.

    docker kills at once. podman sends a TERM of its own and waits for 10 s, unless told not to.
    """
    now = ["--time", "0"] if program == "podman" else []
    return [program, "rm", "--force", *now, name]


def presence(program: str) -> list[str]:
    """Whether it can be used: its version, of docker that of the daemon, which must run."""
    part = "Server" if program == "docker" else "Client"
    return [program, "version", "--format", f"{{{{.{part}.Version}}}}"]


def storage(program: str) -> list[str]:
    """The folder of its images."""
    part = "{{.DockerRootDir}}" if program == "docker" else "{{.Store.GraphRoot}}"
    return [program, "info", "--format", part]


def image(program: str, reference: str) -> list[str]:
    """What it knows of an image, one JSON object in a list; fails when it has none."""
    return [program, "image", "inspect", reference]


def state(program: str, name: str) -> list[str]:
    """The state of a container; fails when there is none. Read by `read_state`."""
    return [program, "container", "inspect", "--format", "{{json .State}}", name]


def memory(program: str, name: str) -> list[str]:
    """The memory that a running container uses. Read by `read_memory`."""
    return [program, "stats", "--no-stream", "--format", "{{.MemUsage}}", name]


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """A container: `exit_code` counts when it has ended; `started_at` is the program's own text."""

    running: bool
    exit_code: int
    started_at: str
    killed_for_memory: bool


def read_state(text: str) -> State:
    """The state in an answer to `state`; ValueError for anything else."""
    try:
        found = json.loads(text)
        return State(
            running=bool(found["Running"]),
            exit_code=int(found["ExitCode"]),
            started_at=str(found["StartedAt"]),
            killed_for_memory=bool(found["OOMKilled"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no state of a container: {text[:80]!r}") from error


def read_memory(text: str) -> int:
    """Bytes in an answer to `memory`, `1.5GiB / 119GiB`; ValueError for anything else.

    docker counts in KiB, MiB, GiB, podman in kB, MB, GB.
    """
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError(f"no use of memory: {text[:80]!r}")
    base = 1024 if match["binary"] else 1000
    power = "BKMGT".index(match["unit"].upper() or "B")
    return round(float(match["number"]) * float(base) ** power)


def tagged(reference: str) -> str:
    """NAME:TAG under which an image lies that is meant as NAME@sha256:DIGEST; TAG is of DIGEST."""
    name, _, digest = reference.partition("@sha256:")
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}:{digest[:12]}"


def _run(
    program: str, rank: Rank, *, name: str, how: Sequence[str], options: Sequence[str]
) -> list[str]:
    command = [program, "run", *how, f"--name={name}", "--pull=never", *options]
    command += [f"--env={key}={value}" for key, value in sorted(rank.env.items())]
    command += [f"--volume={mount}" for mount in rank.mounts]
    return [*command, f"--entrypoint={rank.argv[0]}", rank.image or PLACEHOLDER, *rank.argv[1:]]
