"""The packed Engram rows of each node's rank: there, plain, of this cut (reports P39, P40)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache

from dsv41.diagnose import Expect
from dsv41.doctor import byhand
from dsv41.doctor.check import Case, NodeCheck, Verdict
from dsv41.doctor.readings import listing
from dsv41.geometry import REAL_ENGRAM, partition
from dsv41.rows import file_name

PAGE, ROWS_PER_PAGE = 4096, 15  # csrc/include/dsv41_rows/row_store.hpp
_NAME = re.compile(r"engram-l(\d{1,3})-r(\d{1,3})of(\d{1,3})-([a-z-]{1,40})\.rows$")


def sizes(case: Case) -> Mapping[str, int]:
    """The row files that a rank needs, by name, with their bytes."""
    return _sizes(case.expect, case.rank)


@lru_cache(maxsize=16)
def _sizes(expect: Expect, rank: int) -> Mapping[str, int]:
    cuts = [
        partition(expect.partition, engram=REAL_ENGRAM, layer_id=layer, tp=expect.tp)
        for layer in REAL_ENGRAM.layer_ids
    ]
    return {
        file_name(layer=cut.layer_id, rank=rank, tp=expect.tp, partition=expect.partition): (
            1 + -(-cut.local_rows(rank) // ROWS_PER_PAGE)
        )
        * PAGE
        for cut in cuts
    }


def there(case: Case) -> Iterator[Verdict]:
    """Every Engram layer's file of this rank is there, whole and a plain file."""
    found, needed = listing(case, "rows"), sizes(case)
    pack = byhand.pack(case)
    missing = [name for name in needed if name not in found]
    if missing:
        others = sorted(name for name in found if _NAME.search(name))
        instead = f"; there are {', '.join(others[:2])}" if others else ""
        says = f"Rows of rank {case.rank} are not packed: {', '.join(missing)}{instead}."
        yield Verdict(level="fail", says=says, fix=pack)
    for name in sorted(needed.keys() & found.keys()):
        entry = found[name]
        if entry.kind != "file" or not entry.size:
            says = f"{name} is {entry.kind} of {entry.size} bytes."
            yield Verdict(level="fail", says=says, fix=pack)
        elif entry.size != needed[name]:
            says = f"{name} has {entry.size:,} bytes; one of this cut has {needed[name]:,}."
            path = shlex.quote(f"{case.node.rows_dir}/{name}")
            yield Verdict(level="info", says=says, fix=f"on {case.name}: dsv41 rows verify {path}")
        else:
            yield Verdict(level="ok", says=f"{name} is there.")


def leftovers(case: Case) -> Iterator[Verdict]:
    """Row files that this rank does not read: of other cuts, or unfinished."""
    found, needed = listing(case, "rows"), sizes(case)
    extra = sorted(name for name in found if name not in needed and name.startswith("engram-"))
    if extra:
        size = sum(found[name].size for name in extra)
        says = f"{len(extra)} files of other cuts take {size:,} bytes: {', '.join(extra[:2])}."
        yield Verdict(level="info", says=says, fix="remove them when no other profile needs them")


CHECKS = (
    NodeCheck(
        code="D253",
        name="packed rows of the rank",
        probes=("rows",),
        judge=there,
        reports=("P40",),
        required=True,
    ),
    NodeCheck(
        code="D254",
        name="row files of other cuts",
        probes=("rows",),
        judge=leftovers,
    ),
)
