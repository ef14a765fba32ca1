"""Where it is served: nodes, their links and folders. Network facts are per node.

A fleet file is TOML. What is not there takes the default of `Fleet` and `Node`; an unknown key, a
wrong type or a contradiction is an error that names file and key.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, get_args, get_origin, get_type_hints

from dsv41 import fleet_forms, topology
from dsv41.errors import UsageError

TOPOLOGIES = ("triangle", "switch", "ring", "loopback")
CONTAINERS = ("podman", "docker")
SPARK_GIB = 121.69  # MemTotal of a DGX Spark; other makers' boards have about 119 (user report P83)
_KINDS = {
    str: "a string that is not empty",
    int: "an integer",
    float: "a number",
    bool: "true or false",
}
GIB_LIMIT = 1024  # far above any node; below it every sum of bytes is finite


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One fabric port of a node: its RDMA device and its address with prefix length."""

    hca: str
    address: str

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The subnet that the port is in."""
        return ipaddress.ip_interface(self.address).network


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host of a fleet; its position is its rank.

    `memory_gib` is its MemTotal, `reserve_gib` what other programs on it need. `nccl_library` is
    the host's path of an NCCL that is mounted over the image's own.
    """

    name: str
    ssh: str
    address: str
    hca: tuple[str, ...] = ()
    fabric: tuple[str, ...] = ()
    socket_ifname: str = ""
    model_dir: str
    rows_dir: str
    sudo: bool = False
    container: str | None = None
    gid_index: int | None = None
    nccl_library: str | None = None
    memory_gib: float = SPARK_GIB
    reserve_gib: float = 0.0

    @property
    def links(self) -> tuple[Link, ...]:
        """The fabric ports, in the order of `hca`."""
        return tuple(Link(hca=h, address=a) for h, a in zip(self.hca, self.fabric, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """The nodes of one service, the addresses and ports that it uses, its folders."""

    topology: str
    nodes: tuple[Node, ...]
    container: str = "podman"
    api_host: str = "0.0.0.0"  # noqa: S104 - the endpoint is for the owner's network; `serve` warns without a key
    api_port: int = 8888
    master_port: int = 20000
    control_port: int = 20001
    state_dir: str = "/var/lib/dsv41"
    cache_dir: str = "/var/cache/dsv41"
    api_key_file: str | None = None
    nfs_server: str | None = None
    sps_table: str | None = None
    sts_table: str | None = None

    @property
    def contained(self) -> bool:
        """Whether ranks run in containers of nodes; else they are processes of this machine."""
        return self.topology != "loopback"

    @property
    def run_dir(self) -> str:
        """The folder of the Plan, the lock and the logs of the service that runs."""
        return str(PurePath(self.state_dir) / "run")

    @property
    def plan_file(self) -> str:
        """Where the Plan lies that the ranks carry out."""
        return str(PurePath(self.run_dir) / "plan.json")

    def container_of(self, rank: int) -> str:
        """The container engine of a node: its own word, else the fleet's."""
        return self.nodes[rank].container or self.container


def loopback(
    *, tp: int, state_dir: str, port: int, master_port: int, api_key_file: str | None = None
) -> Fleet:
    """The fleet of profile `local`: `tp` ranks on this machine, reachable on 127.0.0.1 alone."""
    state = PurePath(state_dir)
    nodes = tuple(
        Node(
            name=f"local{rank}",
            ssh="local",
            address="127.0.0.1",
            model_dir=str(state / "checkpoints" / "fixture"),
            rows_dir=str(state / "rows"),
        )
        for rank in range(tp)
    )
    return Fleet(
        topology="loopback",
        nodes=nodes,
        api_host="127.0.0.1",
        api_port=port,
        master_port=master_port,
        state_dir=state_dir,
        api_key_file=api_key_file,
    )


def load(path: Path) -> Fleet:
    """The fleet of a file; UsageError D100 when it cannot be read, else as `parse`."""
    try:
        return parse(path.read_text(encoding="utf-8"), where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "D100",
            f"The fleet file {path} cannot be read: {error}.",
            fix="dsv41 plan --example tp3 > fleet.toml",
        ) from error


def parse(text: str, *, where: str) -> Fleet:
    """A fleet from TOML text; UsageError D100 not TOML, D101 key or type, D102 contradiction."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("D100", f"{where} is not TOML: {error}.", fix=f"edit {where}") from error
    tables = data.pop("nodes", None)
    if not isinstance(tables, list) or not tables:
        raise _wrong(where, "nodes", tables, "one [[nodes]] table per rank")
    nodes = []
    for place, table in enumerate(tables):
        key = f"nodes[{place}]"
        if not isinstance(table, dict):
            raise _wrong(where, key, table, "a table")
        required = ("hca", "fabric", "socket_ifname")
        nodes.append(Node(**_fields(Node, table, where=where, key=f"{key}.", required=required)))
    fleet = Fleet(**_fields(Fleet, data, where=where, key=""), nodes=tuple(nodes))
    _check_words(fleet, where)
    _check_nodes(fleet, where)
    return fleet


def gib(value: float, *, of: str, fix: str) -> float:
    """The value as a float; UsageError D101 unless it is finite and from 0 to 1024 GiB."""
    if not 0 <= value <= GIB_LIMIT:  # false for NaN as well
        allowed = f"GiB from 0 to {GIB_LIMIT}"
        raise UsageError("D101", f"{of} is {value!r}; allowed: {allowed}.", fix=fix)
    return float(value)


def _wrong(where: str, key: str, found: object, allowed: str) -> UsageError:
    return UsageError(
        "D101", f"{where}: {key} is {found!r}; allowed: {allowed}.", fix=f"edit {where}"
    )


def _unknown(where: str, key: str, known: list[str]) -> UsageError:
    """A key that nobody reads: the nearest one that is known, or where it belongs."""
    prefix, _, name = key.rpartition(".")
    near = get_close_matches(name, known, n=1)
    if near:
        says, fix = f"the nearest known one is {near[0]}", f"write {near[0]} instead of {name}"
    elif prefix and name in Fleet.__dataclass_fields__:
        says, fix = "it belongs to the fleet", f"put {name} above the first [[nodes]]"
    else:
        says, fix = "known: " + ", ".join(known), f"do without {name}"
    return UsageError("D101", f"{where}: unknown key {key}; {says}.", fix=f"{fix} in {where}")


def _fields(
    kind: type, table: Mapping[str, Any], *, where: str, key: str, required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The keyword arguments of a dataclass from a TOML table, types checked."""
    hints = get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind) if f.name != "nodes"}
    for name in table:
        if name not in known:
            raise _unknown(where, key + name, list(known))
    for name, entry in known.items():
        needed = name in required or (entry.default is MISSING and entry.default_factory is MISSING)
        if needed and name not in table:
            says = f"{where}: {key}{name} is missing; it is required."
            raise UsageError("D101", says, fix=f"add {name} to {where}")
    found = {n: _typed(v, hints[n], where=where, key=key + n) for n, v in table.items()}
    for name, value in found.items():
        for place, item, allowed in fleet_forms.faults(name, value):
            raise _wrong(where, key + name + place, item, allowed)
    return found


