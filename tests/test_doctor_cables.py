"""What is wrong with cables, subnets, interfaces, PCIe lanes and NCCL is found."""

import json
from dataclasses import replace
from typing import Any

import pytest

import bundles
from bundles import healthy, site
from doctor_look import Texts, edit, edit_links, found, look, one

TRIANGLE, SWITCH, RING = site("triangle"), site("switch"), site("ring")


def swapped(place: bundles.Site, one_rank: int, other: int) -> Texts:
    """Two nodes have each other's addresses, GIDs and neighbors."""
    texts = healthy(place)
    names = [f"spark{rank + 1}" for rank in (one_rank, other)]
    for probe in ("ip-addr", "infiniband"):
        first, second = (texts[name][probe] for name in names)
        texts[names[0]][probe], texts[names[1]][probe] = second, first
    return texts


def test_a_ring_in_another_order() -> None:
    report = look(RING, swapped(RING, 1, 2))
    says = one(report, "D237")
    assert "form the ring spark1 - spark3 - spark2 - spark4 - spark1" in says
    fix = next(f.fix for f in report.findings if f.code == "D237" and f.level == "fail")
    assert "spark1, spark3, spark2, spark4" in fix


def test_opposite_nodes_on_one_cable() -> None:
    """spark1's first cable ends at spark3 instead of spark2, by its address."""
    texts = edit(healthy(RING), "spark3", "ip-addr", '"10.0.51.11"', '"10.0.50.11"')
    edit(texts, "spark2", "ip-addr", '"10.0.50.11"', '"10.0.51.11"')
    says = found(look(RING, texts), "D237", "fail")
    assert any("No cable joins spark1 and spark2" in text for text in says)
    assert any("joins spark1 and spark3, which are no neighbors" in text for text in says)


def test_three_nodes_in_one_subnet() -> None:
    texts = edit(healthy(RING), "spark3", "ip-addr", '"10.0.52.10"', '"10.0.50.30"')
    says = found(look(RING, texts), "D237", "fail")
    assert any("More than two nodes share 10.0.50.0/24" in text for text in says)


def test_a_node_that_misses_a_subnet_of_the_switch() -> None:
    texts = edit(healthy(SWITCH), "spark4", "ip-addr", '"10.0.41.4"', '"10.0.99.4"')
    assert one(look(SWITCH, texts), "D237").startswith("spark4: spark4 has no port in 10.0.41.0/24")


def test_the_cables_are_data_for_a_drawing() -> None:
    old = "rocep1s0f0/ports/1/state\t4: ACTIVE"
    texts = edit(healthy(TRIANGLE), "spark2", "infiniband", old, old[:-9] + "1: DOWN")
    cables = {cable.subnet: cable for cable in look(TRIANGLE, texts).cables}
    assert cables.keys() == {"10.0.22.0/24", "10.0.23.0/24", "10.0.33.0/24"}
    ends = cables["10.0.33.0/24"].ends
    assert [(e.rank, e.hca, e.mtu) for e in ends] == [
        (1, "rocep1s0f1", 9000),
        (2, "rocep1s0f1", 9000),
    ]
    assert str(cables["10.0.22.0/24"]) == (
        "10.0.22.0/24: spark1 rocep1s0f0 (4: ACTIVE) ── spark2 rocep1s0f0 (1: DOWN)"
    )
    assert (
        json.loads(json.dumps(cables["10.0.22.0/24"].document()))["ends"][1]["state"] == "1: DOWN"
    )


def test_a_cable_in_the_wrong_port_is_seen_by_who_answers() -> None:
    """All ports up, all addresses right: only the hardware address tells (P27)."""
    texts = healthy(RING)
    here = json.loads(texts["spark1"]["neighbors"])
    here[0]["lladdr"], here[1]["lladdr"] = bundles.mac(3, 0), ""
    texts["spark1"]["neighbors"] = json.dumps(here)
    says = found(look(RING, texts), "D238", "fail")
    assert says[0] == "spark1: rocep1s0f0 is cabled to spark4 (enp1s0f0np0), not to spark2."
    assert says[1].startswith("spark1: spark4 does not answer on rocep1s0f1")
    here[0]["lladdr"] = "aa:aa:aa:aa:aa:aa"
    texts["spark1"]["neighbors"] = json.dumps(here[:1])
    report = look(RING, texts)
    assert "a machine outside the fleet" in one(report, "D238")
    assert "spark4 was not asked" in one(report, "D238", "info")


@pytest.mark.parametrize("nixos", [False, True])
def test_an_unlisted_twin_behind_a_switch(nixos: bool) -> None:
    place = site("switch", nixos=nixos)
    nodes = tuple(replace(n, hca=n.hca[:1], fabric=n.fabric[:1]) for n in place.fleet.nodes)
    single = replace(place, fleet=replace(place.fleet, nodes=nodes))
    says = found(look(single, healthy(single)), "D239", "warn")
    assert len(says) == 4
    twin = "mlx5_2" if nixos else "roceP2p1s0f0"
    assert f"its twin {twin} in the same cage is not" in says[0]
    assert not found(look(TRIANGLE, healthy(TRIANGLE)), "D239", "warn")


def test_subnets_that_overlap() -> None:
    def move(row: dict[str, Any]) -> None:
        for info in row["addr_info"] or []:
            if row["ifname"] == "docker0":
                info["local"] = "10.0.22.9"
            if row["ifname"] == "enp1s0f1np1" and info["family"] == "inet":
                info["local"], info["prefixlen"] = "10.0.22.77", 24

    report = look(TRIANGLE, edit_links(healthy(TRIANGLE), "spark1", move))
    assert "10.0.22.0/24 of enp1s0f0np0 overlaps 10.0.22.0/24 of enp1s0f1np1" in one(report, "D236")
    assert len(found(report, "D236", "warn")) == 2  # docker0, with each of them


