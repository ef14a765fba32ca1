"""Pack one rank's rows: python -m dsv41.rows.packing --checkpoint DIR --out DIR --rank N --tp T.

What an image runs on a node, where the operator's command has no row store. stdout has the paths
of the files; progress and errors go to stderr. Exit status as that of `dsv41 pack`.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41 import rows
from dsv41.errors import Error
from dsv41.geometry import PARTITIONS, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GIB = 2**30
EVERY = 5.0  # seconds between two lines of progress of a file


@dataclass(kw_only=True)
class Progress:
    """A line every few seconds for the file that is being written, with the time it still takes."""

    say: Callable[[str], object]
    began: dict[Path, float] = field(default_factory=dict)
    shown: dict[Path, float] = field(default_factory=dict)

    def __call__(self, path: Path, done: int, total: int) -> None:
        """Note that `done` of `total` bytes of a file are written."""
        now = time.monotonic()
        began = self.began.setdefault(path, now)
        if now - self.shown.setdefault(path, began) < EVERY:
            return
        self.shown[path] = now
        left = (now - began) * (total - done) / max(1, done)
        size = f"{done / _GIB:.1f} of {total / _GIB:.1f} GiB"
        self.say(f"{path.name}: {size}, about {left:.0f} s left")


def main(argv: Sequence[str]) -> int:
    """Pack as the command line says; give the exit status."""
    options = _parse(argv)

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    try:
        files = rows.pack(
            checkpoint=options.checkpoint,
            out=options.out,
            engram=rows.geometry_of(options.checkpoint),
            partition=options.partition,
            shard=Shard(rank=options.rank, tp=options.tp),
            progress=Progress(say=say),
        )
    except Error as error:
        say(f"{error.code} {error.says}\n  fix: {error.fix}")
        return error.exit_status
    for file in files:
        sys.stdout.write(f"{file}\n")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dsv41.rows.packing", allow_abbrev=False)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--partition", choices=PARTITIONS, required=True)
    parser.add_argument("--rank", type=int, required=True, metavar="N")
    parser.add_argument("--tp", type=int, required=True, metavar="T")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
