"""`rank exec` with short times: `rounds_rank.py PLAN RANK KEY [NAME=SECONDS ...]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dsv41 import run
from dsv41.errors import Error
from dsv41.run import rank
from dsv41.run.rounds import Times

SHORT: dict[str, float] = {
    "beat": 0.3,
    "lost": 5.0,
    "handshake": 5.0,
    "reconnect": 0.05,
    "back_off": 0.1,
    "back_off_most": 0.2,
    "healthy": 60.0,
    "sample": 0.05,
    "window": 0.4,
    "memory": 0.2,
    "bind": 2.0,
}


def say(line: str) -> None:
    """A line to stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """Run one rank; its exit status."""
    file, number, key = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    given = dict(word.split("=") for word in sys.argv[4:])
    times = SHORT | {name: float(value) for name, value in given.items()}
    try:
        return rank.exec_rank(
            run.read_plan(file),
            number,
            environ=os.environ,
            say=say,
            given=rank.Given(plan_file=file, control_key=key, times=Times(**times)),  # type: ignore[arg-type]
        )
    except Error as error:
        say(f"{error.code} {error.says}")
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
