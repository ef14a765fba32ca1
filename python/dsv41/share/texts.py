"""The files that `share` writes, byte for byte a function of the fleet.

Options of export and mount are those of the public three-Spark recipe (MiaAI-Lab, start.sh). The
exported folder is the root of the server's NFSv4 tree (fsid=0), so every client mounts SERVER:/,
whatever else runs: two layouts of one share cost people their workers (report P35).
"""

from __future__ import annotations

import ipaddress
import re

from dsv41.engines.wiring import share_faults
from dsv41.errors import UsageError
from dsv41.fleet import Fleet

EXPORT_OPTIONS = "ro,sync,no_subtree_check,no_root_squash,insecure,fsid=0"
MOUNT_OPTIONS = "nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600"
EXPORTS = "/etc/exports.d/dsv41.exports"
UNITS = "/etc/systemd/system"
_BY = "Written by dsv41 share; dsv41 share --remove takes it away."
# what neither exports(5) nor a unit file reads as something else
_PLAIN = re.compile(r"(/[A-Za-z0-9._+@=,-]+)+")
_KEPT = re.compile(r"[A-Za-z0-9:_.]")


def server_of(fleet: Fleet) -> int | None:
    """The rank of the node that exports; None when every node has its own copy.

    Raises UsageError D460 when nfs_server is no node's address or not every node reaches it, D461
    for a model_dir that cannot be written into an exports file.
    """
    if fleet.nfs_server is None:
        return None
    found = [r for r in range(len(fleet.nodes)) if fleet.nfs_server in addresses(fleet, r)]
    if not found:
        known = ", ".join(f"{node.name} {node.address}" for node in fleet.nodes)
        raise UsageError(
            "D460",
            f"nfs_server is {fleet.nfs_server}, no address of a node of the fleet: {known}.",
            fix="set nfs_server to the address of the node that has the checkpoint",
        )
    for says, fix in share_faults(fleet):
        raise UsageError("D460", f"{says}.", fix=fix)
    for node in fleet.nodes:
        if not _PLAIN.fullmatch(node.model_dir):
            raise UsageError(
                "D461",
                f"model_dir of {node.name} is {node.model_dir!r}; a shared folder is an absolute "
                "path of letters, digits and . _ + @ = , - alone.",
                fix=f"give {node.name} a plain model_dir",
            )
    return found[0]


def addresses(fleet: Fleet, rank: int) -> tuple[str, ...]:
    """All addresses of a node: management, then fabric."""
    node = fleet.nodes[rank]
    return (node.address, *(link.address.split("/")[0] for link in node.links))


def clients(fleet: Fleet, server: int) -> tuple[str, ...]:
    """The addresses that may mount: every one of every other node."""
    others = [rank for rank in range(len(fleet.nodes)) if rank != server]
    return tuple(address for rank in others for address in addresses(fleet, rank))


def export_line(folder: str, allowed: tuple[str, ...]) -> str:
    """A line of exports(5)."""
    return " ".join([folder, *(f"{client}({EXPORT_OPTIONS})" for client in allowed)])


def exports(fleet: Fleet, server: int) -> str:
    """The whole exports file of the server."""
    line = export_line(fleet.nodes[server].model_dir, clients(fleet, server))
    return f"# {_BY}\n{line}\n"


def source(fleet: Fleet) -> str:
    """What a client mounts."""
    server = fleet.nfs_server or ""
    try:
        brackets = ipaddress.ip_address(server).version == 6
    except ValueError:
        brackets = False
    return f"[{server}]:/" if brackets else f"{server}:/"


def unit_name(folder: str) -> str:
    r"""The name of a folder's mount unit without its suffix, as systemd-escape --path has it.

    A slash becomes a dash, everything that is no letter, digit, colon, underscore or inner dot
    becomes \xHH (systemd.unit(5)).
    """
    path = re.sub("/+", "/", folder).strip("/")
    if not path:
        return "-"
    escaped = [
        "-" if c == "/" else c if _KEPT.fullmatch(c) else "".join(rf"\x{b:02x}" for b in c.encode())
        for c in path
    ]
    if path.startswith("."):
        escaped[0] = r"\x2e"
    return "".join(escaped)


def mount_unit(fleet: Fleet, rank: int, server: int) -> str:
    """The mount of one client. A server that is away is an error after a minute, not a hang."""
    return f"""# {_BY}
[Unit]
Description=Checkpoint of DeepSeek-V4.1-Flash, exported by {fleet.nodes[server].name}
Wants=network-online.target
After=network-online.target

[Mount]
What={source(fleet)}
Where={fleet.nodes[rank].model_dir}
Type=nfs4
Options={MOUNT_OPTIONS}
TimeoutSec=60
"""


def automount_unit(fleet: Fleet, rank: int) -> str:
    """Mounts at the first look: a node that boots before the server does not stop there."""
    return f"""# {_BY}
[Unit]
Description=Checkpoint of DeepSeek-V4.1-Flash, mounted at the first look

[Automount]
Where={fleet.nodes[rank].model_dir}

[Install]
WantedBy=multi-user.target
"""
