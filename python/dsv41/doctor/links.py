"""Both ends of every link: MTU and rate must be equal (reports P17, P29)."""

from __future__ import annotations

from collections.abc import Iterator

from dsv41.doctor.cabling import Cable, End, find_cables
from dsv41.doctor.check import Case, FleetCheck, NodeCheck, NoEvidence, Verdict
from dsv41.doctor.ports import Port, cage, interfaces, ports

# a ConnectX-7 comes up with 1500, which makes RoCE 1024: about 40 % of prefill was lost to that
GOOD_MTU, GOOD_ROCE_MTU = 9000, 4096
LEAST_GBITS = 100.0


def _planned(cases: tuple[Case, ...]) -> list[Cable]:
    """The cables between the ports of the fleet file, by the subnets found."""
    found = [
        Cable(subnet=cable.subnet, ends=tuple(end for end in cable.ends if end.planned))
        for cable in find_cables(cases)
    ]
    found = [cable for cable in found if len(cable.ends) > 1]
    if not found:
        raise NoEvidence("no two ports of the fleet file share a subnet")
    return found


def mtus(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """The MTU of the interfaces and of the RDMA ports, at both ends."""
    by_rank = {case.rank: case for case in cases}
    for cable in _planned(cases):
        if any(end.mtu is None for end in cable.ends):
            raise NoEvidence(f"ip-link has no MTU of {cable.subnet}")
        roce = [_roce(by_rank[end.rank], end.hca) for end in cable.ends]
        yield from _mtu(cable, roce)


def _roce(case: Case, hca: str) -> int | None:
    return ports(case)[hca].active_mtu


def _mtu(cable: Cable, roce: list[int | None]) -> Iterator[Verdict]:
    words = ", ".join(f"{end.node} {end.netdev} {end.mtu}" for end in cable.ends)
    low = [end for end in cable.ends if (end.mtu or 0) < GOOD_MTU]
    known = [mtu for mtu in roce if mtu is not None]
    fix = " and ".join(f"sudo ip link set dev {e.netdev} mtu {GOOD_MTU} on {e.node}" for e in low)
    if len({end.mtu for end in cable.ends}) > 1 or len(set(known)) > 1:
        active = f" (RDMA {', '.join(map(str, known))})" if len(set(known)) > 1 else ""
        says = f"The MTUs of {cable.subnet} differ: {words}{active}; large messages will stall."
        yield Verdict(level="fail", says=says, fix=fix or _again(cable))
    elif low:
        says = f"The MTU of {cable.subnet} is {cable.ends[0].mtu}: {words}; RoCE needs {GOOD_MTU}."
        yield Verdict(level="warn", says=says, fix=fix)
    elif known and min(known) < GOOD_ROCE_MTU:
        says = f"The RDMA MTU of {cable.subnet} is {min(known)}, not {GOOD_ROCE_MTU}."
        yield Verdict(level="warn", says=says, fix=_again(cable))
    else:
        yield Verdict(level="ok", says=f"The MTU of {cable.subnet} is {cable.ends[0].mtu}.")


def _again(cable: Cable) -> str:
    """A port takes its RDMA MTU from the interface when it comes up."""
    names = [f"{end.netdev} on {end.node}" for end in cable.ends]
    return f"sudo ip link set dev IFACE down, mtu {GOOD_MTU}, up: {', '.join(names)}"


def rates(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """The rate that both ends agreed on."""
    for cable in _planned(cases):
        found = [(end, end.rate) for end in cable.ends]
        known = [rate for _, rate in found if rate is not None]
        if not known:
            raise NoEvidence("infiniband has no rate")
        words = ", ".join(_rate(end) for end in cable.ends)
        if len(set(known)) > 1 or min(known) < LEAST_GBITS:
            yield Verdict(
                level="warn",
                says=f"{cable.subnet} runs at {words}; a good cable has the same at both ends, "
                f"{LEAST_GBITS:g} Gb/s or more.",
                fix="plug both ends in again; then try another cable",
            )
        else:
            yield Verdict(level="ok", says=f"{cable.subnet} runs at {min(known):g} Gb/s.")


def _rate(end: End) -> str:
    return f"{end.node} {end.hca} {'unknown' if end.rate is None else f'{end.rate:g} Gb/s'}"


def twins(case: Case) -> Iterator[Verdict]:
    """Behind a switch both PCIe functions of a cage carry traffic, so both have to be listed."""
    if case.fleet.topology != "switch":
        return
    found = ports(case)
    known = interfaces(case) if case.has("ip-link") or case.has("ip-addr") else {}
    places = {hca: cage(_netdev(port)) for hca, port in found.items() if port.active}
    listed = {link.hca for link in case.node.links}
    for hca in sorted(listed & places.keys()):
        place = places[hca]
        twin = [
            other
            for other, there in places.items()
            if place and there and other != hca and there[1] == place[1] and there[0] != place[0]
        ]
        if twin and not listed & set(twin):
            device = known.get(_netdev(found[twin[0]]))
            address = f"; {device.name} needs an address" if device else ""
            yield Verdict(
                level="warn",
                says=f"{hca} is listed, its twin {twin[0]} in the same cage is not: half the "
                "bandwidth.",
                fix=f'hca = ["{hca}", "{twin[0]}"] for {case.name} in the fleet file{address}',
            )
        else:
            yield Verdict(level="ok", says=f"{hca} has no unlisted twin.")


def _netdev(port: Port) -> str:
    return port.netdev or ""


CHECKS = (
    FleetCheck(
        code="D234",
        name="MTU of both ends",
        probes=("infiniband", "ip-addr", "ip-link"),
        judge=mtus,
        reports=("P17",),
        required=True,
        partial=True,
    ),
    FleetCheck(
        code="D235",
        name="rate of both ends",
        probes=("infiniband", "ip-addr"),
        judge=rates,
        partial=True,
    ),
    NodeCheck(
        code="D239",
        name="twin functions of a cage",
        probes=("infiniband",),
        judge=twins,
        reports=("P29",),
    ),
)
