"""The commands over a fleet that exist so far, doctor and cache clear, and diagnose."""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsv41 import budget, caches, diagnose, doctor, fleet, profile, remote
from dsv41.cli.talk import Talk
from dsv41.diagnose.promise import expectation
from dsv41.errors import CheckFailed, UsageError
from dsv41.finding import Finding
from dsv41.fleet import Fleet, Node


def judge_fleet(args: Namespace, talk: Talk) -> int:
    """Judge every node of a fleet, live or from a bundle; 1 when something fails."""
    where = fleet.load(args.fleet)
    chosen = profile.load(args.profile)
    ledgers = [found for node in where.nodes if (found := budget.ledger(chosen, node))]
    expect = expectation(chosen, image=args.image, ledgers=ledgers)
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
        return report.exit_status
    for cable in report.cables:
        talk.put(str(cable))
    _show(report.findings, talk, everything=args.all)
    talk.put(f"status {report.status}")
    return report.exit_status


def clear_caches(args: Namespace, talk: Talk) -> int:
    """Remove the compile caches of every node, or list them with --dry-run."""
    found = caches.clear(_run, fleet.load(args.fleet), remove=not args.dry_run)
    if args.json:
        talk.document("cache-clear", removed=not args.dry_run, folders=[asdict(f) for f in found])
        return 0
    for folder in found:
        talk.put(f"{folder.node}  {folder.bytes / 2**30:8.2f} GiB  {folder.path}")
    talk.say("listed" if args.dry_run else f"{len(found)} folders removed")
    return 0


def _run(node: Node, command: str) -> tuple[int, str, str]:
    return remote.run(node.ssh, command)


def _collect(where: Fleet, folder: Path, talk: Talk) -> None:
    with talk.waiting(f"asking {len(where.nodes)} nodes, usually 2 to 10 s each"):
        doctor.collect(_run, where, folder)


def judge_log(args: Namespace, talk: Talk) -> int:
    """Judge an engine's log, or samples of a running engine; 1 when something fails."""
    if (args.log is None) == (args.samples is None):
        raise UsageError(
            "D006", "diagnose takes a LOG (- for stdin) or --samples FILE, one of the two."
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
        raise UsageError("D007", f"{path} cannot be read: {error.strerror}.") from error
    return data.decode(errors="replace")


def _put(
    document: dict[str, Any], findings: tuple[Finding, ...], args: Namespace, talk: Talk
) -> int:
    failed = any(finding.level == "fail" for finding in findings)
    if args.json:
        talk.document("diagnose", **document)
    else:
        for name in ("verdict", "restart", "stage", "status"):
            if name in document:
                talk.put(f"{name} {document[name]}")
        _show(findings, talk, everything=True)
    return CheckFailed.exit_status if failed else 0


def _show(findings: tuple[Finding, ...], talk: Talk, *, everything: bool) -> None:
    """Findings, a line each; without `everything` those that are ok are left out."""
    for finding in findings:
        if finding.level == "ok" and not everything:
            continue
        where = finding.node or "fleet"
        talk.put(f"{finding.level:7} {finding.code} {where}: {finding.says}")
        if finding.fix and finding.level != "ok":
            talk.put(f"        fix: {finding.fix}")
