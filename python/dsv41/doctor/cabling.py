"""The cabling that was found: which ports share a subnet, against which ports should.

A cable in the wrong port leaves every port ACTIVE with a valid GID, so no look at one node shows it
(user report P27). Addresses pair the ports as configured; the hardware addresses that answer on a
port (probe `neighbors`) pair them as they really are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dsv41.doctor.check import Case, FleetCheck, NoEvidence, Verdict
from dsv41.doctor.fabric import netdev_of
from dsv41.doctor.ports import Interface, Port, interfaces, ports, rows
from dsv41.fleet import Fleet, Link


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """One port on a subnet, as found. `planned`: the fleet file puts it there."""

    rank: int
    node: str
    hca: str
    netdev: str
    address: str
    state: str
    mtu: int | None
    rate: float | None
    planned: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """A subnet of the fabric and the ports in it; two ends are a cable, more are a switch."""

    subnet: str
    ends: tuple[End, ...]

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that it joins."""
        return frozenset(end.rank for end in self.ends)

    def document(self) -> dict[str, Any]:
        """The cable as a JSON object, for a drawing."""
        return asdict(self)

    def __str__(self) -> str:
        ends = [f"{end.node} {end.hca} ({end.state or 'no state'})" for end in self.ends]
        return f"{self.subnet}: {' ── '.join(ends)}"


def find_cables(cases: tuple[Case, ...]) -> tuple[Cable, ...]:
    """The subnets of the RDMA ports of the nodes, as far as their captures can be read."""
    found: dict[str, list[End]] = {}
    for case in cases:
        for end in _ends(case):
            subnet = str(Link(hca=end.hca, address=end.address).network)
            found.setdefault(subnet, []).append(end)
    return tuple(Cable(subnet=subnet, ends=tuple(ends)) for subnet, ends in sorted(found.items()))


def _ends(case: Case) -> Iterator[End]:
    """The ports of a node that have an IPv4 address."""
    try:
        known, found = interfaces(case), ports(case)
    except NoEvidence:
        return
    planned = {link.hca: link for link in case.node.links}
    for hca, port in sorted(found.items()):
        link = planned.get(hca)
        device = netdev_of(port, link, known) if link else known.get(port.netdev or "")
        for address in device.addresses if device else ():
            if device and not address.is_link_local:
                yield _end(case, port, device, address=str(address), planned=link)


def _end(case: Case, port: Port, device: Interface, *, address: str, planned: Link | None) -> End:
    return End(
        rank=case.rank,
        node=case.name,
        hca=port.hca,
        netdev=device.name,
        address=address,
        state=port.state,
        mtu=device.mtu,
        rate=port.gbits,
        planned=planned is not None,
    )


