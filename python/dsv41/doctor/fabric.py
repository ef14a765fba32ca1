"""The RDMA ports of one node: there, up, addressed, with a usable GID (reports A2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Interface, ip_interface

from dsv41.doctor.check import Case, NodeCheck, Verdict
from dsv41.doctor.ports import Interface, Port, interfaces, ports
from dsv41.fleet import Link


def netdev_of(port: Port, link: Link, found: Mapping[str, Interface]) -> Interface | None:
    """The interface of a link: the port's own, else the one that holds the planned address."""
    if port.netdev and port.netdev in found:
        return found[port.netdev]
    wanted = ip_interface(link.address)
    return next((i for i in found.values() if wanted in i.addresses), None)


def present(case: Case) -> Iterator[Verdict]:
    """Every HCA of the fleet file is there under that name."""
    found = ports(case)
    for link in case.node.links:
        if link.hca in found:
            yield Verdict(level="ok", says=f"{link.hca} is there.")
            continue
        holder = _holder(link, found)
        guess = f"; {link.address} is on {holder}" if holder else ""
        yield Verdict(
            level="fail",
            says=f"There is no HCA {link.hca}; this node has {', '.join(sorted(found))}{guess}.",
            fix=f"edit hca of {case.name} in the fleet file: {holder or ', '.join(sorted(found))}",
        )


def _holder(link: Link, found: Mapping[str, Port]) -> str | None:
    """The HCA whose GID table has the planned address."""
    wanted = ip_interface(link.address).ip
    holders = [p.hca for p in found.values() if any(g.ipv4 == wanted for g in p.gids)]
    return holders[0] if holders else None


def active(case: Case) -> Iterator[Verdict]:
    """Every HCA of the fleet file has its link up."""
    found = ports(case)
    for link in case.node.links:
        port = found.get(link.hca)
        if port is None:
            continue
        if port.active:
            yield Verdict(level="ok", says=f"{link.hca} is active.")
        else:
            yield Verdict(
                level="fail",
                says=f"{link.hca} is {port.state or 'without a state'}, not ACTIVE.",
                fix=f"plug the cable of {link.hca} in; sudo ip link set dev "
                f"{port.netdev or 'IFACE'} up",
            )


def addressed(case: Case) -> Iterator[Verdict]:
    """Every HCA's interface has exactly the planned IPv4 address."""
    found, known = ports(case), interfaces(case)
    for link in case.node.links:
        port = found.get(link.hca)
        if port is not None:
            yield _address(link, netdev_of(port, link, known))


def _address(link: Link, device: Interface | None) -> Verdict:
    if device is None:
        return Verdict(
            level="fail",
            says=f"No interface belongs to {link.hca}, and none has {link.address}.",
            fix="ip -br link; rdma link show",
        )
    there = [address for address in device.addresses if not address.is_link_local]
    wanted = ip_interface(link.address)
    add = f"sudo ip addr add {link.address} dev {device.name}"
    keep = "; keep it with netplan, or systemd.network on NixOS"
    if not there:
        says = f"{link.hca} ({device.name}) has no IPv4 address; {link.address} is planned."
        return Verdict(level="fail", says=says, fix=add + keep)
    if wanted not in there:
        says = f"{link.hca} ({device.name}) has {_words(there)}, not {link.address}."
        change = f"sudo ip addr del {there[0]} dev {device.name} && {add}{keep}"
        return Verdict(level="fail", says=says, fix=change)
    if len(there) > 1:
        says = f"{link.hca} ({device.name}) has {_words(there)}: NCCL may take the wrong one."
        other = next(address for address in there if address != wanted)
        return Verdict(level="warn", says=says, fix=f"sudo ip addr del {other} dev {device.name}")
    return Verdict(level="ok", says=f"{link.hca} ({device.name}) has {link.address}.")


def _words(addresses: list[IPv4Interface]) -> str:
    return ", ".join(map(str, addresses))


def gids(case: Case) -> Iterator[Verdict]:
    """Every HCA has a RoCE v2 GID of its planned address; a pinned index must be one on each."""
    found = ports(case)
    indexes: set[int] = set()
    for link in case.node.links:
        port = found.get(link.hca)
        if port is None:
            continue
        wanted = ip_interface(link.address).ip
        usable = [gid.index for gid in port.gids if gid.usable and gid.ipv4 == wanted]
        indexes.update(usable[:1])
        yield _gid(case, port, usable, address=str(wanted))
    if len(indexes) > 1:
        yield Verdict(
            level="info",
            says=f"The GID indexes differ between the ports ({sorted(indexes)}): never pin one.",
        )


def _gid(case: Case, port: Port, usable: list[int], *, address: str) -> Verdict:
    pin = case.node.gid_index
    if pin is not None and not any(gid.index == pin and gid.usable for gid in port.gids):
        slot = next((gid for gid in port.gids if gid.index == pin), None)
        what = f"{slot.kind or 'empty'} {slot.value}" if slot else "not in the table"
        return Verdict(
            level="fail",
            says=f"gid_index {pin} is pinned; on {port.hca} it is {what}, not RoCE v2 with IPv4.",
            fix=f"take gid_index of {case.name} out of the fleet file",
        )
    if usable:
        return Verdict(level="ok", says=f"{port.hca}: RoCE v2 GID {usable[0]} is {address}.")
    others = sorted({str(gid.ipv4) for gid in port.gids if gid.usable})
    rest = f"; its RoCE v2 addresses are {', '.join(others)}" if others else ""
    return Verdict(
        level="fail",
        says=f"{port.hca} has no RoCE v2 GID for {address}{rest}.",
        fix=f"sudo ip link set dev {port.netdev or 'IFACE'} down && "
        f"sudo ip link set dev {port.netdev or 'IFACE'} up, then set its address again",
    )


CHECKS = (
    NodeCheck(
        code="D230",
        name="names of the HCAs",
        probes=("infiniband",),
        judge=present,
        reports=("P15",),
        required=True,
    ),
    NodeCheck(
        code="D231",
        name="state of the HCAs",
        probes=("infiniband",),
        judge=active,
        reports=("P15",),
        required=True,
    ),
    NodeCheck(
        code="D232",
        name="addresses of the HCAs",
        probes=("infiniband", "ip-addr"),
        judge=addressed,
        reports=("P28",),
        required=True,
    ),
    NodeCheck(
        code="D233",
        name="GIDs of the HCAs",
        probes=("infiniband",),
        judge=gids,
        reports=("P14", "P15"),
        required=True,
    ),
)
