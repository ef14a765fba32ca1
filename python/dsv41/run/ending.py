"""Why an engine ended, and whether to start it again. Pure: how it ended in, an error out."""

from __future__ import annotations

import signal

from dsv41.diagnose import PATTERNS
from dsv41.diagnose.log import Line, last_boot, read
from dsv41.diagnose.pattern import Match, match
from dsv41.diagnose.stages import reached
from dsv41.errors import EngineFailed, Error, Unsafe
from dsv41.foreground import Ran

# of our own programs and of argparse: the same command would end the same way
SAME_AGAIN = {2: "a wrong command line", 5: "a refusal"}


def ending(ran: Ran, *, engine: str) -> Error:
    """What an engine's own end means: Unsafe (exit 5) is not started again, EngineFailed (4) is.

    `engine` is sglang, vllm or local and decides which known causes are looked for in `ran.text`.
    """
    lines = last_boot(read(ran.text))
    came = reached(lines, engine=engine, worker=False)
    ready_at = came.line.number if came.ready and came.line else None
    found = match(lines, PATTERNS, engine=engine)
    known = [m for m in found if m.finding(ready_at=ready_at).level == "fail"]
    how = _how(ran)
    final = next((m for m in known if not m.pattern.restart), None)
    if final:
        return Unsafe("D428", f"{how}. {_cause(final)}", fix=final.pattern.fix)
    if ran.status in SAME_AGAIN:
        says = f"{how}: {SAME_AGAIN[ran.status]}{_last(lines)}."
        return Unsafe("D428", says, fix="see the log of this rank; mend the Plan, then serve again")
    first = next((m for m in known if not m.pattern.general), known[0] if known else None)
    if first and not ran.out_of_memory:
        return EngineFailed("D427", f"{how}. {_cause(first)}", fix=first.pattern.fix)
    fix = "sudo dmesg | grep -i oom" if ran.out_of_memory else "see the log of this rank"
    return EngineFailed("D427", f"{how}{_last(lines)}.", fix=fix)


def _how(ran: Ran) -> str:
    """`podman run` gives 128 and the number for a signal, a process its negative number."""
    number = -ran.status if ran.status < 0 else ran.status - 128 if ran.status > 128 else 0
    if ran.out_of_memory:
        return "The engine was ended by the kernel's out-of-memory killer"
    try:
        return f"The engine was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"The engine ended with exit status {ran.status}"


def _cause(found: Match) -> str:
    says = found.pattern.says.format(*found.words)
    return f"{found.pattern.code} {says} ({found.line.quote()})"


def _last(lines: tuple[Line, ...]) -> str:
    return f"; its last line: {lines[-1].quote()}" if lines else ""
