"""The engine image: there, by its digest, the same on every node (reports P45 and A4)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsv41.doctor.check import Case, FleetCheck, NodeCheck, Verdict

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# whose builds count where the profile names no image: a node's other images are its owner's
_ENGINE = re.compile(r"sglang|vllm|dsv41|^\?$", re.IGNORECASE)


def images(case: Case) -> dict[str, set[str]]:
    """Image name (without tag) -> digests on a node; a line has a name and a digest."""
    found: dict[str, set[str]] = {}
    for line in case.text("image").splitlines():
        if digest := _DIGEST.search(line):
            words = re.split(r"[\s,@|\"]+", line[: digest.start()].strip(" \t@\"'{[") or "?")
            found.setdefault(_bare(words[0]), set()).add(digest[0])
    return found


def _bare(name: str) -> str:
    """A name without its tag; a colon before a slash is a registry's port."""
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def there(case: Case) -> Iterator[Verdict]:
    """The image of the profile is on the node, with exactly the planned digest."""
    found, expect = images(case), case.expect
    everything = set().union(*found.values()) if found else set()
    name, digest = expect.image, expect.image_digest
    reference = f"{_bare(name) if name else 'IMAGE'}@{digest or 'sha256:...'}"
    pull = f"sudo {case.fleet.container_of(case.rank)} pull {reference}"
    if digest and digest in everything:
        yield Verdict(level="ok", says=f"The image {digest[:19]} is there.")
    elif digest:
        others = sorted(found.get(_bare(name), everything) if name else everything)
        instead = f"; there is {', '.join(d[:19] for d in others[:3])}" if others else ""
        yield Verdict(level="fail", says=f"The image {reference} is not there{instead}.", fix=pull)
    elif not everything:
        yield Verdict(level="fail", says="There is no engine image.", fix=pull)
    else:
        says = f"{len(everything)} images are there; the profile names no digest."
        yield Verdict(level="info", says=says)


def equal(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """One rank on another build is a fleet that fails without a word."""
    found = {case.name: images(case) for case in cases}
    name = cases[0].expect.image
    everywhere = sorted(set.intersection(*map(set, found.values())))
    shared = [_bare(name)] if name else [n for n in everywhere if _ENGINE.search(n)]
    differ = [n for n in shared if len({frozenset(i.get(n, ())) for i in found.values()}) > 1]
    for one in differ:
        words = ", ".join(
            f"{node} {' '.join(sorted(d[7:19] for d in of.get(one, ()))) or 'none'}"
            for node, of in found.items()
        )
        yield Verdict(
            level="fail",
            says=f"The nodes have different builds of {one}: {words}.",
            fix=f"pull {one} by one digest on every node",
        )
    if not differ:
        yield Verdict(level="ok", says="Images of the same name are the same on every node.")


CHECKS = (
    NodeCheck(
        code="D260",
        name="the engine image",
        probes=("image",),
        judge=there,
        reports=("P49",),
        required=True,
    ),
    FleetCheck(
        code="D261",
        name="equal images",
        probes=("image",),
        judge=equal,
        reports=("P46",),
        required=True,
        partial=True,
    ),
)
