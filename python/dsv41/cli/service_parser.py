"""The command lines of a service: serve, stop, status, logs, smoke, connect."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Add = Callable[[argparse.ArgumentParser], None]
Verb = Callable[..., argparse.ArgumentParser]
CLIENTS = ("curl", "openai", "open-webui", "litellm", "prometheus")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """What adds the options that several commands have."""

    profile: Add
    state: Add
    own: Add  # a state folder of this machine, with or without a fleet
    key: Add


def add_serve(verbs: Any, verb: Verb, shared: Shared) -> None:
    """Add `serve`; `verb` makes a command as the parser makes all of them."""
    serve = verb(verbs, "serve", "fleets.serve", effect="changes hosts", says="Start the service.")
    shared.profile(serve)
    shared.key(serve)
    serve.add_argument("--port", type=int, metavar="N", help="default 8888, or the fleet file's")
    serve.add_argument("--detach", action="store_true", help="return when the service is ready")
    serve.add_argument("--dry-run", action="store_true", help="print the steps and do nothing")
    _fleet(serve, "serve on its nodes")
    serve.add_argument("--image", metavar="REF", help="with --fleet: the image, with its digest")
    serve.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="D###",
        help="with --fleet: start although doctor finds this; may repeat",
    )
    serve.add_argument(
        "--skip-smoke", action="store_true", help="with --fleet: ask one question, not the ladder"
    )


def add_rest(verbs: Any, verb: Verb, shared: Shared) -> None:
    """Add the commands of a service that runs."""
    stop = verb(verbs, "stop", "service.stop", effect="stops serving", says="Stop the service.")
    status = verb(verbs, "status", "service.status", effect="reads hosts", says="One line a rank.")
    logs = verb(
        verbs, "logs", "service.logs", effect="reads hosts", says="Print the logs of the ranks."
    )
    for parser in (stop, status, logs):
        parser.add_argument("--profile", metavar="P", help="the profile served; default local")
        shared.state(parser)
        _fleet(parser, "of the service on its nodes")
    stop.add_argument("--dry-run", action="store_true", help="say what would be stopped")
    logs.add_argument("--rank", type=int, metavar="N", help="one rank only")
    logs.add_argument(
        "--lines", type=_count, default=50, metavar="N", help="lines a rank, default 50"
    )
    logs.add_argument("--follow", action="store_true", help="go on until interrupted")
    smoke = verb(
        verbs,
        "smoke",
        "service.smoke",
        effect="reads hosts",
        says="Ask questions with known answers.",
    )
    smoke.add_argument(
        "--url", default="http://127.0.0.1:8888/v1", metavar="U", help="default %(default)s"
    )
    _fleet(smoke, "ask the service on its nodes")
    smoke.add_argument("--receipt", type=Path, metavar="FILE", help="where the receipt goes")
    shared.key(smoke)
    shared.own(smoke)
    connect = verb(
        verbs,
        "connect",
        "connect.connect",
        effect="reads hosts",
        says="Print how clients reach the endpoint.",
    )
    connect.add_argument("client", nargs="?", choices=CLIENTS, help="one of them; all by default")
    connect.add_argument("--url", metavar="U", help="the endpoint, as http://10.0.0.1:8888/v1")
    _fleet(connect, "the endpoint of the service on its nodes")
    shared.key(connect)


def _count(text: str) -> int:
    """A number of lines; none at all would look like an empty log."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _fleet(parser: argparse.ArgumentParser, says: str) -> None:
    parser.add_argument("--fleet", type=Path, metavar="F", help=f"{says}: the fleet file")
