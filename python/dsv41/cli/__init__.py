"""The `dsv41` command: the only place that prints or exits.

stdout is data, stderr is talk; `--json` prints one document with a schema. Exit status:
0 done, 1 findings or a failed check, 2 usage, 3 host unreachable, 4 engine failed or timed out,
5 refused as unsafe, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

from dsv41.cli.parser import parse_arguments
from dsv41.cli.talk import Talk
from dsv41.errors import INTERRUPTED, Error


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit status."""
    talk = Talk.to_terminal(as_json="--json" in (sys.argv[1:] if arguments is None else arguments))
    try:
        parsed = parse_arguments(arguments)
        status: int = parsed.verb(parsed, talk)
    except Error as error:
        talk.error(error)
        return error.exit_status
    except KeyboardInterrupt:
        talk.say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has gone (`dsv41 logs | head`): not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        found = Error(
            "D009",
            f"{error.filename or 'The system'}: {error.strerror or error}.",
            fix="check path, owner and free space, then run the same command again",
        )
        talk.error(found)
        return found.exit_status
    return status


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())
