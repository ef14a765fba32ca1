"""The networks of one node: management interface, subnets, PCIe lanes, measured bandwidth, NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv4Network

from dsv41.doctor.check import Case, FleetCheck, NodeCheck, NoEvidence, Verdict
from dsv41.doctor.fabric import netdev_of
from dsv41.doctor.ports import Interface, interfaces, ports
from dsv41.doctor.readings import pairs

# proxies with fake DNS answer from here (user report P30)
FAKE_DNS = IPv4Network("198.18.0.0/15")
SPARK_LANES = (4, 32.0)  # each function of a Spark's card is on PCIe Gen5 x4
_FUNCTION = re.compile(r"^([0-9a-fA-F]{0,8}:?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) (.+)$")
_LINK = re.compile(r"Lnk(Cap|Sta):.{0,40}?Speed (\d{1,3}(?:\.\d)?)GT/s.{0,40}?Width x(\d{1,2})")


def socket_interface(case: Case) -> Iterator[Verdict]:
    """The interface of the rendezvous is there, up, and holds the node's management address."""
    name, found = case.node.socket_ifname, interfaces(case)
    device = found.get(name)
    wanted = _literal(case.node.address)
    holder = next((i.name for i in found.values() if wanted in _hosts(i)), None)
    edit = f'socket_ifname = "{holder or "IFACE"}" for {case.name} in the fleet file'
    if device is None:
        others = ", ".join(sorted(i.name for i in found.values() if _hosts(i) - {_LOOPBACK}))
        says = f"There is no interface {name}; those with an address are {others or 'none'}."
        yield Verdict(level="fail", says=says, fix=edit)
    elif not device.up:
        says = f"{name} is {device.state or 'without a state'}, not UP."
        yield Verdict(level="fail", says=says, fix=f"sudo ip link set dev {name} up")
    elif wanted is None and not _hosts(device):
        yield Verdict(level="fail", says=f"{name} has no IPv4 address.", fix=edit)
    elif wanted is not None and wanted not in _hosts(device):
        there = f"it is on {holder}" if holder else "no interface has it"
        says = f"{name} does not hold {case.node.address}; {there}."
        yield Verdict(level="fail", says=says, fix=edit)
    else:
        yield Verdict(level="ok", says=f"{name} is up and holds {case.node.address}.")


_LOOPBACK = IPv4Address("127.0.0.1")


def _literal(address: str) -> IPv4Address | None:
    """The address, or None for a host name, which only the node's resolver knows."""
    try:
        return IPv4Address(address)
    except AddressValueError:
        return None


def _hosts(interface: Interface) -> set[IPv4Address]:
    return {address.ip for address in interface.addresses}


def wireless(case: Case) -> Iterator[Verdict]:
    """The management address on Wi-Fi: its driver has taken whole nodes off the network."""
    wanted = _literal(case.node.address)
    holders = [i.name for i in interfaces(case).values() if wanted in _hosts(i)]
    names = {case.node.socket_ifname, *holders}
    radio = sorted(name for name in names if name.startswith("wl"))
    if radio:
        says = f"{case.name} is reached over Wi-Fi ({', '.join(radio)})."
        yield Verdict(level="warn", says=says, fix="use the wired port (enP7s7 on a Spark)")
    else:
        yield Verdict(level="ok", says="The management network is wired.")


def subnets(case: Case) -> Iterator[Verdict]:
    """Fabric subnets overlap nothing: not each other, not the management, not a bridge."""
    known, found = interfaces(case), ports(case)
    fabric = {
        device.name: device
        for link in case.node.links
        if (port := found.get(link.hca)) and (device := netdev_of(port, link, known))
    }
    problems = tuple(_overlaps(fabric, known))
    yield from problems
    if not problems:
        yield Verdict(level="ok", says="The subnets of the fabric overlap nothing.")


def _overlaps(fabric: dict[str, Interface], known: Mapping[str, Interface]) -> Iterator[Verdict]:
    for name, device in fabric.items():
        for network in _networks(device):
            if network.overlaps(FAKE_DNS):
                yield _overlap("warn", f"{network} of {name}", f"{FAKE_DNS}, which proxies use")
            for other in {i.name: i for i in known.values() if i.name != name}.values():
                if other.name in fabric and other.name < name:
                    continue  # seen from the other side
                for theirs in filter(network.overlaps, _networks(other)):
                    level = "fail" if other.name in fabric else "warn"
                    yield _overlap(level, f"{network} of {name}", f"{theirs} of {other.name}")


def _networks(interface: Interface) -> list[IPv4Network]:
    return [address.network for address in interface.addresses if not address.is_link_local]


def _overlap(level: str, one: str, other: str) -> Verdict:
    return Verdict(
        level=level,
        says=f"{one} overlaps {other}: packets and NCCL can take the wrong port.",
        fix="give every cable a subnet of its own, such as 10.0.22.0/24, in the fleet file and "
        "on the node",
    )


