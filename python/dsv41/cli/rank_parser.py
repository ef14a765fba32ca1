"""The commands that ssh, systemd and `serve` call on the machine of a rank."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add(
    verbs: Any,
    *,
    verb: Callable[..., argparse.ArgumentParser],
    state_dir: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add them; `verb` makes a command, `state_dir` gives it the flag of that name."""
    rank = verbs.add_parser("rank", help="what ssh, systemd and serve call [changes hosts]")
    inner = rank.add_subparsers(title="commands", metavar="COMMAND", required=True)
    execute = verb(
        inner, "exec", "ranks.execute", effect="changes hosts", says="Run one rank of a Plan."
    )
    execute.add_argument("--parent", type=int, metavar="PID", help="end when this process ends")
    execute.add_argument("--lock-fd", type=int, metavar="FD", help="the rank's lock, inherited")
    start = verb(
        inner, "start", "ranks.start", effect="changes hosts", says="Start a rank and return."
    )
    weights = verb(
        inner,
        "weights",
        "packing.weights",
        effect="changes hosts",
        says="Make the checkpoint of a rank's node in its image (profile local).",
    )
    look = verb(inner, "look", "ranks.look", effect="reads hosts", says="Say how a rank is.")
    stop = verb(
        inner, "stop", "ranks.stop", effect="stops serving", says="Stop the ranks of a folder."
    )
    state_dir(stop)
    for parser in (execute, start, look, weights):
        parser.add_argument("--rank", type=int, required=True, metavar="N")
    for parser in (execute, start):
        parser.add_argument(
            "--control-key", type=Path, metavar="F", help="default run/control.key of the state"
        )
    supervise = verb(
        inner,
        "supervise",
        "verbs.supervise",
        effect="changes hosts",
        says="Run all ranks of a Plan.",
    )
    supervise.add_argument("--lock-fd", type=int, required=True, metavar="FD")
    for parser in (execute, start, look, weights, supervise):
        parser.add_argument("--plan", type=Path, required=True, metavar="FILE")
