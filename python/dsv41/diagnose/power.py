"""GPU rows of nvidia-smi, and the low-power state that they show.

A GB10 can latch below 1 GHz after a watchdog reboot or when its power supply renegotiates: one node
is then two to three times slower and no log says why (user report P73). Under load a healthy one
runs at 2.0 to 2.4 GHz and 45 to 90 W. Idle rows are low in everything and show nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dsv41.diagnose import fixes
from dsv41.finding import Finding

BUSY_PERCENT = 90.0
CLAMPED_MHZ = 1000.0
CLAMPED_WATT = 35.0
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?")
_FIELD = re.compile(
    r"\s*(?:-?\d{1,9}(?:\.\d{1,9})?(?: ?[%a-zA-Z]{1,4})?|\[?N/A\]?|\[Not Supported\])\s*$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRow:
    """One GPU as nvidia-smi sees it; None where it says [N/A], as GB10 does for memory.

    Units: percent, MHz, W, MiB, MiB, degrees Celsius.
    """

    name: str
    utilization: float | None
    clock: float | None
    power: float | None
    memory_used: float | None
    memory_total: float | None
    temperature: float | None

    @property
    def clamped(self) -> bool:
        """Whether the row shows the low-power state: full load, low clock and low power at once."""
        if self.utilization is None or self.clock is None or self.power is None:
            return False
        busy = self.utilization >= BUSY_PERCENT
        return busy and self.clock < CLAMPED_MHZ and self.power < CLAMPED_WATT


def _value(field: str) -> float | None:
    found = _NUMBER.match(field.strip())
    return float(found[0]) if found else None


def read_gpu_rows(text: str) -> tuple[GpuRow, ...]:
    """The rows of nvidia-smi's CSV, in the order of the fields of `GpuRow`; no other line."""
    rows = []
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) < 7 or not all(map(_FIELD.match, fields[-6:])):
            continue
        name = ",".join(fields[:-6]).strip()
        values = [_value(field) for field in fields[-6:]]
        rows.append(_row(name, values))
    return tuple(rows)


def _row(name: str, values: list[float | None]) -> GpuRow:
    utilization, clock, power, used, total, temperature = values
    return GpuRow(
        name=name,
        utilization=utilization,
        clock=clock,
        power=power,
        memory_used=used,
        memory_total=total,
        temperature=temperature,
    )


def judge_power(rows: Iterable[GpuRow], *, code: str) -> Iterator[Finding]:
    """A warning for each row in the low-power state; one ok when there are rows and none is."""
    rows = tuple(rows)
    clamped = [row for row in rows if row.clamped]
    for row in clamped:
        yield Finding(
            code=code,
            level="warn",
            says=f"{row.name} is at {row.utilization:g} % load with {row.clock:g} MHz and "
            f"{row.power:g} W: "
            "it is stuck in its low-power state.",
            fix=fixes.POWER_CYCLE,
        )
    if rows and not clamped:
        yield Finding(code=code, level="ok", says="The GPU is not in its low-power state.")
