"""What is wrong with ports, addresses, MTUs and rates is found, and named with both ends."""

from dataclasses import replace
from typing import Any

import pytest

import bundles
from bundles import healthy, site
from doctor_look import Texts, edit, edit_links, found, look, one

TRIANGLE, SWITCH, RING = site("triangle"), site("switch"), site("ring")


def test_an_hca_of_another_name() -> None:
    """The other system's names: the list was copied from a DGX OS node to a NixOS one (P15)."""
    mixed = healthy(TRIANGLE) | {"spark2": bundles.node(site("triangle", nixos=True), 1)}
    report = look(TRIANGLE, mixed)
    says = found(report, "D230", "fail")
    assert len(says) == 2
    assert "spark2: There is no HCA rocep1s0f0; this node has mlx5_0" in says[0]
    assert "10.0.22.2/24 is on mlx5_0" in says[0]
    fix = next(f.fix for f in report.findings if f.code == "D230" and f.level == "fail")
    assert fix.endswith("mlx5_0")


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "5: ACTIVE_DEFER", ""])
def test_a_port_that_is_not_active(state: str) -> None:
    old = "rocep1s0f1/ports/1/state\t4: ACTIVE"
    texts = edit(healthy(TRIANGLE), "spark2", "infiniband", old, old[:-9] + state)
    assert "spark2: rocep1s0f1 is " in one(look(TRIANGLE, texts), "D231")


def test_a_port_without_an_address() -> None:
    """After a reboot the address is gone, the link is up (P28)."""
    texts = edit(healthy(RING), "spark3", "ip-addr", '"10.0.52.10"', '"169.254.9.9"')
    report = look(RING, texts)
    assert "rocep1s0f0 (enp1s0f0np0) has no IPv4 address; 10.0.52.10/24" in one(report, "D232")
    fix = next(f.fix for f in report.findings if f.code == "D232" and f.level == "fail")
    assert fix.startswith("sudo ip addr add 10.0.52.10/24 dev enp1s0f0np0")
    assert "No cable joins spark3 and spark4" in one(report, "D237")


def test_another_address_than_planned() -> None:
    texts = edit(healthy(RING), "spark3", "ip-addr", '"10.0.52.10"', '"10.0.77.10"')
    report = look(RING, texts)
    assert "has 10.0.77.10/24, not 10.0.52.10/24" in one(report, "D232")
    says = one(report, "D237")
    assert "spark3 rocep1s0f0 is in 10.0.77.0/24, planned 10.0.52.0/24" in says
    assert "spark4 rocep1s0f1 is in 10.0.52.0/24, planned 10.0.52.0/24" in says


def test_a_second_address_on_a_port() -> None:
    def add(row: dict[str, Any]) -> None:
        if row["ifname"] == "enp1s0f0np0" and row["addr_info"]:
            row["addr_info"].append({"family": "inet", "local": "10.9.9.9", "prefixlen": 24})

    report = look(TRIANGLE, edit_links(healthy(TRIANGLE), "spark1", add))
    assert "10.9.9.9/24: NCCL may take the wrong one" in one(report, "D232", "warn")


def test_no_gid_of_the_address() -> None:
    texts = edit(healthy(TRIANGLE), "spark1", "infiniband", "ffff:0a00:1601", "ffff:0a00:16fe")
    says = one(look(TRIANGLE, texts), "D233")
    assert (
        "rocep1s0f0 has no RoCE v2 GID for 10.0.22.1; its RoCE v2 addresses are 10.0.22.254" in says
    )
    only_v1 = healthy(TRIANGLE)
    text = only_v1["spark1"]["infiniband"]
    only_v1["spark1"]["infiniband"] = text.replace("types/3\tRoCE v2", "types/3\tIB/RoCE v1")
    assert len(found(look(TRIANGLE, only_v1), "D233", "fail")) == 2


@pytest.mark.parametrize(
    ("pin", "level"), [(3, "ok"), (2, "fail"), (1, "fail"), (6, "fail"), (99, "fail")]
)
def test_a_pinned_gid_index(pin: int, level: str) -> None:
    """3 is RoCE v2 with IPv4, 2 is v1, 1 link-local, 6 a hole, 99 outside the table (P14)."""
    nodes = tuple(replace(node, gid_index=pin) for node in TRIANGLE.fleet.nodes)
    pinned = replace(TRIANGLE, fleet=replace(TRIANGLE.fleet, nodes=nodes))
    assert len(found(look(pinned, healthy(TRIANGLE)), "D233", level)) == 6


def test_gid_indexes_that_differ_are_told() -> None:
    texts = healthy(TRIANGLE)
    text = texts["spark1"]["infiniband"]
    for old, new in (("gids/3", "gids/8"), ("types/3", "types/8"), ("ndevs/3", "ndevs/8")):
        text = text.replace(f"rocep1s0f1/ports/1/{old}", f"rocep1s0f1/ports/1/{new}")
        text = text.replace(
            f"rocep1s0f1/ports/1/gid_attrs/{old}", f"rocep1s0f1/ports/1/gid_attrs/{new}"
        )
    texts["spark1"]["infiniband"] = text
    assert "[3, 8]" in one(look(TRIANGLE, texts), "D233", "info")


def set_mtu(texts: Texts, node: str, device: str, mtu: int) -> Texts:
    def change(row: dict[str, Any]) -> None:
        row["mtu"] = mtu if row["ifname"] == device else row["mtu"]

    return edit_links(texts, node, change)


def test_mtus_that_differ_fail() -> None:
    report = look(RING, set_mtu(healthy(RING), "spark2", "enp1s0f1np1", 1500))
    says = one(report, "D234")
    assert "spark1 enp1s0f0np0 9000, spark2 enp1s0f1np1 1500" in says
    fix = next(f.fix for f in report.findings if f.code == "D234" and f.level == "fail")
    assert fix == "sudo ip link set dev enp1s0f1np1 mtu 9000 on spark2"


def test_small_mtus_at_both_ends_are_a_warning() -> None:
    texts = set_mtu(healthy(RING), "spark2", "enp1s0f1np1", 1500)
    report = look(RING, set_mtu(texts, "spark1", "enp1s0f0np0", 1500))
    assert "is 1500" in one(report, "D234", "warn")
    assert not found(report, "D234", "fail")


def test_the_rdma_mtu_where_the_tree_has_it() -> None:
    texts = healthy(TRIANGLE)
    old = "rocep1s0f0/ports/1/active_mtu\t4096 (5)"
    edit(texts, "spark1", "infiniband", old, old[:-8] + "1024 (3)")
    assert "RDMA 1024, 4096" in one(look(TRIANGLE, texts), "D234")
    edit(texts, "spark2", "infiniband", old, old[:-8] + "3")
    assert "RDMA MTU of 10.0.22.0/24 is 1024" in one(look(TRIANGLE, texts), "D234", "warn")


def test_rates() -> None:
    old = "rocep1s0f0/ports/1/rate\t200"
    texts = edit(healthy(TRIANGLE), "spark1", "infiniband", old, old[:-3] + "100")
    assert "spark1 rocep1s0f0 100 Gb/s, spark2 rocep1s0f0 200" in one(
        look(TRIANGLE, texts), "D235", "warn"
    )
    slow = edit(healthy(TRIANGLE), "spark1", "infiniband", old, old[:-3] + "40")
    edit(slow, "spark2", "infiniband", old, old[:-3] + "40")
    assert "40 Gb/s" in one(look(TRIANGLE, slow), "D235", "warn")
