"""What tests of a fleet that serves ask of it, by the operator's own commands."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsv41.api import Endpoint
from dsv41.errors import EngineFailed, Unreachable
from fleet.fleets import Fleet, Said
from fleet.machines import Machine
from fleet.waiting import until

ROUND = 150.0  # seconds for ranks to stop, meet and start again, on two busy cores
ENGINE = ("python", "dsv41.local.rank")  # the program inside of the container


def serve_words(fleet: Fleet, *more: str) -> list[str]:
    """The words of `serve`."""
    at = ("--profile", "local", "--fleet", str(fleet.file), "--image", fleet.image.reference)
    return ["serve", *at, *(more or ("--detach", "--skip-smoke"))]


def serve(fleet: Fleet, *more: str) -> Said:
    """`serve`, to its end."""
    return fleet.dsv41(*serve_words(fleet, *more), seconds=290)


def stop(fleet: Fleet) -> Said:
    """`stop`."""
    return fleet.dsv41("stop", "--fleet", str(fleet.file))


def status(fleet: Fleet) -> tuple[int, dict[str, Any]]:
    """`status --json`: exit status and document."""
    said = fleet.dsv41("status", "--fleet", str(fleet.file), "--json")
    return said.status, said.document


def served(fleet: Fleet) -> None:
    """Have it serve: the next `serve` after whatever was before."""
    if status(fleet)[0] == 0:
        return
    said = serve(fleet)
    assert said.status == 0, said
    assert "42" in fleet.ask("What is 19 + 23?")


def program(machine: Machine) -> str:
    """The command that the last `serve` put there."""
    found = machine.own("/srv/dsv41/bin").glob("*.pyz")
    return f"/srv/dsv41/bin/{max(found, key=lambda path: path.stat().st_mtime).name}"


def state_of(machine: Machine, rank: int) -> dict[str, Any]:
    """What a rank wrote down of itself; read without the fleet's commands."""
    file = machine.own(f"/srv/dsv41/run/rank{rank}.json")
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


def log_of(machine: Machine, rank: int) -> str:
    """A rank's log."""
    return machine.own(f"/srv/dsv41/run/rank{rank}.log").read_text()


def round_of(fleet: Fleet) -> int:
    """The round that the head is in."""
    return int(state_of(fleet[0], 0).get("round") or 0)


def comes_back(fleet: Fleet, *, after: int) -> float:
    """Wait until the ranks run a later round than `after` and answer; after how many seconds."""

    def back() -> bool:
        states = [state_of(machine, rank) for rank, machine in enumerate(fleet.machines)]
        later = all(s.get("state") == "running" and (s.get("round") or 0) > after for s in states)
        return later and fleet.endpoint.status("/ready") == 200

    took = until(back, seconds=ROUND)
    assert "42" in fleet.ask("What is 19 + 23?")
    return took


def refused(said: Said, code: str, exit_status: int, *words: str) -> None:
    """A command was refused with a code, its exit status, and these words."""
    assert said.status == exit_status, said
    assert f"{code} " in said.err, said
    for word in words:
        assert word in said.err, said
    assert re.search(r"^  fix: \S", said.err, re.MULTILINE), said


def _hear_ctrl_c() -> None:
    """As at a terminal, also where these tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def attached(fleet: Fleet, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`serve` without --detach, its words in a file; ended with this."""
    with log.open("wb") as out:
        words = fleet.command(*serve_words(fleet, "--skip-smoke"))
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 - no thread of ours runs
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def interrupt(fleet: Fleet) -> None:
    """Ctrl-C at the desk: an INT to the command there, not to what entered the namespace."""
    for pid in fleet.desk.pids("dsv41", "serve"):
        if "nsenter" not in fleet.desk.run("cat", f"/proc/{pid}/comm"):
            fleet.desk.kill(pid, signal.SIGINT)


def answers(endpoint: Endpoint) -> str:
    """How one request ends: `answer`, `error` with a body of OpenAI's form, or `refused`."""
    said = [{"role": "user", "content": "What is 20 + 22?"}]
    try:
        endpoint.chat(model="dsv41-fixture", messages=said)
    except EngineFailed:
        return "error"
    except Unreachable:
        return "refused"
    return "answer"
