"""Look at a service from outside: its lock, processes, endpoint and logs. Changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsv41.api import Endpoint
from dsv41.errors import EngineFailed, Unreachable, UsageError
from dsv41.plan import Plan
from dsv41.run import RunDir, service_name

TAIL_BYTES = 256 * 1024  # as much of a log's end as `tail` reads


def look(run: RunDir) -> dict[str, Any]:
    """What runs, with the evidence: fields status, url, says, digest, pid, ranks.

    status is serving (the head's /ready answers 200 for this Plan), starting, failed (the last
    service ended with an error) or stopped. Raises UsageError D062 when nothing was ever started
    here.
    """
    plan = run.plan()
    pid = run.supervisor()
    ended = run.ended()
    pids = _rank_pids(run) if pid else {}
    wrong = readiness(plan) if pid else ""
    ranks = [_rank(run, plan, rank, pids.get(str(rank))) for rank in range(len(plan.ranks))]
    if pid:
        status, says = ("starting", wrong) if wrong else ("serving", "")
    elif ended.get("exit") == 0:
        status, says = "stopped", str(ended.get("says", ""))
    else:
        status, says = "failed", str(ended.get("says", "the supervisor was killed"))
    return {
        "status": status,
        "says": says,
        "url": plan.url,
        "digest": plan.digest,
        "pid": pid,
        "ranks": ranks,
    }


def readiness(plan: Plan) -> str:
    """Why the service of a Plan does not answer yet; empty when /ready is 200 and names it."""
    endpoint = Endpoint(url=plan.url, timeout=5)
    try:
        said = json.loads(endpoint.text("/ready"))
    except Unreachable as error:
        return error.says
    except EngineFailed as error:
        return f"/ready: {error.says}"
    except ValueError:
        said = None
    found = said.get("service") if isinstance(said, dict) else None
    if found == service_name(plan):
        return ""
    return f"{plan.url} answers for another service: expected {service_name(plan)}, found {found}"


def check_rank(plan: Plan, rank: int | None) -> list[int]:
    """The ranks to show: all, or the one asked for; UsageError D064 when the Plan has it not."""
    if rank is None:
        return list(range(len(plan.ranks)))
    if not 0 <= rank < len(plan.ranks):
        raise UsageError(
            "D064",
            f"The Plan has ranks 0 to {len(plan.ranks) - 1}, not {rank}.",
            fix=f"give --rank a number from 0 to {len(plan.ranks) - 1}",
        )
    return [rank]


def tail(path: Path, *, lines: int) -> list[str]:
    """The last lines of a log (of its last 256 KiB); none when there is no log."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return []
    found, _ = lines_since(path, max(0, size - TAIL_BYTES))
    return found[-lines:] if lines > 0 else []


def lines_since(path: Path, place: int) -> tuple[list[str], int]:
    """The whole lines of a log after a byte offset, and the offset after them."""
    if not path.is_file():
        return [], 0
    with path.open("rb") as log:
        if log.seek(0, 2) < place:
            place = 0  # a new service began the log again
        log.seek(place)
        data = log.read()
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), place + len(whole)


def _rank_pids(run: RunDir) -> dict[str, int]:
    try:
        pids: dict[str, int] = json.loads(run.pids_file.read_text())
    except (OSError, ValueError):
        return {}
    return pids if isinstance(pids, dict) else {}


def _rank(run: RunDir, plan: Plan, rank: int, pid: int | None) -> dict[str, Any]:
    alive = pid is not None and Path(f"/proc/{pid}").exists()
    last = tail(run.log_file(rank), lines=1)
    return {
        "rank": rank,
        "role": plan.ranks[rank].role,
        "state": f"up, pid {pid}" if alive else "down",
        "pid": pid if alive else None,
        "last_line": last[0] if last else "",
    }
