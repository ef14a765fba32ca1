"""The GPU: does it answer, is it the right one, who has it, does it run at full power."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsv41.diagnose import judge_power, read_gpu_rows
from dsv41.doctor.check import Case, NodeCheck, NoEvidence, Verdict
from dsv41.doctor.live import booted, is_engine
from dsv41.doctor.readings import gib, gpu_processes

_DESKTOP = re.compile(r"Xorg|gnome-shell|Xwayland|gnome-remote|kwin|plasmashell", re.IGNORECASE)
_MISMATCH = re.compile(
    r"Driver/library version mismatch|couldn't communicate with the NVIDIA driver"
)


def answers(case: Case) -> Iterator[Verdict]:
    """nvidia-smi answers and names a GB10; its memory columns are [N/A] there, which is right."""
    said = case.capture.errors.get("nvidia-smi", "") + case.capture.texts.get("nvidia-smi", "")
    if _MISMATCH.search(said):
        yield Verdict(
            level="fail",
            says="The NVIDIA driver does not answer: its libraries are newer than the kernel "
            "module.",
            fix="sudo reboot",
        )
        return
    names = [row.name for row in read_gpu_rows(case.text("nvidia-smi"))]
    if not names:
        raise NoEvidence(f"nvidia-smi says {said.strip()[:80]!r}")
    if all("GB10" in name for name in names):
        yield Verdict(level="ok", says=f"The GPU is {names[0]}.")
    else:
        yield Verdict(
            level="warn",
            says=f"The GPU is {', '.join(names)}; the profiles' kernels are made for GB10 (SM121).",
            fix="take the node out of the fleet file",
        )


def power(case: Case) -> Iterator[Verdict]:
    """Full load at low clock and low power is a state that only a power cycle ends."""
    found = tuple(judge_power(read_gpu_rows(case.text("nvidia-smi")), code="D221"))
    if not found:
        raise NoEvidence("nvidia-smi has no row")
    for finding in found:
        yield Verdict(level=finding.level, says=finding.says, fix=finding.fix)


def processes(case: Case) -> Iterator[Verdict]:
    """Another program on the GPU takes memory that the plan counts on."""
    ours = booted(case)
    found = gpu_processes(case)
    for process in found:
        used = "" if process.bytes is None else f" with {gib(process.bytes)}"
        says = f"{process.name} (pid {process.pid}) has the GPU{used}."
        if is_engine(process.name, booted=ours) and ours:
            yield Verdict(level="ok", says=says)
        elif _DESKTOP.search(process.name):
            yield Verdict(level="info", says=says, fix="sudo systemctl isolate multi-user.target")
        else:
            yield Verdict(level="fail", says=says, fix=f"sudo kill {process.pid}")
    if not found:
        yield Verdict(level="ok", says="No program has the GPU.")


CHECKS = (
    NodeCheck(
        code="D220",
        name="the GPU and its driver",
        probes=(),
        judge=answers,
        reports=("P13", "P79"),
        required=True,
    ),
    NodeCheck(
        code="D222",
        name="programs on the GPU",
        probes=("compute-apps",),
        judge=processes,
        reports=("P10", "P13"),
        required=True,
    ),
    NodeCheck(
        code="D221",
        name="low-power state of the GPU",
        probes=("nvidia-smi",),
        judge=power,
        reports=("P73",),
    ),
)
