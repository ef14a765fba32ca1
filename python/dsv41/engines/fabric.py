"""The environment of NCCL and of the sockets beside it, the same for every engine.

What belongs to a node (ports, interface, address, a pinned GID) comes from the fleet, never from
the profile. A variable is absent or has a value, never empty: NCCL reads an empty
NCCL_IB_GID_INDEX as 0, a link-local GID.
"""

from __future__ import annotations

from collections.abc import Mapping

from dsv41.fleet import Node
from dsv41.profile import Profile

# variables that differ from node to node
OWN = frozenset(
    {
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "HOST_IP",
        "SGLANG_HOST_IP",
        "VLLM_HOST_IP",
    }
)

_VARIABLES: Mapping[str, str] = {
    "nccl_net": "NCCL_NET",
    "nccl_net_plugin": "NCCL_NET_PLUGIN",
    "nccl_ib_disable": "NCCL_IB_DISABLE",
    "nccl_p2p_disable": "NCCL_P2P_DISABLE",
    "nccl_shm_disable": "NCCL_SHM_DISABLE",
    "nccl_cumem": "NCCL_CUMEM_ENABLE",
    "nccl_cross_nic": "NCCL_CROSS_NIC",
    "nccl_merge_nics": "NCCL_IB_MERGE_NICS",
    "nccl_subnet_aware": "NCCL_IB_SUBNET_AWARE_ROUTING",
    "nccl_subnet_prefix": "NCCL_IB_SUBNET_PREFIX_LEN",
    "nccl_buffer_bytes": "NCCL_BUFFSIZE",
    "nccl_ll128_bytes": "NCCL_LL128_BUFFSIZE",
    "nccl_proto": "NCCL_PROTO",
    "nccl_algo": "NCCL_ALGO",
    "nccl_min_channels": "NCCL_MIN_NCHANNELS",
    "nccl_max_channels": "NCCL_MAX_NCHANNELS",
    "nccl_p2p_level": "NCCL_P2P_LEVEL",
    "nccl_ring_only": "NCCL_SWITCHLESS_RING_ONLY",
    "nccl_skip_tree": "NCCL_SKIP_TREE_CONNECT",
    "nccl_extended_gids": "NCCL_IB_EXTENDED_IPV4_GIDS",
    "nccl_preserve_pci_domain": "NCCL_IB_PRESERVE_PCI_DOMAIN",
    "nccl_route_diagnostics": "NCCL_IB_ROUTE_DIAGNOSTICS",
    "nccl_qps_per_connection": "NCCL_IB_QPS_PER_CONNECTION",
    "nccl_ignore_affinity": "NCCL_IGNORE_CPU_AFFINITY",
    "nccl_debug": "NCCL_DEBUG",
    "nccl_debug_subsys": "NCCL_DEBUG_SUBSYS",
}

# the older patch acts on the variable's presence, even on 0: absent when off
_ONLY_WHEN_ON = ("nccl_ring_only", "nccl_skip_tree")


def written(value: object) -> str:
    """A value as a variable has it: booleans are 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def variables(profile: Profile, table: Mapping[str, str]) -> dict[str, str]:
    """The variables of the knobs that are rendered, by a table knob -> variable."""
    values = {variable: profile.get(knob) for knob, variable in table.items()}
    return {variable: written(value) for variable, value in values.items() if value is not None}


def environment(profile: Profile, node: Node) -> dict[str, str]:
    """NCCL's and gloo's variables of one node."""
    table = {k: v for k, v in _VARIABLES.items() if k not in _ONLY_WHEN_ON or profile.on(k)}
    own = {
        "NCCL_IB_HCA": ",".join(node.hca),
        "NCCL_SOCKET_IFNAME": node.socket_ifname,
        "GLOO_SOCKET_IFNAME": node.socket_ifname,
    }
    if node.gid_index is not None:
        own["NCCL_IB_GID_INDEX"] = str(node.gid_index)
    return {**variables(profile, table), **own}