def _typed(value: object, hint: Any, *, where: str, key: str) -> object:
    """The value as its field has it: a TOML list of strings becomes a tuple."""
    if get_origin(hint) is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise _wrong(where, key, value, "a list of strings")
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    if kinds == [float] and isinstance(value, int | float) and not isinstance(value, bool):
        return gib(value, of=f"{where}: {key}", fix=f"edit {where}")
    if type(value) in kinds and value != "":
        return value
    raise _wrong(where, key, value, _KINDS[kinds[0]])


def _check_words(fleet: Fleet, where: str) -> None:
    containers = [fleet.container, *(n.container for n in fleet.nodes if n.container)]
    words: list[tuple[str, str, tuple[str, ...]]] = [("topology", fleet.topology, TOPOLOGIES[:3])]
    words += [("container", container, CONTAINERS) for container in containers]
    for key, value, among in words:
        if value not in among:
            raise _wrong(where, key, value, "one of " + ", ".join(among))
    ports = {"api_port": fleet.api_port, "master_port": fleet.master_port}
    ports["control_port"] = fleet.control_port
    for key, port in ports.items():
        if not 1 <= port <= 65535:
            raise _wrong(where, key, port, "a port, 1 to 65535")
    if len(set(ports.values())) < len(ports):
        said = ", ".join(f"{key} {port}" for key, port in ports.items())
        raise _contradiction(where, f"the ports are not all different: {said}")


def _check_nodes(fleet: Fleet, where: str) -> None:
    for key in ("name", "address"):
        first: dict[str, str] = {}
        for rank, node in enumerate(fleet.nodes):
            said, value = f"nodes[{rank}] ({node.name})", getattr(node, key)
            if value in first:
                both = f"{first[value]} and {said}"
                raise _contradiction(where, f"{both} have the same {key}, {value}")
            first[value] = said
    for rank, node in enumerate(fleet.nodes):
        key = f"nodes[{rank}] ({node.name})"
        if len(node.hca) != len(node.fabric) or not node.hca:
            says = f"{key} has {len(node.hca)} hca and {len(node.fabric)} fabric addresses"
            raise _contradiction(where, f"{says}; fabric[i] is the address on hca[i]")
        if len(set(node.hca)) < len(node.hca):
            raise _contradiction(where, f"{key} names an hca twice: {', '.join(node.hca)}")
    names = [node.name for node in fleet.nodes]
    for says in topology.faults(fleet.topology, names, cables(fleet)):
        raise _contradiction(where, says)


def _contradiction(where: str, says: str) -> UsageError:
    return UsageError("D102", f"{where}: {says}.", fix=f"edit {where}")


def cables(fleet: Fleet) -> Mapping[str, tuple[tuple[int, str], ...]]:
    """The subnets of the fabric: network -> (rank, hca) of every port in it, in rank order."""
    found: dict[str, list[tuple[int, str]]] = {}
    for rank, node in enumerate(fleet.nodes):
        for link in node.links:
            found.setdefault(str(link.network), []).append((rank, link.hca))
    return {network: tuple(ports) for network, ports in found.items()}
