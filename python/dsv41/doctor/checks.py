"""All checks, in the order in which causes come before their consequences."""

from __future__ import annotations

from dsv41.doctor import (
    cabling,
    disk,
    fabric,
    gpu,
    history,
    image,
    kernel,
    links,
    memory,
    network,
    packed,
    services,
    weights,
)
from dsv41.doctor.check import Check

CHECKS: tuple[Check, ...] = (
    *kernel.CHECKS,
    *gpu.CHECKS,
    *memory.CHECKS,
    *services.CHECKS,
    *network.CHECKS,
    *fabric.CHECKS,
    *links.CHECKS,
    *cabling.CHECKS,
    *disk.CHECKS,
    *weights.CHECKS,
    *packed.CHECKS,
    *image.CHECKS,
    *history.CHECKS,
)

_CPU_ENGINES = ("local",)
# those that also hold for an engine without GPU and fabric: who meets where, and with which keys
WITHOUT_GPU = frozenset({"D240", "D241", "D262"})


def checks_for(engine: str) -> tuple[Check, ...]:
    """The checks that make sense where an engine runs."""
    if engine not in _CPU_ENGINES:
        return CHECKS
    return tuple(check for check in CHECKS if check.code in WITHOUT_GPU)


def probes_for(engine: str) -> frozenset[str] | None:
    """The probes that those checks read; None for all."""
    asked = checks_for(engine)
    if asked is CHECKS:
        return None
    return frozenset(probe for check in asked for probe in (*check.probes, "key-file"))


# user reports of sections A1 to A3 that no capture of a node can show, and why
NOT_PROBED = {
    "P08": "the size of /dev/shm is an option of the container: the Plan sets it, 16 GiB at most",
    "P09": "memory that a 1M context leaves is the plan's ledger: refused before anything runs",
    "P37": "a download that hangs is a process, not a state: its unfinished files are P36",
    "P42": "speed that depends on the prompt is the benchmark's matter, which varies its text",
}


def answered() -> dict[str, tuple[str, ...]]:
    """User report -> the codes of the checks that answer it."""
    found: dict[str, tuple[str, ...]] = {}
    for check in CHECKS:
        for report in check.reports:
            found[report] = (*found.get(report, ()), check.code)
    return found
