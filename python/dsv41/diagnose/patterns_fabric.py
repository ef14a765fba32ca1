"""Known failures of the fabric: NCCL, RoCE, Gloo, PCIe (user reports A2)."""

from __future__ import annotations

import re

from dsv41.diagnose import fixes
from dsv41.diagnose.pattern import Pattern

CAUSES = (
    Pattern(
        code="D333",
        line=re.compile(
            r"AER: Uncorrectable \(Fatal\)|AER:.{0,40}severity=Uncorrected \(Fatal\)"
            r"|mlx5_pci_slot_reset|soft lockup.{0,60}aerdrv"
        ),
        says="The network card fell off PCIe; starting again makes the host lock up.",
        fix=fixes.PCIE_CYCLE,
        boot=False,
        restart=False,
        reports=("P20",),
    ),
    Pattern(
        code="D310",
        line=re.compile(r"ibv_reg_mr\w*.{0,40}(?:Cannot allocate memory|ENOMEM)"),
        says="RDMA memory could not be pinned: Kexec-HandOver of kernel 7.0 holds memory that "
        "cannot "
        "be pinned (CmaFree > CmaTotal in /proc/meminfo), or memlock is limited.",
        fix=f"{fixes.KHO_OFF}; where CmaFree <= CmaTotal: ulimit -l must say unlimited in the "
        "container",
        reports=("P01",),
    ),
    Pattern(
        code="D319",
        line=re.compile(r"Duplicate NCCL runtime found"),
        says="Two NCCL libraries are visible: one in the Python environment, one by "
        "LD_LIBRARY_PATH or "
        "LD_PRELOAD.",
        fix="mount the library over site-packages/nvidia/nccl/lib/libnccl.so.2 and unset "
        "LD_LIBRARY_PATH "
        "and LD_PRELOAD",
        engines=("sglang",),
        reports=("P23",),
    ),
    Pattern(
        code="D337",
        line=re.compile(r"NCCL_IB_GID_INDEX set by environment to (\d{1,3})"),
        says="NCCL_IB_GID_INDEX is pinned to {0} for all ports; the right index differs from "
        "port to port "
        "and drifts, and an empty value counts as 0.",
        fix=fixes.GIDS,
        level="warn",
        boot=False,
        reports=("P14",),
    ),
    Pattern(
        code="D317",
        line=re.compile(r"Using network Socket|NET/Socket : Using"),
        says="NCCL speaks TCP: /dev/infiniband is not in the container (10 to 20 times the "
        "latency).",
        fix="podman run … --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 -e "
        "NCCL_NET=IB",
        engines=("sglang", "vllm"),
        boot=False,
        reports=("P21",),
    ),
    Pattern(
        code="D320",
        line=re.compile(r"overriding dev (\d{1,2}) with dev (\d{1,2})"),
        says="NCCL uses device {1} where {0} was listed: it publishes two addresses a rank, so "
        "further HCAs "
        "carry nothing.",
        fix="set NCCL_IB_EXTENDED_IPV4_GIDS=1 NCCL_IB_PRESERVE_PCI_DOMAIN=1, or list two HCAs a "
        "node",
        level="warn",
        boot=False,
        reports=("P24",),
    ),
    Pattern(
        code="D313",
        line=re.compile(
            r"ibv_modify_qp\w* failed(?: with(?: error)?(?: (\d{1,3}))?)?"
            r"(?:.{0,120}?on dev ([^\s,]{1,40}), .{0,80}?remote GID ([^\s,]{1,60}))?"
        ),
        says="A RoCE connection was refused (errno {0}, device {1}, remote {2}): a wrong GID, or "
        "the two "
        "ports are not on one cable.",
        fix=fixes.GIDS,
        reports=("P14", "P25"),
    ),
    Pattern(
        code="D314",
        line=re.compile(
            r"invalid usage.{0,80}ncclCommInitRank|ncclCommInitRank.{0,80}invalid usage"
        ),
        says="NCCL found none of the listed HCAs on this node: port names differ from node to "
        "node.",
        fix="give each node its own hca list in the fleet file; dsv41 doctor --profile "
        "PROFILE --fleet FLEET names the ports it found",
        reports=("P15",),
    ),
    Pattern(
        code="D315",
        line=re.compile(r"gloo/transport/tcp/|Gloo connectFullMesh failed"),
        says="Gloo could not connect the ranks: the socket interface is wrong on a node.",
        fix="set socket_ifname of every node to the interface that holds its management address",
        reports=("P16",),
    ),
    Pattern(
        code="D316",
        line=re.compile(
            r"Got completion.{0,80}(?:error|status=) ?12\b|RETRY_EXC_ERR|vendor err 129"
        ),
        says="The other end of a cable stopped answering: MTUs differ, a cable is bad, or a port "
        "reset.",
        fix="sudo ip link set dev IFACE mtu 9000 on both ends; dsv41 doctor --profile "
        "PROFILE --fleet FLEET compares them",
        boot=False,
        reports=("P17",),
    ),
    Pattern(
        code="D318",
        line=re.compile(r"(?<!skipping )ncclTransport(?:Tree|Pat)Connect"),
        says="NCCL tried to build a tree over a ring of cables, where opposite nodes have none: "
        "it is "
        "the stock library, or NCCL_SWITCHLESS_RING_ONLY is not set.",
        fix="use an image whose NCCL has SWITCHLESS_RING_ONLY on every node (profile tp4-ring or "
        "tp4-cycle)",
        reports=("P22",),
    ),
)
CONSEQUENCES = (
    Pattern(
        code="D323",
        line=re.compile(r"unhandled (?:system|cuda) error|ncclUnhandledCudaError|ncclSystemError"),
        says="NCCL gave up with an error that it does not explain itself.",
        fix=fixes.NCCL_INFO,
        engines=("sglang", "vllm"),
        general=True,
    ),
)
