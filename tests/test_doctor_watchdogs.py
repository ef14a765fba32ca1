"""What systemctl says of a unit's state, and what it leaves out."""

import pytest

from bundles import bundle, healthy, site
from dsv41.doctor import judge

TRIANGLE = site("triangle")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("dgx-anti-oom\tactive\t/opt/x", {"warn"}),
        ("dgx-anti-oom\tinactive\t", {"ok"}),
        ("dgx-anti-oom\tactivating\t", {"ok"}),
        ("dgx-anti-oom\tfailed\t", {"ok"}),
        ("dgx-anti-oom\t\t", {"unknown"}),  # systemctl is there, systemd does not run
        ("dgx-anti-oom", {"unknown"}),
        ("earlyoom\tactive\t/usr/bin/earlyoom -m 10\ndgx-anti-oom\t\t", {"fail", "unknown"}),
    ],
)
def test_only_an_active_unit_runs(lines: str, expected: set[str]) -> None:
    texts = healthy(TRIANGLE)
    texts["spark2"]["services"] = lines + "\n"
    report = judge(bundle(texts), TRIANGLE.fleet, TRIANGLE.expect)
    found = [f for f in report.of(1) if f.code == "D215"]
    assert {f.level for f in found} == expected


def test_units_without_a_state_are_named_once() -> None:
    texts = healthy(TRIANGLE)
    units = ("earlyoom", "systemd-oomd", "nohang", "dgx-anti-oom")
    texts["spark2"]["services"] = "".join(f"{unit}\t\t\n" for unit in units)
    report = judge(bundle(texts), TRIANGLE.fleet, TRIANGLE.expect)
    (found,) = [f for f in report.of(1) if f.code == "D215"]
    assert found.says.startswith(
        "systemctl gives no state of earlyoom, systemd-oomd, nohang, dgx-anti-oom:"
    )
    assert found.fix.startswith("on spark2: pgrep ")
