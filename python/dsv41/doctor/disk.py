"""Room and kind of the disks below the model and the rows (reports P35, P43, P44)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address

from dsv41.doctor import byhand
from dsv41.doctor.check import Case, FleetCheck, NodeCheck, NoEvidence, Verdict
from dsv41.doctor.packed import sizes
from dsv41.doctor.readings import FileSystem, file_system_of, gib, listing

# the engine image takes 8.6 to 9.0 GB unpacked; below this not even caches and logs have room
LEAST_FREE = 10_000_000_000
_MEMORY = ("tmpfs", "ramfs", "rootfs")
_NETWORK = re.compile(r"^(?:nfs\d?|cifs|smb3|fuse\.sshfs|ceph|9p|lustre)$")
# direct reads are exact and fast on these; elsewhere only a measurement tells
_PLAIN = ("ext4", "xfs", "ext3", "ext2", "f2fs")
_NFS_SOURCE = re.compile(r"^\[?([^\]/]+?)\]?:(/.*)$")


def room(case: Case) -> Iterator[Verdict]:
    """Free space for what is still to be written: rows to pack, shards to fetch."""
    node = case.node
    todo = [
        (node.rows_dir, _rows_to_pack(case), "rows"),
        (node.model_dir, _shards(case), "weights"),
    ]
    wanted: dict[str, int] = {}
    found: dict[str, FileSystem] = {}
    for folder, need, what in todo:
        disk = file_system_of(case, folder)
        if what == "weights" and _NETWORK.match(disk.kind):
            continue  # a share is filled where it is exported
        found[disk.target] = disk
        wanted[disk.target] = wanted.get(disk.target, 0) + need
    for target, disk in found.items():
        yield _room(disk, wanted[target])


def _room(disk: FileSystem, need: int) -> Verdict:
    free = f"{disk.target} has {gib(disk.available)} free"
    if disk.available < need:
        says = f"{free}; {gib(need)} of rows and weights are still to be written."
        fix = f"du -xh --max-depth=2 {disk.target} | sort -h | tail, then remove what is not needed"
        return Verdict(level="fail", says=says, fix=fix)
    if disk.available < LEAST_FREE:
        says = f"{free}; images, caches and logs need {gib(LEAST_FREE)}."
        return Verdict(
            level="warn", says=says, fix="podman image prune; journalctl --vacuum-size=1G"
        )
    return Verdict(level="ok", says=f"{free}.")


def _rows_to_pack(case: Case) -> int:
    there = listing(case, "rows") if case.has("rows") else {}
    return sum(size for name, size in sizes(case).items() if name not in there)


def _shards(case: Case) -> int:
    """Bytes of the checkpoint that are not there yet, when its files say that some are not."""
    if not case.has("checkpoint") or not case.has("checkpoint-index"):
        return 0
    there = listing(case, "checkpoint")
    names = {line.strip() for line in case.text("checkpoint-index").splitlines() if line.strip()}
    if names and names <= there.keys():
        return 0
    return max(0, case.expect.checkpoint_bytes - sum(entry.size for entry in there.values()))


def kinds(case: Case) -> Iterator[Verdict]:
    """Rows are read with O_DIRECT from a local disk; nothing big lies in memory."""
    for folder, rows in ((case.node.rows_dir, True), (case.node.model_dir, False)):
        disk = file_system_of(case, folder)
        says = f"{folder} is on {disk.kind} ({disk.source})"
        if disk.kind in _MEMORY:
            fix = f"put {folder} on the NVMe disk"
            yield Verdict(level="fail", says=f"{says}: it takes the engine's memory.", fix=fix)
        elif rows and _NETWORK.match(disk.kind):
            fix = f"set rows_dir of {case.name} to a folder on the local NVMe disk"
            yield Verdict(
                level="fail", says=f"{says}: every row is read over the network.", fix=fix
            )
        elif rows and disk.kind not in _PLAIN:
            fix = byhand.measure(folder)
            yield Verdict(level="warn", says=f"{says}: direct reads may be slow; measure.", fix=fix)
        else:
            yield Verdict(level="ok", says=f"{says}.")


def shares(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """NFS mounts of the checkpoint: one export for all, and reachable in a ring."""
    mounts = {case.rank: found for case in cases if (found := _mount(case))}
    paths = {path for _, path in mounts.values()}
    if len(paths) > 1:
        words = ", ".join(f"{cases[0].fleet.nodes[r].name} {s}:{p}" for r, (s, p) in mounts.items())
        yield Verdict(
            level="fail",
            says=f"The checkpoint is mounted from different exports: {words}.",
            fix="export one folder of one server (/etc/exports, exportfs -ra) and mount it on "
            "every worker",
        )
    for rank, (server, _) in mounts.items():
        if over := _unreachable(cases[0], rank, server):
            yield over
    if not mounts:
        yield Verdict(level="ok", says="Every node has the checkpoint on a disk of its own.")
    elif len(paths) == 1:
        yield Verdict(level="ok", says=f"{len(mounts)} nodes mount the export {next(iter(paths))}.")


def _mount(case: Case) -> tuple[str, str] | None:
    """Server and path when the model folder is an NFS mount."""
    try:
        disk = file_system_of(case, case.node.model_dir)
    except NoEvidence:
        return None
    found = _NFS_SOURCE.match(disk.source)
    return (found[1], found[2]) if found and disk.kind.startswith("nfs") else None


def _unreachable(case: Case, rank: int, server: str) -> Verdict | None:
    """In a ring the opposite node has no cable to the head, and reaches no fabric address of it."""
    fleet = case.fleet
    if fleet.topology != "ring":
        return None
    try:
        address = ip_address(server)
    except ValueError:
        return None
    fabric = [link for node in fleet.nodes for link in node.links if address in link.network]
    mine = [link for link in fleet.nodes[rank].links if address in link.network]
    if not fabric or mine:
        return None
    return Verdict(
        level="fail",
        says=f"{fleet.nodes[rank].name} mounts the checkpoint from {server}, to which it has no "
        "cable.",
        fix="keep the weights on this node's own disk, or mount them from a neighbor",
        rank=rank,
    )


CHECKS = (
    NodeCheck(
        code="D255",
        name="free space",
        probes=("disk",),
        judge=room,
        reports=("P43",),
    ),
    NodeCheck(
        code="D256",
        name="kind of the file systems",
        probes=("disk",),
        judge=kinds,
        reports=("P40",),
    ),
    FleetCheck(
        code="D257",
        name="mounts of the checkpoint",
        probes=("disk",),
        judge=shares,
        reports=("P35", "P44"),
        partial=True,
    ),
)