def edges(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """Whether the cables found join the nodes that the topology wants, in rank order."""
    fleet = cases[0].fleet
    found = [cable for cable in find_cables(cases) if any(end.planned for end in cable.ends)]
    if not found:
        raise NoEvidence("no port of the fleet file has an address")
    problems = tuple(_switch(fleet, found) if fleet.topology == "switch" else _pairs(fleet, found))
    yield from problems
    if not problems:
        yield Verdict(
            level="ok", says=f"The cabling is the planned {fleet.topology}: {_walk(fleet)}."
        )


def _walk(fleet: Fleet) -> str:
    names = [node.name for node in fleet.nodes]
    return ", ".join(names) if fleet.topology == "switch" else " - ".join([*names, names[0]])


def _switch(fleet: Fleet, found: list[Cable]) -> Iterator[Verdict]:
    """Every planned subnet of a switch has every node in it."""
    there = {cable.subnet: cable.ranks for cable in found}
    planned = {str(link.network) for node in fleet.nodes for link in node.links}
    for subnet in sorted(planned):
        for rank in sorted(set(range(len(fleet.nodes))) - there.get(subnet, frozenset())):
            name = fleet.nodes[rank].name
            yield Verdict(
                level="fail",
                says=f"{name} has no port in {subnet}.",
                fix=f"give {name} its address in {subnet}, and plug its port into the switch",
                rank=rank,
            )


def _pairs(fleet: Fleet, found: list[Cable]) -> Iterator[Verdict]:
    """Each pair of neighbors has a cable, and no other pair has one."""
    size = len(fleet.nodes)
    wanted = {frozenset((rank, (rank + 1) % size)) for rank in range(size)}
    joined = {cable.ranks: cable for cable in found if len(cable.ranks) == 2}
    if order := _other_order(fleet, wanted, set(joined)):
        yield order
        return
    for pair in sorted(wanted - joined.keys(), key=sorted):
        yield Verdict(
            level="fail",
            says=f"No cable joins {_names(fleet, pair)}: {_planned(fleet, pair, found)}.",
            fix="check the cable and the addresses of the ports that should join "
            f"{_names(fleet, pair)}",
        )
    for pair in sorted(joined.keys() - wanted, key=sorted):
        yield Verdict(
            level="fail",
            says=f"A cable joins {_names(fleet, pair)}, which are no neighbors ({joined[pair]}).",
            fix="move the cable, or order [[nodes]] in the fleet file by the cables",
        )
    for cable in found:
        if len(cable.ranks) > 2:
            yield Verdict(
                level="fail",
                says=f"More than two nodes share {cable.subnet} ({cable}); it is one cable.",
                fix="give every cable a subnet of its own",
            )


def _names(fleet: Fleet, pair: frozenset[int]) -> str:
    return " and ".join(fleet.nodes[rank].name for rank in sorted(pair))


def _planned(fleet: Fleet, pair: frozenset[int], found: list[Cable]) -> str:
    """Where the ports that should be on one cable really are."""
    where = {(end.rank, end.hca): cable.subnet for cable in found for end in cable.ends}
    ends = [
        (rank, link)
        for rank in sorted(pair)
        for link in fleet.nodes[rank].links
        if any(link.network == o.network for r in pair - {rank} for o in fleet.nodes[r].links)
    ]
    words = [
        f"{fleet.nodes[rank].name} {link.hca} is in {where.get((rank, link.hca), 'no subnet')}, "
        f"planned {link.network}"
        for rank, link in ends
    ]
    return "; ".join(words)


def _other_order(
    fleet: Fleet, wanted: set[frozenset[int]], joined: set[frozenset[int]]
) -> Verdict | None:
    """The finding that the cables form a whole ring, but in another order than the ranks."""
    if joined == wanted or len(joined) != len(fleet.nodes):
        return None
    walk, pairs = [0], set(joined)
    while step := next((pair for pair in sorted(pairs, key=sorted) if walk[-1] in pair), None):
        pairs.discard(step)
        walk += step - {walk[-1]}
    if len(walk) != len(fleet.nodes) + 1 or len(set(walk)) != len(fleet.nodes) or walk[-1] != 0:
        return None
    names = [fleet.nodes[rank].name for rank in walk]
    return Verdict(
        level="fail",
        says=f"The cables form the ring {' - '.join(names)}, the ranks are {_walk(fleet)}.",
        fix=f"order [[nodes]] in the fleet file as {', '.join(names[:-1])}, or move the cables",
    )


def neighbors(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """Who really answers on each port: the hardware address must be the planned peer's."""
    owners = _hardware(cases)
    for case in cases:
        table = rows(case.text("neighbors"))
        known, found = interfaces(case), ports(case)
        for link in case.node.links:
            port = found.get(link.hca)
            device = netdev_of(port, link, known) if port else None
            for peer, address in _peers(case, link):
                mac = _answer(table, address, device.name if device else "")
                yield _neighbor(case, link, peer=peer, mac=mac, owners=owners)


def _hardware(cases: tuple[Case, ...]) -> dict[str, tuple[str, str]]:
    """Hardware address -> node and interface."""
    return {
        interface.mac: (case.name, interface.name)
        for case in cases
        for interface in interfaces(case).values()
        if interface.mac.strip("0:")
    }


def _peers(case: Case, link: Link) -> Iterator[tuple[str, str]]:
    """The nodes that should be at the other end of a link, with their addresses on it."""
    for rank, node in enumerate(case.fleet.nodes):
        for other in node.links:
            if rank != case.rank and other.network == link.network:
                yield node.name, other.address.split("/")[0]


def _answer(table: list[dict[str, Any]], address: str, device: str) -> str | None:
    """The hardware address that answered for an address; "" for no answer, None when unasked."""
    for row in table:
        if row.get("dst") == address and row.get("dev") == device:
            return str(row.get("lladdr", "")).lower()
    return None


def _neighbor(
    case: Case, link: Link, *, peer: str, mac: str | None, owners: Mapping[str, tuple[str, str]]
) -> Verdict:
    if mac is None:
        return Verdict(level="info", says=f"{link.hca}: {peer} was not asked.", rank=case.rank)
    if not mac:
        return Verdict(
            level="fail",
            says=f"{peer} does not answer on {link.hca}: the cable is in another port, or down.",
            fix=f"follow the cable of {link.hca} on {case.name}; it must end at {peer}",
            rank=case.rank,
        )
    owner, port = owners.get(mac, ("a machine outside the fleet", mac))
    if owner != peer:
        return Verdict(
            level="fail",
            says=f"{link.hca} is cabled to {owner} ({port}), not to {peer}.",
            fix=f"move the cable of {link.hca} on {case.name} to {peer}",
            rank=case.rank,
        )
    return Verdict(level="ok", says=f"{link.hca} is cabled to {peer} ({port}).", rank=case.rank)


CHECKS = (
    FleetCheck(
        code="D237",
        name="cabling",
        probes=("infiniband", "ip-addr"),
        judge=edges,
        reports=("P27", "P25"),
        required=True,
    ),
    FleetCheck(
        code="D238",
        name="who answers on each cable",
        probes=("neighbors", "ip-link", "ip-addr", "infiniband"),
        judge=neighbors,
        reports=("P27",),
    ),
)
