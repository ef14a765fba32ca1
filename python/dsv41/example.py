"""A fleet file to start from: commented, valid as it stands, with the cabling of the profile."""

from __future__ import annotations

from dsv41.errors import UsageError
from dsv41.fleet import Fleet
from dsv41.profile import Profile, load, names

PORTS = 2  # network ports of a Spark
# a port is two functions, one in each PCI domain; behind a switch both are used (user report P29)
_TWINS = ("rocep1s0f0", "roceP2p1s0f0")
_PORTS = ("rocep1s0f0", "rocep1s0f1")

_HEAD = """\
# Where profile {name} is served: one table a node, in rank order. Rank 0 answers the API.
# Check it with: dsv41 plan --profile {name} --fleet fleet.toml
topology = "{topology}"  # triangle | switch | ring
container = "podman"     # podman | docker; a node may have its own
# api_host = "0.0.0.0"   # where the API listens on the head
# api_port = 8888
# master_port = 20000    # where the ranks meet
# control_port = 20001
# state_dir = "/var/lib/dsv41"
# cache_dir = "/var/cache/dsv41"        # compiled kernels, one folder an image and environment
# api_key_file = "/etc/dsv41/api-keys"  # on the head: one key a line, mode 0600
# nfs_server = "10.0.0.1"               # when model_dir is a mount of one node's copy
# sps_table = "/etc/dsv41/dspark_sps.json"
# sts_table = "/etc/dsv41/dspark_sts.json"
"""

_NODE = """
[[nodes]]
name = "spark{number}"
ssh = "user@10.0.0.{number}"       # or "local"
address = "10.0.0.{number}"        # management network: API, control, rendezvous
socket_ifname = "enP7s7"     # the interface that holds this address
hca = [{hca}]   # RDMA devices of this node (ls /sys/class/infiniband)
fabric = [{fabric}]   # fabric[i] is the address on hca[i]{cable}
model_dir = "/models/DeepSeek-V4.1-Flash"
rows_dir = "/var/lib/dsv41/rows"
"""
_OPTIONAL = """\
# sudo = false               # true where ssh's user may not start containers
# gid_index = 3              # only to pin it; absent is right almost everywhere (user report P14)
# nccl_library = "/opt/nccl/libnccl.so.2"   # on this node, mounted over the image's own
# memory_gib = 121.69        # MemTotal, when it is less (119 on some boards)
# reserve_gib = 0            # what other programs on this node need
"""


def fleet_text(profile: Profile) -> str:
    """The example for a profile; UsageError D107 for one that runs without a fleet."""
    if profile.engine == "local":
        raise UsageError(
            "D107",
            f"Profile {profile.name} runs on this machine and needs no fleet file.",
            fix=f"dsv41 plan --profile {profile.name}",
        )
    topology = topology_of(profile)
    head = _HEAD.format(name=profile.name, topology=topology)
    size = profile.integer("tp")
    nodes = [_node(topology, rank, size) + (_OPTIONAL if rank == 0 else "") for rank in range(size)]
    return head + "".join(nodes)


def topology_of(profile: Profile) -> str:
    """The cabling that a profile is made for.

    A ring where its NCCL is the ring's; direct cables where a node's ports reach every other node;
    else a switch.
    """
    if profile.get("nccl_build") == "sparkring":
        return "ring"
    return "triangle" if profile["tp"] == PORTS + 1 else "switch"


def of_another_size(profile: Profile, fleet: Fleet) -> str:
    """What mends a fleet of another size than the profile: the profiles that are made for it."""
    size = len(fleet.nodes)
    made = [
        name
        for name in names()
        if (other := load(name)).engine != "local"
        and (other["tp"], topology_of(other)) == (size, fleet.topology)
    ]
    others = made if profile.shipped and profile.name not in made else []
    mends = [f"--profile {name}" for name in others] or [profile.mend("tp", size)]
    return ", or ".join([*mends, "give the fleet one node per rank"])


def _node(topology: str, rank: int, size: int) -> str:
    hca = _TWINS if topology == "switch" else _PORTS
    fabric, cable = _ADDRESSES[topology](rank, size)
    return _NODE.format(number=rank + 1, hca=_list(hca), fabric=_list(fabric), cable=cable)


def _list(words: tuple[str, ...]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _switch(rank: int, _size: int) -> tuple[tuple[str, ...], str]:
    return (f"10.0.40.{rank + 1}/24", f"10.0.41.{rank + 1}/24"), "; both functions of one port"


def _ring(rank: int, size: int) -> tuple[tuple[str, ...], str]:
    """Port 0 goes to the next rank, port 1 to the one before; a cable is a subnet."""
    after, before = (rank + 1) % size, (rank - 1) % size
    ends = (f"10.0.{40 + rank}.1/24", f"10.0.{40 + before}.2/24")
    return ends, f"; cables to rank {after} and rank {before}"


def _triangle(rank: int, size: int) -> tuple[tuple[str, ...], str]:
    """A cable between every two ranks, in the order of the other rank."""
    others = [other for other in range(size) if other != rank]
    pairs = [tuple(sorted((rank, other))) for other in others]
    ends = tuple(f"10.0.{10 * (low + 1) + high + 1}.{rank + 1}/24" for low, high in pairs)
    return ends, "; cables to rank " + " and rank ".join(map(str, others))


_ADDRESSES = {"switch": _switch, "ring": _ring, "triangle": _triangle}
