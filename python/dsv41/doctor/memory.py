"""Unified memory: what the kernel holds back, what is really free, what the plan needs."""

from __future__ import annotations

from collections.abc import Iterator

from dsv41.diagnose import fixes
from dsv41.doctor.check import Case, FleetCheck, NodeCheck, NoEvidence, Verdict
from dsv41.doctor.live import serves
from dsv41.doctor.readings import GIB, gib, memory, swap_bytes, system

# the cycle's launcher starts no rank below this (sparkring, deepseek_v41_cycle_serve.sh)
LEAST_AVAILABLE = 100 * GIB
# below this share of MemAvailable the free memory is mostly page cache
LEAST_FREE_SHARE = 0.75
# loading keeps checkpoint pages in the same memory; with less room than this it needs swap (P06)
SWAP_BELOW = 10 * GIB


def kexec_handover(case: Case) -> Iterator[Verdict]:
    """CmaFree above CmaTotal: memory that Kexec-HandOver gave back cannot be pinned for RDMA."""
    found = memory(case)
    if found.cma_free is None or found.cma_total is None:
        raise NoEvidence("meminfo has no CmaTotal and CmaFree")
    if found.cma_free > found.cma_total:
        held = gib(found.cma_free - found.cma_total)
        yield Verdict(
            level="fail",
            says=f"CmaFree ({gib(found.cma_free)}) is larger than CmaTotal "
            f"({gib(found.cma_total)}): "
            f"Kexec-HandOver holds {held} that cannot be pinned, and NCCL will fail to register "
            f"memory.",
            fix=fixes.KHO_OFF,
        )
    else:
        yield Verdict(level="ok", says="No memory is held by Kexec-HandOver.")


def command_line(case: Case) -> Iterator[Verdict]:
    """Kernels from 7.0 on hand memory over by default; kho=off turns it off."""
    words, kernel = case.text("cmdline").split(), system(case)
    if not words:
        raise NoEvidence("cmdline is empty")
    if kernel.version < (7, 0):
        yield Verdict(level="ok", says=f"{kernel.release} has no Kexec-HandOver by default.")
    elif "kho=off" in words:
        yield Verdict(level="ok", says="kho=off is on the command line.")
    else:
        says = f"{kernel.release} turns Kexec-HandOver on by default, and kho=off is not set."
        yield Verdict(level="info", says=says, fix=fixes.KHO_OFF)


def free_memory(case: Case) -> Iterator[Verdict]:
    """MemFree is what the GPU counts as free; page cache is used memory to it."""
    found = memory(case)
    need = case.expect.engine_bytes
    short = found.free < LEAST_FREE_SHARE * found.available
    if need is not None and found.available >= need:
        short = found.free < need
    numbers = f"MemFree {gib(found.free)}, MemAvailable {gib(found.available)}"
    if serves(case):
        yield Verdict(level="ok", says=f"{numbers}; the engine runs.")
    elif short:
        yield Verdict(
            level="warn",
            says=f"{numbers}: the rest is page cache, which the GPU counts as used.",
            fix=fixes.DROP_CACHES,
        )
    else:
        yield Verdict(level="ok", says=f"{numbers}.")


def available_memory(case: Case) -> Iterator[Verdict]:
    """Whether what the plan gives to the engine is there."""
    found = memory(case)
    need = case.expect.engine_bytes or LEAST_AVAILABLE
    if serves(case):
        yield Verdict(
            level="ok", says=f"The engine runs; {gib(found.available)} are still available."
        )
    elif found.available < need:
        yield Verdict(
            level="fail",
            says=f"{gib(found.available)} of {gib(found.total)} are available, {gib(need)} are "
            "needed.",
            fix="ps -eo rss,pid,comm --sort=-rss | head, then end what is not needed",
        )
    else:
        yield Verdict(
            level="ok", says=f"{gib(found.available)} of {gib(found.total)} are available."
        )


def swap(case: Case) -> Iterator[Verdict]:
    """Swap takes the peak of loading when the plan leaves little room."""
    total, room = swap_bytes(case), case.expect.headroom_bytes
    if total:
        yield Verdict(level="ok", says=f"{gib(total)} of swap are on.")
    elif room is not None and room < SWAP_BELOW:
        yield Verdict(
            level="warn",
            says=f"Swap is off and the plan leaves {gib(room)}: loading can meet the OOM killer.",
            fix="sudo fallocate -l 64G /swapfile && sudo chmod 600 /swapfile && "
            "sudo mkswap /swapfile && sudo swapon /swapfile",
        )
    else:
        yield Verdict(level="info", says="Swap is off.")


def equal_memory(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """The smallest node limits the plan: makers differ (121.69 against about 119 GiB)."""
    totals = {case.name: memory(case).total for case in cases}
    for case in cases:
        there, planned = totals[case.name], int(case.node.memory_gib * GIB)
        if planned - there > GIB:
            yield Verdict(
                level="warn",
                says=f"{case.name} has {gib(there)}; the plan counts on {gib(planned)}.",
                fix=f"memory_gib = {there / GIB:.2f} for {case.name} in the fleet file",
                rank=case.rank,
            )
    least = min(totals, key=lambda name: totals[name])
    most = max(totals.values())
    if most - totals[least] > GIB // 2:
        yield Verdict(
            level="info",
            says=f"{least} has {gib(totals[least])}, others {gib(most)}: it limits the plan.",
        )
    else:
        yield Verdict(level="ok", says=f"Every node has {gib(most)}.")


CHECKS = (
    NodeCheck(
        code="D210",
        name="memory that Kexec-HandOver holds",
        probes=("meminfo",),
        judge=kexec_handover,
        reports=("P01",),
        required=True,
    ),
    NodeCheck(
        code="D217",
        name="kho=off on the kernel command line",
        probes=("uname", "cmdline"),
        judge=command_line,
        reports=("P01",),
    ),
    NodeCheck(
        code="D212",
        name="memory available to the engine",
        probes=("meminfo",),
        judge=available_memory,
        reports=("P10",),
        required=True,
    ),
    NodeCheck(
        code="D211",
        name="page cache that the GPU counts as used",
        probes=("meminfo",),
        judge=free_memory,
        reports=("P04",),
    ),
    NodeCheck(
        code="D213",
        name="swap for the peak of loading",
        probes=("swaps",),
        judge=swap,
        reports=("P06",),
    ),
    FleetCheck(
        code="D216",
        name="memory of the nodes",
        probes=("meminfo",),
        judge=equal_memory,
        reports=("P83",),
        partial=True,
    ),
)
