"""The checkpoint on each node: whole, of plain files, the same everywhere (reports A3).

Only presence, kind and non-zero size are judged; sizes and hashes need every byte to be read.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsv41.doctor import byhand
from dsv41.doctor.check import Case, FleetCheck, NodeCheck, NoEvidence, Verdict
from dsv41.doctor.readings import Entry, gib, listing
from dsv41.rows import INDEX

NEEDED = ("config.json", INDEX)
_SHOWN = 3


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _wanted(case: Case) -> list[str]:
    shards = [line.strip() for line in case.text("checkpoint-index").splitlines() if line.strip()]
    if not shards:
        raise NoEvidence("checkpoint-index names no shard")
    return [*NEEDED, *sorted(set(shards))]


def whole(case: Case) -> Iterator[Verdict]:
    """Every file of the index is there and not empty."""
    found, wanted = listing(case, "checkpoint"), _wanted(case)
    fetch = byhand.fetch(case)
    missing = [name for name in wanted if name not in found]
    empty = [name for name in wanted if name in found and not found[name].size]
    if missing:
        says = f"{len(missing)} of {len(wanted)} files are missing: {_some(missing)}."
        yield Verdict(level="fail", says=f"{case.node.model_dir}: {says}", fix=fetch)
    if empty:
        yield Verdict(level="fail", says=f"Empty files: {_some(empty)}.", fix=fetch)
    if not missing and not empty:
        total = gib(sum(found[name].size for name in wanted))
        yield Verdict(level="ok", says=f"All {len(wanted)} files are there, {total}.")


def kinds(case: Case) -> Iterator[Verdict]:
    """No download left unfinished, no link that leads out of the folder or nowhere."""
    found, wanted = listing(case, "checkpoint"), set(_wanted(case))
    if not wanted & found.keys():
        raise NoEvidence("none of its files is there")
    by_kind = _by_kind(found, wanted)
    broken = by_kind.get("broken-link", [])
    if broken:
        says = f"Links that lead nowhere: {_some(broken)}."
        yield Verdict(level="fail", says=says, fix=byhand.fetch(case))
    if links := by_kind.get("link", []):
        folder = case.node.model_dir
        yield Verdict(
            level="fail",
            says=f"Links that lead out of {folder}, which a container does not see: "
            f"{_some(links)}.",
            fix=f"cp -rlL {folder} {folder}.plain and set model_dir to it (hard links, no copy)",
        )
    unfinished = [
        n for n, e in found.items() if e.kind == "incomplete" or n.endswith(".incomplete")
    ]
    if unfinished:
        yield Verdict(
            level="fail",
            says=f"A download did not finish: {_some(sorted(unfinished))}.",
            fix=f"{byhand.fetch(case)}; then remove what is left of it",
        )
    if not broken and not links and not unfinished:
        yield Verdict(level="ok", says="The checkpoint is of plain, finished files.")
    if extra := sorted(set(found) - wanted - set(unfinished)):
        yield Verdict(level="info", says=f"{len(extra)} more files: {_some(extra)}.")


def _by_kind(found: dict[str, Entry], wanted: set[str]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for name in sorted(wanted & found.keys()):
        kinds.setdefault(found[name].kind, []).append(name)
    return kinds


def equal(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """The same bytes on every node: sizes of all files, as far as both have them."""
    head, *others = cases
    first = listing(head, "checkpoint")
    for case in others:
        theirs = listing(case, "checkpoint")
        both = sorted(first.keys() & theirs.keys())
        differ = [n for n in both if first[n].size != theirs[n].size]
        if differ:
            yield Verdict(
                level="fail",
                says=f"{head.name} and {case.name} have different checkpoints: {_some(differ)}.",
                fix=byhand.compare(case),
                rank=case.rank,
            )
        elif not both:
            says = f"Not checked: {case.name} and {head.name} have no file in common."
            yield Verdict(level="unknown", says=says, rank=case.rank)
        else:
            says = f"{case.name} has files of the same sizes as {head.name}."
            yield Verdict(level="ok", says=says, rank=case.rank)


def revisions(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """The revision that each download recorded."""
    found = {case.name: case.text("revision").strip()[:40] for case in cases}
    planned = cases[0].expect.revision
    if len(set(found.values())) == 1:
        there = next(iter(found.values()))
        other = planned is not None and not planned.startswith(there or "?")
        instead = f"; the profile was made with {planned}" if other else ""
        says = f"Every node has revision {there or 'unknown'}{instead}."
        yield Verdict(level="info" if other else "ok", says=says)
        return
    words = ", ".join(f"{name} {revision[:12] or 'none'}" for name, revision in found.items())
    yield Verdict(
        level="fail",
        says=f"The nodes have different revisions of the checkpoint: {words}.",
        fix=f"{byhand.fetch(cases[0])}, and the same on the others",
    )


CHECKS = (
    NodeCheck(
        code="D250",
        name="files of the checkpoint",
        probes=("checkpoint", "checkpoint-index"),
        judge=whole,
        reports=("P35", "P36"),
        required=True,
    ),
    NodeCheck(
        code="D251",
        name="kind of the checkpoint's files",
        probes=("checkpoint", "checkpoint-index"),
        judge=kinds,
        reports=("P36", "P38"),
        required=True,
    ),
    FleetCheck(
        code="D252",
        name="equal checkpoints",
        probes=("checkpoint",),
        judge=equal,
        reports=("P45",),
        partial=True,
    ),
    FleetCheck(
        code="D258",
        name="revision of the checkpoint",
        probes=("revision",),
        judge=revisions,
        reports=("P45",),
        partial=True,
    ),
)
