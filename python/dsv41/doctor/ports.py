"""RDMA ports from the sysfs tree, interfaces from `ip -j`, and which belongs to which.

Names differ: DGX OS calls the first port rocep1s0f0 (on enp1s0f0np0), NixOS mlx5_0. Each QSFP cage
has two functions, one in each PCIe domain (`enp1s0f0np0` and `enP2p1s0f0np0`): twins.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from dsv41.doctor.check import Case, NoEvidence

_PATH = re.compile(r"^([\w.-]{1,40})/(?:fw_ver|ports/(\d{1,3})/(.{1,60}))$")
_ROCE = re.compile(r"^roce((?:P\d{1,4})?p\d{1,4}s\d{1,4}f\d{1,2})$")
_FUNCTION = re.compile(r"^en(?:P(\d{1,4}))?p\d{1,4}s\d{1,4}f(\d{1,2})")
_MTUS = {"1": 256, "2": 512, "3": 1024, "4": 2048, "5": 4096}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gid:
    """One slot of a port's GID table. `kind` is empty for a hole."""

    index: int
    value: str
    kind: str
    netdev: str

    @property
    def ipv4(self) -> IPv4Address | None:
        """The IPv4 address that the GID maps, if it maps one."""
        try:
            return ipaddress.IPv6Address(self.value).ipv4_mapped
        except ValueError:
            return None

    @property
    def usable(self) -> bool:
        """RoCE v2 with an IPv4 address: what NCCL needs."""
        return "v2" in self.kind and self.ipv4 is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """The first port of an RDMA device; empty or None where the tree does not say."""

    hca: str
    state: str
    rate: str
    active_mtu: int | None
    gids: tuple[Gid, ...]

    @property
    def active(self) -> bool:
        """Whether the link is up: `4: ACTIVE`, and not `5: ACTIVE_DEFER`."""
        return re.search(r"\bACTIVE\b", self.state) is not None

    @property
    def gbits(self) -> float | None:
        """The rate in Gb/s."""
        found = re.match(r"\s*(\d{1,5}(?:\.\d{1,3})?)", self.rate)
        return float(found[1]) if found else None

    @property
    def netdev(self) -> str | None:
        """The interface of the port: as the GID table says, else as DGX OS pairs the names."""
        named = [gid.netdev for gid in self.gids if gid.netdev]
        if named:
            return max(set(named), key=named.count)
        found = _ROCE.match(self.hca)
        return f"en{found[1]}np{found[1].rpartition('f')[2]}" if found else None


def ports(case: Case) -> Mapping[str, Port]:
    """The RDMA ports of a node by device name. NoEvidence when the tree has none."""
    return _ports(case.text("infiniband"))


@lru_cache(maxsize=16)  # a tree has 3,000 lines, and a dozen checks ask for it
def _ports(text: str) -> Mapping[str, Port]:
    trees: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        path, _, value = line.partition("\t")
        found = _PATH.match(path.strip())
        if found and (found[2] or "1") == "1":
            trees.setdefault(found[1], {})[found[3] or "fw_ver"] = value.strip()
    if not trees:
        raise NoEvidence("infiniband has no port")
    return {hca: _port(hca, tree) for hca, tree in trees.items()}


def _port(hca: str, tree: dict[str, str]) -> Port:
    return Port(
        hca=hca,
        state=tree.get("state", ""),
        rate=tree.get("rate", ""),
        active_mtu=_mtu(tree.get("active_mtu", "")),
        gids=tuple(
            Gid(
                index=int(name[5:]),
                value=value,
                kind=tree.get(f"gid_attrs/types/{name[5:]}", ""),
                netdev=tree.get(f"gid_attrs/ndevs/{name[5:]}", ""),
            )
            for name, value in tree.items()
            if re.fullmatch(r"gids/\d{1,4}", name)
        ),
    )


def _mtu(text: str) -> int | None:
    """`4096 (5)`, `4096` or the verbs' own number 5."""
    found = re.match(r"\s*(\d{1,5})", text)
    if found is None:
        return None
    return _MTUS.get(found[1], int(found[1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """A network interface: its state word, MTU, hardware address and IPv4 addresses."""

    name: str
    state: str
    mtu: int | None
    mac: str
    addresses: tuple[IPv4Interface, ...]

    @property
    def up(self) -> bool:
        """UP; some drivers say UNKNOWN of an interface that works."""
        return self.state in ("UP", "UNKNOWN")


def interfaces(case: Case) -> Mapping[str, Interface]:
    """The interfaces by name and alternative name, from what there is of ip-link and ip-addr."""
    return _interfaces(*(case.text(p) for p in ("ip-link", "ip-addr") if case.has(p)))


@lru_cache(maxsize=16)
def _interfaces(*texts: str) -> Mapping[str, Interface]:
    merged: dict[str, dict[str, Any]] = {}
    for text in texts:
        for row in rows(text):
            name = row.get("ifname")
            if isinstance(name, str):
                merged[name] = {**merged.get(name, {}), **row}
    if not merged:
        raise NoEvidence("ip has no interface")
    found = {name: _interface(name, row) for name, row in merged.items()}
    for name, row in merged.items():
        for other in _strings(row.get("altnames")):
            found.setdefault(other, found[name])
    return found


def rows(text: str) -> list[dict[str, Any]]:
    """The objects of a JSON list, as `ip -j` prints it. NoEvidence when it is no JSON."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoEvidence(f"the output of ip is not JSON: {text[:40]!r}") from error
    return [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _interface(name: str, row: dict[str, Any]) -> Interface:
    mtu, infos = row.get("mtu"), row.get("addr_info")
    addresses = [_address(info) for info in infos] if isinstance(infos, list) else []
    return Interface(
        name=name,
        state=str(row.get("operstate", "")).upper(),
        mtu=mtu if type(mtu) is int else None,
        mac=str(row.get("address", "")).lower(),
        addresses=tuple(address for address in addresses if address),
    )


def _address(info: object) -> IPv4Interface | None:
    if not isinstance(info, dict) or info.get("family") != "inet":
        return None
    try:
        return IPv4Interface(f"{info.get('local')}/{info.get('prefixlen')}")
    except ValueError:
        return None


def cage(netdev: str) -> tuple[str, str] | None:
    """PCIe domain and cage of an interface: twins share the cage. None for other names."""
    found = _FUNCTION.match(netdev)
    return (found[1] or "0", found[2]) if found else None
