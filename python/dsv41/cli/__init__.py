"""The `dsv41` command: the only place that prints or exits.

stdout is data, stderr is talk; `--json` prints one document with a schema. Exit status:
0 done, 1 findings or a failed check, 2 usage, 3 host unreachable, 4 engine failed or timed out,
5 refused as unsafe, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from dsv41.cli.parser import parse_arguments
from dsv41.cli.talk import Talk
from dsv41.errors import INTERRUPTED, Error

if TYPE_CHECKING:
    from collections.abc import Callable


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit status.

    A reader that has gone (`dsv41 logs | head`) is no error of ours: 0, or the status of the error
    that it did not stay to read.
    """
    talk = Talk.to_terminal(as_json="--json" in (sys.argv[1:] if arguments is None else arguments))
    try:
        parsed = parse_arguments(arguments)
        status: int = parsed.verb(parsed, talk)
    except Error as error:
        return _told(partial(talk.error, error), error.exit_status)
    except KeyboardInterrupt:
        return _told(partial(talk.say, "interrupted"), INTERRUPTED)
    except BrokenPipeError:
        _forget_output()
        return 0
    except OSError as error:
        found = Error(
            "D009",
            f"{error.filename or 'The system'}: {error.strerror or error}.",
            fix="check path, owner and free space, then run the same command again",
        )
        return _told(partial(talk.error, found), found.exit_status)
    return status


def _told(tell: Callable[[], None], status: int) -> int:
    """The status, once it has been told why, or to nobody."""
    try:
        tell()
    except BrokenPipeError:
        _forget_output()
    return status


def _forget_output() -> None:
    """Let what is still buffered go nowhere, or the interpreter's own last flush fails loudly."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())
