"""`dsv41 rows bench`: is this disk, with this kernel, as fast as the goals say?"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from dsv41 import host
from dsv41.errors import INTERRUPTED, CheckFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41.cli.talk import Talk

_MARKS = {True: "ok", False: "MISSED", None: "not measured"}


def rows_bench(args: Namespace, talk: Talk) -> int:
    """Measure row lookups; the exit status says whether every measured goal is met.

    A TERM ends it as Ctrl-C does: the file that it made is removed.
    """
    from dsv41.rows import bench  # noqa: PLC0415 - needs the row-store extension

    options = bench.Options(
        file=args.file,
        folder=args.folder,
        span=round(args.span * bench.GIB),
        rounds=args.rounds,
        seconds=args.seconds,
        fio=args.with_fio,
        force=args.force,
    )
    try:
        with host.term_raises():
            report = bench.run(options, say=talk.say)
    except host.Terminated:
        talk.say("asked to stop: nothing is left behind")
        return INTERRUPTED
    if args.json:
        talk.document("rows-bench", **report)
    else:
        for line in _lines(report):
            talk.put(line)
    return 0 if report["status"] == "ok" else CheckFailed.exit_status


def _lines(report: dict[str, Any]) -> Iterator[str]:
    for name, kinds in report["figures"].items():
        rate, cpu = kinds["rows_per_second"], kinds["cpu_us_per_row"]
        yield (
            f"{name:20} {rate['median']:>9.0f} rows/s ({rate['min']:.0f} to {rate['max']:.0f})"
            f"  {cpu['median']:6.2f} us/row  {kinds['reads_per_row']['median']:.3f} reads/row"
        )
    for goal in report["goals"]:
        bound = f">= {goal['least']}" if goal["least"] is not None else ""
        if goal["most"] is not None:
            bound = f"<= {goal['most']}" if goal["least"] is None else f"= {goal['most']}"
        found = "-" if goal["found"] is None else f"{goal['found']:.3f}"
        yield f"{goal['name']}  {goal['says']:38} {found:>9} {bound:8} {_MARKS[goal['met']]}"