def pcie(case: Case) -> Iterator[Verdict]:
    """Lanes and speed of the ConnectX functions against what they can do."""
    found = dict(_functions(case.text("lspci")))
    if not found:
        raise NoEvidence("lspci has no ConnectX with LnkSta (it needs sudo)")
    for name, (can, has) in sorted(found.items()):
        if has[0] < can[0] or has[1] < can[1]:
            says = f"{name} runs at x{has[0]} {has[1]:g} GT/s, it can x{can[0]} {can[1]:g} GT/s."
            fix = "sudo poweroff, adapter off for 60 s; if it stays, plan with half of that port"
            yield Verdict(level="warn", says=says, fix=fix)
        else:
            yield Verdict(level="ok", says=f"{name} runs at x{has[0]} {has[1]:g} GT/s.")


Lanes = tuple[int, float]  # lanes, GT/s


def _functions(text: str) -> Iterator[tuple[str, tuple[Lanes, Lanes]]]:
    """Each ConnectX function with what its link can and has; without LnkCap a Spark's."""
    name, links = "", dict[str, Lanes]()
    for line in [*text.splitlines(), "00:00.0 end"]:
        if head := _FUNCTION.match(line):
            if name and "Sta" in links:
                yield name, (links.get("Cap", SPARK_LANES), links["Sta"])
            card = "ConnectX" in head[2] or "Mellanox" in head[2]
            name, links = head[1] if card else "", {}
        elif name and (found := _LINK.search(line)):
            links.setdefault(found[1], (int(found[3]), float(found[2])))


def bandwidth(case: Case) -> Iterator[Verdict]:
    """RDMA bandwidth in Gb/s (`ib_write_bw`, 8 queue pairs), one `hca<TAB>number` a line."""
    found = pairs(case, "bandwidth")
    for hca, text in found.items():
        number = re.match(r"\d{1,5}(?:\.\d{1,4})?", text)
        if number is None:
            continue
        gbits = float(number[0])
        yield _speed(hca, gbits)


def _speed(hca: str, gbits: float) -> Verdict:
    if gbits >= 85:
        return Verdict(level="ok", says=f"{hca} moves {gbits:g} Gb/s.")
    if 8 <= gbits < 25:
        return Verdict(
            level="fail",
            says=f"{hca} moves {gbits:g} Gb/s: the card came up degraded although every link "
            "check is "
            "green.",
            fix="sudo poweroff and take the power adapter off for 60 s; a reboot is not enough",
        )
    level = "warn" if gbits >= 25 else "fail"
    says = f"{hca} moves {gbits:g} Gb/s; a healthy port moves 85 or more."
    return Verdict(level=level, says=says, fix="check MTU (D234) and PCIe lanes (D242) first")


def ring_library(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """The mounted NCCL has the ring-only switch and is the same file on every node."""
    if not cases[0].expect.needs_ring:
        return
    found = {case.rank: (case, _library(case)) for case in cases}
    for rank, (case, (digest, marks)) in found.items():
        if not marks:
            yield Verdict(
                level="fail",
                says=f"{case.node.nccl_library or 'the NCCL library'} on {case.name} has no "
                "SWITCHLESS_RING_ONLY: it is the stock library.",
                fix="install the patched library of the profile on this node",
                rank=rank,
            )
        else:
            yield Verdict(level="ok", says=f"{case.name} has {digest[:12]}.", rank=rank)
    if len({digest for _, (digest, _) in found.values()}) > 1:
        words = ", ".join(f"{case.name} {digest[:12]}" for case, (digest, _) in found.values())
        yield Verdict(
            level="fail",
            says=f"The nodes have different NCCL libraries: {words}.",
            fix="copy the head's library to every node",
        )


def _library(case: Case) -> tuple[str, int]:
    words = case.text("nccl-library").split()
    if len(words) < 2 or not words[1].isdigit():
        raise NoEvidence("nccl-library has not hash and count")
    return words[0], int(words[1][:9])


CHECKS = (
    NodeCheck(
        code="D240",
        name="interface of the rendezvous",
        probes=("ip-addr", "ip-link"),
        judge=socket_interface,
        reports=("P16", "P26"),
        required=True,
    ),
    NodeCheck(
        code="D236",
        name="subnets of the fabric",
        probes=("infiniband", "ip-addr"),
        judge=subnets,
        reports=("P25", "P26", "P30"),
    ),
    NodeCheck(
        code="D241",
        name="Wi-Fi as the management network",
        probes=("ip-addr",),
        judge=wireless,
        reports=("P31",),
    ),
    NodeCheck(
        code="D242",
        name="PCIe lanes of the network card",
        probes=("lspci",),
        judge=pcie,
        reports=("P19",),
    ),
    NodeCheck(
        code="D243",
        name="measured bandwidth",
        probes=("bandwidth",),
        judge=bandwidth,
        reports=("P18",),
    ),
    FleetCheck(
        code="D244",
        name="the patched NCCL",
        probes=("nccl-library",),
        judge=ring_library,
        reports=("P22",),
        partial=True,
    ),
)
