"""One rank of the CPU engine: `python -m dsv41.local.rank --rank R --world N ...`.

Rank 0 decides, samples and, with --serve, answers over HTTP; the others follow. Exit status: 0 when
it was asked to stop, 1 when a check failed (wrong rows), 2 for a wrong command line, 4 when the
engine failed (a peer died or did not answer). All talk goes to stderr, one line a fact.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dsv41.errors import Error, UsageError
from dsv41.geometry import PARTITIONS
from dsv41.local.http.keys import read_keys
from dsv41.local.stopping import StopSignals, die_with_parent

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("dsv41")
EXIT_FAILED = 4
ROW_ENGINES = ("auto", "uring", "aio", "pread")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("D050", f"{message}.", fix=f"{self.prog} --help")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; UsageError D050 for anything unknown, missing or out of range."""
    parser = _Parser(prog="python -m dsv41.local.rank", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--rank", type=int, required=True, help="this rank, from 0")
    add("--world", type=int, required=True, help="number of ranks")
    add("--master", required=True, metavar="HOST:PORT", help="where the ranks meet")
    add(
        "--group",
        default="dsv41",
        help="a name that all ranks of a service have; in /ready",
    )
    add("--checkpoint", type=Path, required=True, help="folder of the checkpoint")
    add("--rows", type=Path, required=True, help="folder of this rank's row files")
    add("--partition", choices=PARTITIONS, required=True, help="which rank owns which rows")
    add("--layout", choices=("legal", "balanced"), default="legal", help="padded attention heads")
    add("--row-engine", choices=ROW_ENGINES, default="auto", help="how rows are read")
    add("--slots", type=int, default=8, help="streams at once, the width of every step")
    add("--context", type=int, default=4096, help="tokens of prompt and answer together")
    add("--queue", type=int, default=64, help="requests that may wait for a slot")
    add("--serve", metavar="HOST:PORT", help="where rank 0 answers over HTTP")
    add("--api-key-file", type=Path, help="file of accepted keys, one a line, mode 0600")
    add("--peer-timeout", type=float, default=8.0, help="seconds until a silent rank is lost")
    add("--join-timeout", type=float, default=120.0, help="seconds for all to load")
    add("--parent", type=int, metavar="PID", help="end when this process, which starts it, ends")
    options = parser.parse_args(argv)
    _check(parser, options)
    return options


def _check(parser: _Parser, options: argparse.Namespace) -> None:
    if options.world < 1:
        parser.error(f"--world is {options.world}; it must be at least 1")
    if not 0 <= options.rank < options.world:
        parser.error(f"--rank is {options.rank}; it must lie in 0..{options.world - 1}")
    if not 1 <= options.slots <= 62:  # the resets of a step are bits of one int64
        parser.error(f"--slots is {options.slots}; it must lie in 1..62")
    for name in ("context", "queue", "peer_timeout", "join_timeout"):
        if not 0 < getattr(options, name) < 2**31:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    if (options.serve or options.api_key_file) and options.rank:
        parser.error("--serve and --api-key-file belong to rank 0")
    if options.rank == 0 and not options.serve:
        parser.error("rank 0 needs --serve HOST:PORT")


class Claimed(socket.socket):
    """A socket whose port no other rank can bind, though it does not listen yet.

    Two sockets that both do not listen may share an address, so the port is claimed as a name in
    the abstract socket namespace (unix(7)), which the kernel frees with the process.
    """

    _name: socket.socket | None = None

    def claim(self, port: int) -> None:
        """Take the name of a port; OSError when another rank has it."""
        self._name = socket.socket(socket.AF_UNIX)
        self._name.bind(f"\0dsv41-serve-{port}")

    def close(self) -> None:
        """Close it and give the name back."""
        if self._name is not None:
            self._name.close()
        super().close()


def bind(address: str) -> socket.socket:
    """Take HOST:PORT without listening yet: connections are refused until the server is ready.

    UsageError D058 when it is no such address or is taken.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            "D058",
            f"{address!r} is no HOST:PORT to serve at.",
            fix="give --serve with an address and a port, as in 127.0.0.1:8888",
        )
    host = host.strip("[]")
    taken = Claimed(socket.AF_INET6 if ":" in host else socket.AF_INET)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.claim(int(port))
        taken.bind((host, int(port)))
    except OSError as error:
        taken.close()
        raise UsageError(
            "D058",
            f"{address} cannot be served at: {error.strerror}.",
            fix="stop what listens there, or choose another port with --port",
        ) from error
    return taken


def main(argv: Sequence[str]) -> int:
    """Run the rank of a command line; give the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="rank ?: %(message)s")
    try:
        options = parse(argv)
        form = logging.Formatter(f"rank {options.rank}: %(message)s")
        logging.getLogger().handlers[0].setFormatter(form)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        signals = StopSignals(say=log.info)
        if options.parent is not None:
            die_with_parent(options.parent)
        keys = read_keys(options.api_key_file) if options.api_key_file else None
        listener = bind(options.serve) if options.serve else None
        # torch takes two seconds to import: what is wrong already is said before it
        from dsv41.local.process import run  # noqa: PLC0415

        return run(options, signals, listener=listener, keys=keys)
    except Error as error:
        fix = f" Fix: {error.fix}" if error.fix else ""
        log.error("%s %s%s", error.code, error.says, fix)  # noqa: TRY400 - people read it
        return error.exit_status
    except Exception:
        log.exception("D053 the rank ends by an error that nothing expected")
        return EXIT_FAILED


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    if ended:
        os._exit(ended)  # after a failure threads may hang in calls to ranks that are gone
    sys.exit(ended)
