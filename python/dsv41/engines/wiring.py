"""Whether a profile's NCCL fits a fleet's cables: UsageError D105, and advice D109."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import combinations
from pathlib import PurePath

from dsv41.engines.checks import expert_slice
from dsv41.engines.trees import Tree
from dsv41.errors import UsageError
from dsv41.finding import Finding
from dsv41.fleet import Fleet, Node, cables
from dsv41.profile import Profile, Value

PUBLISHED_GIDS = (
    2  # ports that a listener of NCCL publishes without the extension (user report P24)
)
_PROXY = ipaddress.ip_network("198.18.0.0/15")  # what proxies use for made-up names (P30)
_BRIDGE = ipaddress.ip_network("172.17.0.0/16")  # docker's own


def uncabled(fleet: Fleet) -> list[tuple[int, int]]:
    """The pairs of ranks that no subnet joins."""
    joined = [{rank for rank, _ in ports} for ports in cables(fleet).values()]
    pairs = combinations(range(len(fleet.nodes)), 2)
    return [pair for pair in pairs if not any(set(pair) <= ranks for ranks in joined)]


def check(profile: Profile, fleet: Fleet) -> None:
    """UsageError D105 for the first thing about the fleet that the profile cannot work with."""
    _refuse(profile, _faults(profile, fleet))


def check_folders(profile: Profile, fleet: Fleet) -> None:
    """UsageError D105 for the first folder or file that cannot be mounted into a container."""
    _refuse(profile, _folder_faults(fleet))


def _refuse(profile: Profile, faults: Iterator[tuple[str, str]]) -> None:
    for says, fix in faults:
        raise UsageError("D105", f"Profile {profile.name} on this fleet: {says}.", fix=fix)


def _folder_faults(fleet: Fleet) -> Iterator[tuple[str, str]]:
    whole = {key: getattr(fleet, key) for key in ("state_dir", "cache_dir", "api_key_file")}
    yield from _path_faults("the fleet", whole)
    for node in fleet.nodes:
        keys = ("model_dir", "rows_dir", "nccl_library")
        yield from _path_faults(node.name, {key: getattr(node, key) for key in keys})


def _faults(profile: Profile, fleet: Fleet) -> Iterator[tuple[str, str]]:
    yield from _ring_faults(profile, fleet)
    prefix = profile.get("nccl_subnet_prefix")
    for node in fleet.nodes:
        if len(node.hca) > PUBLISHED_GIDS and not profile.on("nccl_extended_gids"):
            yield (
                f"{node.name} has {len(node.hca)} ports, NCCL publishes {PUBLISHED_GIDS} of them",
                "list two ports of the node, or set nccl_extended_gids and its two companions",
            )
        for link in node.links:
            if prefix is not None and link.network.prefixlen != prefix:
                yield (
                    f"{node.name} has {link.address}, nccl_subnet_prefix is {prefix}",
                    "give every cable a subnet of that length, or change the knob",
                )
    yield from share_faults(fleet)


def _ring_faults(profile: Profile, fleet: Fleet) -> Iterator[tuple[str, str]]:
    apart = uncabled(fleet)
    ring = profile.get("nccl_build") == "sparkring"
    if apart and not ring:
        yield (
            f"no cable joins ranks {apart[0][0]} and {apart[0][1]}, and stock NCCL builds trees",
            "take a profile for a ring: tp4-ring or tp4-cycle",
        )
    if fleet.topology != "ring" and (ring or profile.on("nccl_ring_only")):
        yield (
            f"its NCCL knows rings only, the topology is a {fleet.topology}",
            "take a profile for this topology: tp3 for a triangle, tp4 for a switch",
        )
    if ring:
        yield from _contract(profile)


def _contract(profile: Profile) -> Iterator[tuple[str, str]]:
    """What the patched library needs beside it, or NCCL chooses trees that are not there."""
    for key, wanted in {**RING_CONTRACT, **_ENGINE_CONTRACT.get(profile.engine, {})}.items():
        found = profile.get(key)
        if found != wanted:
            yield f"{key} is {found!r}, a ring needs {wanted!r}", profile.mend(key, wanted)


RING_CONTRACT: dict[str, Value] = {
    "nccl_ring_only": True,
    "nccl_algo": "Ring",
    "nccl_subnet_aware": True,
    "nccl_merge_nics": False,
}
# the cycle's launcher refuses any other value of these as well (SR-PR261)
_ENGINE_CONTRACT: dict[str, dict[str, Value]] = {
    "vllm": {
        "nccl_subnet_prefix": 24,
        "nccl_cross_nic": 1,
        "nccl_p2p_level": "SYS",
        "nccl_skip_tree": True,
        "nccl_cumem": False,
    }
}


def _path_faults(owner: str, paths: dict[str, str | None]) -> Iterator[tuple[str, str]]:
    """A mount is source:target, so a path has no colon."""
    for key, path in paths.items():
        if path is not None and (not PurePath(path).is_absolute() or ":" in path):
            yield f"{key} of {owner} is {path!r}, not an absolute path", f"edit {key} of {owner}"


def share_faults(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """A fabric address is seen by the nodes in its subnet alone (user report P44)."""
    try:
        server = ipaddress.ip_address(fleet.nfs_server or "")
    except ValueError:
        return
    for network, ports in cables(fleet).items():
        missing = set(range(len(fleet.nodes))) - {rank for rank, _ in ports}
        if server in ipaddress.ip_network(network) and missing:
            without = fleet.nodes[min(missing)].name
            yield (
                f"nfs_server {server} is on a cable that {without} does not have",
                "give its management address, or keep the checkpoint on every node",
            )


def advice(profile: Profile, fleet: Fleet, build: Tree) -> tuple[Finding, ...]:
    """What runs, or is meant to, and yet deserves a word."""
    return tuple(_advice(profile, fleet, build))


def _advice(profile: Profile, fleet: Fleet, build: Tree) -> Iterator[Finding]:
    columns = expert_slice(profile)
    if columns % build.slice_multiple:
        yield Finding(
            code="D109",
            level="warn",
            says=f"Experts are cut into slices of {columns} columns; {build.name} takes "
            f"multiples of {build.slice_multiple} and stops at load.",
            fix=f"ep = {2 * profile.integer('ep')}",
        )
    for node in fleet.nodes:
        if fleet.topology == "switch" and len(node.hca) == 1:
            yield Finding(
                code="D109",
                level="warn",
                node=node.name,
                says="A port of a Spark is two functions, one in each PCI domain; only one is "
                "listed, which carries about an eighth of the bandwidth.",
                fix=f"list both in hca of {node.name}, such as rocep1s0f0 and roceP2p1s0f0",
            )
        yield from _subnet_advice(node)
    if fleet.sps_table and profile.engine == "sglang":
        yield Finding(
            code="D109",
            level="info",
            says="sps_table has no effect: it feeds the scheduler of ragged verification, which "
            "Engram cannot use (ragged_verify is static).",
        )


def _subnet_advice(node: Node) -> Iterator[Finding]:
    for link in node.links:
        for taken, owner in ((_PROXY, "proxies"), (_BRIDGE, "docker's bridge")):
            if link.network.version == taken.version and link.network.overlaps(taken):
                yield Finding(
                    code="D109",
                    level="warn",
                    node=node.name,
                    says=f"{link.address} lies in {taken}, which {owner} use.",
                    fix=f"give the cable another subnet in fabric of {node.name}",
                )
