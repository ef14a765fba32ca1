"""What keeps `serve --fleet` from starting: findings of doctor that the operator did not accept."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41 import budget, doctor
from dsv41.diagnose.promise import expectation
from dsv41.errors import CheckFailed, EngineFailed, UsageError

if TYPE_CHECKING:
    from dsv41.cli.planning import Made
    from dsv41.cli.talk import Talk
    from dsv41.finding import Finding
    from dsv41.fleet import Node
    from dsv41.run.fleet import Crew

FILE = "accepted.json"
# findings that the next steps of `serve` mend: rows that are not packed, an image that is absent
MENDED = frozenset({"D253", "D260", "D261"})


def checks(accepted: Sequence[str]) -> frozenset[str]:
    """The codes of --accept; UsageError D107 for one that no check has, which would do nothing."""
    known = {check.code for check in doctor.CHECKS}
    for code in accepted:
        if code.upper() not in known:
            raise UsageError(
                "D107",
                f"--accept is {code!r}, which no check of doctor has.",
                fix="give --accept one of docs/reference/checks.md, as doctor prints it",
            )
    return frozenset(code.upper() for code in accepted)


def judge(made: Made, crew: Crew, accepted: Sequence[str], talk: Talk) -> list[dict[str, str]]:
    """Ask doctor; CheckFailed D437 for what it finds and nobody accepted. What was accepted."""
    codes = checks(accepted)
    report = _report(made, crew, talk)
    blocking = report.blocking(accepted=codes | MENDED)
    for found in blocking:
        talk.say(f"{found.level:7} {found.code} {found.node or 'fleet'}: {found.says}")
        talk.say(f"        fix: {found.fix}")
    if blocking:
        first = blocking[0]
        raise CheckFailed(
            "D437",
            f"doctor refuses: {len(blocking)} findings, first {first.code} on "
            f"{first.node or 'the fleet'}: {first.says}",
            fix=f"{first.fix or 'see the lines above'}; or serve --accept {first.code}",
        )
    taken = [found for found in report.blocking() if found.code in codes]
    for found in taken:
        talk.say(f"accepted {found.code} {found.node or 'fleet'}: {found.says}")
    return [_document(found) for found in taken]


def _document(found: Finding) -> dict[str, str]:
    return {"code": found.code, "node": found.node or "", "says": found.says}


def _report(made: Made, crew: Crew, talk: Talk) -> doctor.Report:
    ledgers = [found for n in made.fleet.nodes if (found := budget.ledger(made.profile, n))]
    expect = expectation(made.profile, image=made.plan.ranks[0].image, ledgers=ledgers)

    def run(node: Node, command: str) -> tuple[int, str, str]:
        try:
            done = crew.named[node.name].run(["sh", "-c", command])
        except EngineFailed as late:
            raise TimeoutError(late.says.rstrip(".")) from late
        return done.status, done.stdout, done.stderr

    with tempfile.TemporaryDirectory(prefix="dsv41-doctor-") as folder:
        with talk.waiting(f"doctor asks {len(made.fleet.nodes)} nodes"):
            asked = doctor.probes_for(made.profile.engine)
            doctor.collect(run, made.fleet, Path(folder), probes=asked)
        return doctor.judge(doctor.read(Path(folder), made.fleet), made.fleet, expect)


def keep(crew: Crew, accepted: list[dict[str, str]]) -> None:
    """Write down on the head what was accepted, for `status`."""
    text = json.dumps(accepted, ensure_ascii=False).encode()
    crew.hosts[0].put(text, str(crew.run.path / FILE), sudo=True)


def kept(crew: Crew) -> list[dict[str, str]]:
    """What was accepted at the last start; nothing where the head does not tell."""
    done = crew.hosts[0].run(["cat", str(crew.run.path / FILE)], sudo=True)
    try:
        found = json.loads(done.stdout) if done.status == 0 else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []
