"""The commands over a fleet that exist so far, doctor and cache clear, and diagnose."""

from __future__ import annotations

import shlex
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dsv41 import budget, caches, diagnose, doctor, fleet, profile
from dsv41.cli import defaults
from dsv41.cli.talk import Talk
from dsv41.diagnose.promise import expectation
from dsv41.errors import CheckFailed, EngineFailed, Unreachable, UsageError
from dsv41.finding import Finding
from dsv41.fleet import Fleet, Node
from dsv41.host.reach import Host


def judge_fleet(args: Namespace, talk: Talk) -> int:
    """Judge every node of a fleet, live or from a bundle.

    3 when a node could not be reached, else 1 when something fails.
    """
    where = fleet.load(args.fleet)
    chosen = profile.load(args.profile)
    _refuse_apart(chosen, where)
    ledgers = [found for node in where.nodes if (found := budget.ledger(chosen, node))]
    image = args.image or defaults.known_image(chosen)
    expect = expectation(chosen, image=image, ledgers=ledgers)
    if args.bundle:
        report = doctor.judge(doctor.read(args.bundle, where), where, expect)
    elif args.collect:
        _collect(where, args.collect, talk)
        report = doctor.judge(doctor.read(args.collect, where), where, expect)
    else:
        with tempfile.TemporaryDirectory(prefix="dsv41-doctor-") as folder:
            _collect(where, Path(folder), talk)
            report = doctor.judge(doctor.read(Path(folder), where), where, expect)
    if args.json:
        talk.document("doctor", **report.document())
    else:
        for cable in report.cables:
            talk.put(str(cable))
        _show(_gathered(report.findings), talk, everything=args.all)
        talk.put(f"status {report.status}")
    if report.unreachable and not args.bundle:
        return Unreachable.exit_status
    return report.exit_status


def _refuse_apart(chosen: profile.Profile, where: Fleet) -> None:
    """UsageError D105 or D096 for a profile that doctor cannot judge on the fleet."""
    if chosen.engine == "local" or where.topology == "loopback":
        raise UsageError(
            "D105",
            f"doctor judges GPUs, fabric and checkpoint, which profile {chosen.name} of engine "
            f"{chosen.engine} does without; serve with --fleet looks at what it needs.",
            fix="give --profile one for Sparks, as tp3",
        )
    if len(where.nodes) != chosen["tp"]:
        raise UsageError(
            "D096",
            f"Profile {chosen.name} has {chosen['tp']} ranks; the fleet has {len(where.nodes)} "
            "nodes.",
            fix="give the fleet one node per rank",
        )


def _gathered(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """The findings without those that only follow from another one, which tells their number."""
    missing = Counter((f.cause, f.node) for f in findings if f.cause)
    for found in findings:
        count = missing[found.code, found.node]
        if count:
            made = "check was" if count == 1 else "checks were"
            yield replace(found, says=f"{found.says} {count} {made} not made.")
        elif not found.cause:
            yield found


def clear_caches(args: Namespace, talk: Talk) -> int:
    """Remove the compile caches of every node, or list them with --dry-run."""
    where = fleet.load(args.fleet)
    with _asking(where) as run:
        found = caches.clear(run, where, remove=not args.dry_run)
    if args.json:
        talk.document("cache-clear", removed=not args.dry_run, folders=[asdict(f) for f in found])
        return 0
    for folder in found:
        talk.put(f"{folder.node}  {folder.bytes / 2**30:8.2f} GiB  {folder.path}")
    talk.say("listed" if args.dry_run else f"{len(found)} folders removed")
    return 0


@contextmanager
def _asking(where: Fleet) -> Iterator[caches.Run]:
    """What runs shell commands on the nodes, by one connection to each."""
    hosts = {node.name: Host(name=node.name, destination=node.ssh) for node in where.nodes}

    def run(node: Node, command: str) -> tuple[int, str, str]:
        try:
            done = hosts[node.name].run(["sh", "-c", command])
        except EngineFailed as late:
            raise TimeoutError(late.says.rstrip(".")) from late
        return done.status, done.stdout, done.stderr

    try:
        yield run
    finally:
        for host in hosts.values():
            host.close()


def _collect(where: Fleet, folder: Path, talk: Talk) -> None:
    waiting = talk.waiting(f"asking {len(where.nodes)} nodes, usually 2 to 10 s each")
    with waiting, _asking(where) as run:
        doctor.collect(run, where, folder)


def judge_log(args: Namespace, talk: Talk) -> int:
    """Judge an engine's log, or samples of a running engine; 1 when something fails."""
    if (args.log is None) == (args.samples is None):
        raise UsageError(
            "D006",
            "diagnose takes a LOG (- for stdin) or --samples FILE, one of the two.",
            fix="dsv41 diagnose LOG, or dsv41 diagnose --samples FILE",
        )
    if args.samples is not None:
        samples, bad = diagnose.read_samples(_text(args.samples))
        verdict = diagnose.judge_samples(samples, bad_lines=bad)
        return _put(verdict.document(), verdict.findings, args, talk)
    chosen = profile.load(args.profile)
    found = diagnose.judge_log(_text(args.log), expectation(chosen))
    return _put(found.document(), found.findings, args, talk)


def _text(path: Path) -> str:
    """A file's text, or stdin's for `-`; bytes that are no UTF-8 are kept as marks."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise UsageError(
            "D007",
            f"{path} cannot be read: {error.strerror}.",
            fix=f"ls -l {shlex.quote(str(path))}",
        ) from error
    return data.decode(errors="replace")


def _put(
    document: dict[str, Any], findings: tuple[Finding, ...], args: Namespace, talk: Talk
) -> int:
    """Print a diagnosis; 1 when something failed, or nothing could be told."""
    failed = any(finding.level == "fail" for finding in findings)
    if args.json:
        talk.document("diagnose", **document)
    else:
        for line in _heads(document):
            talk.put(line)
        _show(findings, talk, everything=True)
    return CheckFailed.exit_status if failed or _untold(document) else 0


def _untold(document: dict[str, Any]) -> bool:
    """Whether the text has nothing of a boot, of a known failure or of a sample."""
    known = document["verdict"] if "verdict" in document else document["stage"]
    return known is None and document["status"] == "unknown"


def _heads(document: dict[str, Any]) -> Iterator[str]:
    """What was found in all, a line each."""
    for name in ("verdict", "stage"):
        if document.get(name) is not None:
            yield f"{name} {document[name]}"
    if not _untold(document):
        yield f"restart {_restart(document)}"
    yield f"status {document['status']}"


def _restart(document: dict[str, Any]) -> str:
    """Whether to start again: of samples, whether it helps; of a log, whether it harms."""
    if "verdict" in document:
        return "yes, all ranks together" if document["restart"] else "not needed"
    if not document["restart"]:
        return "no: starting again does harm before it is mended"
    if document["ready"] and document["status"] != "fail":
        return "not needed"
    return "allowed"


def _show(findings: Iterable[Finding], talk: Talk, *, everything: bool) -> None:
    """Findings, a line each; without `everything` those that are ok are left out."""
    for finding in findings:
        if finding.level == "ok" and not everything:
            continue
        where = finding.node or "fleet"
        talk.put(f"{finding.level:7} {finding.code} {where}: {finding.says}")
        if finding.fix and finding.level != "ok":
            talk.put(f"        fix: {finding.fix}")
