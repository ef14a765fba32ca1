"""The kernel: machine, release, and what its log tells of this boot and the one before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dsv41.diagnose import fixes
from dsv41.doctor.check import Case, FleetCheck, NodeCheck, Verdict
from dsv41.doctor.readings import system


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sign:
    """A line of the kernel log and what it means."""

    line: re.Pattern[str]
    level: str
    says: str
    fix: str


_FATAL = _Sign(
    line=re.compile(
        r"AER: Uncorrectable \(Fatal\)|AER:.{0,60}severity=Uncorrect\w+ \(Fatal\)"
        r"|mlx5_pci_slot_reset|soft lockup.{0,80}aerdrv"
    ),
    level="fail",
    says="The network card fell off PCIe; do not start the service again before a power cycle",
    fix=fixes.PCIE_CYCLE,
)
_KILLED = _Sign(
    line=re.compile(r"Out of memory: Killed process|oom-kill:|invoked oom-killer"),
    level="warn",
    says="The kernel's out-of-memory killer ended a process",
    fix="dsv41 plan --profile PROFILE --fleet FLEET --why shows the ledger; serve with a smaller "
    "pool, or with swap while loading",
)
_OOPS = _Sign(
    line=re.compile(r"Internal error: Oops|Unable to handle kernel|kernel BUG at|nvme_setup_rw"),
    level="fail",
    says="The kernel met an error of its own (seen in NVMe read-ahead while weights were loading)",
    fix="sudo reboot; keep the log: sudo journalctl -k -b 0 > oops.txt",
)
_WIFI = _Sign(
    line=re.compile(
        r"mt7925.{0,80}(?:Oops|timeout|timed out)|NetworkManager.{0,40}blocked for more than",
        re.IGNORECASE,
    ),
    level="warn",
    says="The Wi-Fi driver has trouble; it can take the whole network down",
    fix="echo 'blacklist mt7925e' | sudo tee /etc/modprobe.d/no-wifi.conf && sudo reboot"
    ' (NixOS: boot.blacklistedKernelModules = [ "mt7925e" ];)',
)
_NOISE = re.compile(r"NV_ERR_NO_MEMORY|nvCheckOkFailedNoLog")
JOURNAL_MARK = "-- journal"
_SHUTDOWN = re.compile(r"Journal stopped|shutdown\.target|systemd-shutdown|System (?:Power|Reboot)")


def machine(case: Case) -> Iterator[Verdict]:
    """Linux on arm64."""
    found = system(case)
    words = f"{found.system} {found.release} {found.machine}"
    if (found.system, found.machine) == ("Linux", "aarch64"):
        yield Verdict(level="ok", says=f"{words}.")
    else:
        yield Verdict(
            level="fail",
            says=f"{words}: the engine images are for Linux on aarch64.",
            fix="take the node out of the fleet file",
        )


def equal_kernels(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """Different kernels on the nodes of one fleet are a build that nobody tested."""
    releases = {case.name: system(case).release for case in cases}
    if len(set(releases.values())) == 1:
        yield Verdict(level="ok", says=f"Every node runs {next(iter(releases.values()))}.")
        return
    words = ", ".join(f"{name} {release}" for name, release in releases.items())
    yield Verdict(
        level="warn",
        says=f"The nodes run different kernels: {words}.",
        fix="sudo apt-get update && sudo apt-get dist-upgrade && sudo reboot on the older ones",
    )


def _signs(sign: _Sign, case: Case, probe: str, *, before: bool) -> Iterator[Verdict]:
    """The verdict on one sign; of the boot before it is no more than a warning."""
    lines = [line for line in case.text(probe).splitlines() if sign.line.search(line)]
    if lines and before:
        says = f"{sign.says}, in the boot before this one ({lines[0].strip()[:120]})."
        yield Verdict(level="info", says=says)
    elif lines:
        says = f"{sign.says} ({lines[0].strip()[:120]})."
        yield Verdict(level=sign.level, says=says, fix=sign.fix)


def _judged(case: Case, quiet: str, *signs: _Sign) -> Iterator[Verdict]:
    """The signs in the log of this boot; `quiet` when there is none. An empty log shows nothing."""
    found = [v for sign in signs for v in _signs(sign, case, "kernel-log", before=False)]
    yield from found
    if not case.text("kernel-log").strip():
        yield Verdict(level="info", says="The kernel log is empty.")
    elif not found:
        yield Verdict(level="ok", says=quiet)


def fatal(case: Case) -> Iterator[Verdict]:
    """PCIe fatal errors of this boot. The card's `27 W` message shows nothing and is left out."""
    yield from _judged(case, "No PCIe error took the network card away.", _FATAL)


def killed(case: Case) -> Iterator[Verdict]:
    """The kernel's OOM killer in this boot."""
    yield from _judged(case, "The kernel ended no process for memory.", _KILLED)


def trouble(case: Case) -> Iterator[Verdict]:
    """Errors of the kernel itself and of the Wi-Fi driver in this boot."""
    yield from _judged(case, "The kernel log has no error of its own.", _OOPS, _WIFI)


def noise(case: Case) -> Iterator[Verdict]:
    """NVRM's out-of-memory line comes in healthy runs: it is counted, and never more than that."""
    count = sum(bool(_NOISE.search(line)) for line in case.text("kernel-log").splitlines())
    says = f"{count} NV_ERR_NO_MEMORY lines of the driver; healthy nodes have them too."
    empty = not case.text("kernel-log").strip()
    yield Verdict(level="info" if count or empty else "ok", says=says)


def previous(case: Case) -> Iterator[Verdict]:
    """How the boot before this one ended: a log that stops in the middle is a reset."""
    for sign in (_FATAL, _KILLED, _OOPS):
        yield from _signs(sign, case, "kernel-log-previous", before=True)
    _, mark, end = case.text("kernel-log-previous").partition(JOURNAL_MARK)
    if mark and end.strip() and not _SHUTDOWN.search(end):
        yield Verdict(
            level="info",
            says="The boot before this one ended without a shutdown: a power cut, or a reset as "
            "one long prefill with too little free memory causes.",
        )
    else:
        yield Verdict(level="ok", says="Nothing shows that the boot before this one was cut off.")


CHECKS = (
    NodeCheck(code="D223", name="the machine", probes=("uname",), judge=machine, required=True),
    NodeCheck(
        code="D225",
        name="PCIe errors",
        probes=("kernel-log",),
        judge=fatal,
        reports=("P20",),
        required=True,
    ),
    NodeCheck(
        code="D214",
        name="the kernel's OOM killer",
        probes=("kernel-log",),
        judge=killed,
        reports=("P06", "P07"),
    ),
    NodeCheck(
        code="D226",
        name="errors of the kernel",
        probes=("kernel-log",),
        judge=trouble,
        reports=("P12", "P31"),
    ),
    NodeCheck(
        code="D224",
        name="noise of the driver",
        probes=("kernel-log",),
        judge=noise,
        reports=("P02",),
    ),
    NodeCheck(
        code="D227",
        name="how the boot before ended",
        probes=("kernel-log-previous",),
        judge=previous,
        reports=("P03", "P12"),
    ),
    FleetCheck(
        code="D228",
        name="kernels of the nodes",
        probes=("uname",),
        judge=equal_kernels,
        reports=("P01",),
        partial=True,
    ),
)