def test_the_range_of_fake_dns() -> None:
    text = json.dumps(healthy(TRIANGLE)).replace("10.0.22.", "198.18.22.")
    assert "198.18.0.0/15" in found(look(TRIANGLE, json.loads(text)), "D236", "warn")[0]


def test_the_interface_of_the_rendezvous() -> None:
    missing = json.dumps(healthy(TRIANGLE)).replace("enP7s7", "eno1")
    says = found(look(TRIANGLE, json.loads(missing)), "D240", "fail")
    assert len(says) == 3
    assert "There is no interface enP7s7; those with an address are docker0, eno1" in says[0]
    texts = edit(healthy(TRIANGLE), "spark1", "ip-addr", '"10.0.0.1"', '"10.0.0.99"')
    assert "does not hold 10.0.0.1; no interface has it" in one(look(TRIANGLE, texts), "D240")

    def down(row: dict[str, Any]) -> None:
        row["operstate"] = "DOWN" if row["ifname"] == "enP7s7" else row["operstate"]

    assert "enP7s7 is DOWN" in one(
        look(TRIANGLE, edit_links(healthy(TRIANGLE), "spark2", down)), "D240"
    )


def test_a_host_name_as_address_needs_some_address() -> None:
    nodes = tuple(replace(n, address=f"{n.name}.lan") for n in TRIANGLE.fleet.nodes)
    named = replace(TRIANGLE, fleet=replace(TRIANGLE.fleet, nodes=nodes))
    assert not found(look(named, healthy(TRIANGLE)), "D240", "fail")
    texts = edit(healthy(TRIANGLE), "spark1", "ip-addr", '"10.0.0.1"', '"x"')
    assert "enP7s7 has no IPv4 address" in one(look(named, texts), "D240")


def test_wifi_as_management() -> None:
    text = json.dumps(healthy(TRIANGLE)).replace("enP7s7", "wlan0").replace("wlP9s9", "enP7s7")
    assert "over Wi-Fi (wlan0)" in found(look(TRIANGLE, json.loads(text)), "D241", "warn")[0]


def test_pcie_lanes() -> None:
    """The second endpoint of a GX10 is wired x2 (P19)."""
    texts = healthy(TRIANGLE)
    head, tail = texts["spark1"]["lspci"].split("0002:01:00.0")
    worse = tail.replace(
        "LnkSta:\tSpeed 32GT/s, Width x4", "LnkSta:\tSpeed 32GT/s, Width x2 (downgraded)", 1
    )
    texts["spark1"]["lspci"] = f"{head}0002:01:00.0{worse}"
    assert "0002:01:00.0 runs at x2 32 GT/s, it can x4 32" in one(
        look(TRIANGLE, texts), "D242", "warn"
    )
    texts["spark1"]["lspci"] = worse.replace("LnkCap", "LnkXxx").join(["0002:01:00.0", ""])
    assert "it can x4" in one(look(TRIANGLE, texts), "D242", "warn")
    texts["spark1"]["lspci"] = f"{head}0002:01:00.0{tail.replace('Speed 32GT', 'Speed 16GT')}"
    assert look(TRIANGLE, texts)
    denied = head.split("\tSubsystem")[0] + "\tCapabilities: <access denied>\n"
    texts["spark1"]["lspci"] = denied
    assert "it needs sudo" in one(look(TRIANGLE, texts), "D242", "unknown")


@pytest.mark.parametrize(
    ("gbits", "level"),
    [
        ("109.1", "ok"),
        ("85", "ok"),
        ("84.9", "warn"),
        ("25", "warn"),
        ("13.23", "fail"),
        ("3", "fail"),
    ],
)
def test_measured_bandwidth(gbits: str, level: str) -> None:
    """13 Gb/s with every link check green is a card that came up degraded (P18)."""
    texts = healthy(TRIANGLE)
    texts["spark1"]["bandwidth"] = f"rocep1s0f0\t{gbits} Gb/s\n"
    says = [s for s in found(look(TRIANGLE, texts), "D243", level) if s.startswith("spark1")]
    assert len(says) == 1
    assert ("came up degraded" in says[0]) == (gbits == "13.23")


def test_the_patched_library() -> None:
    texts = healthy(RING)
    texts["spark2"]["nccl-library"] = f"{'7b' * 32}\t0\n"
    texts["spark3"]["nccl-library"] = f"{'9c' * 32}\t2\n"
    says = found(look(RING, texts), "D244", "fail")
    assert says[0].startswith("spark2: the NCCL library on spark2 has no SWITCHLESS_RING_ONLY")
    assert says[1].startswith("None: The nodes have different NCCL libraries")
    assert not found(look(TRIANGLE, healthy(TRIANGLE)), "D244", "fail")


def test_uneven_row_reads() -> None:
    """One prefill of 16K with columns cut contiguously (P39)."""
    texts = healthy(RING)
    for rank, reads in enumerate((60_664, 70_000, 90_000, 320_066)):
        half = f"Engram layer=1 lookups=9 hit_rate=0.0% reads={reads // 2} cache=0.0GiB\n"
        texts[f"spark{rank + 1}"]["engine-log"] = half * 2
    says = one(look(RING, texts), "D265", "warn")
    assert (
        says == "spark4: Rank 3 has read 320,066 rows, another one 60,664: the others wait for it."
    )
    texts["spark4"]["engine-log"] = texts["spark3"]["engine-log"]
    assert "60,664 to 90,000" in one(look(RING, texts), "D265", "ok")
