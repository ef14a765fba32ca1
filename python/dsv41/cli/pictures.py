"""From a Plan and a fleet to what `draw` takes: bars of memory, the map, the cables."""

from __future__ import annotations

from dsv41.budget import nearest
from dsv41.draw import Bar, Cable, Grid, Part
from dsv41.fleet import Fleet, cables
from dsv41.plan import Plan
from dsv41.profile import Profile

SHADES = {
    "full": ("█", "#0072B2"),
    "shared": ("▓", "#56B4E9"),
    "tight": ("░", "#E69F00"),
    "refused": ("·", "#e3e3e3"),
}
MEANINGS = {
    "full": "fits, every stream at full context at once",
    "shared": "fits, the streams share a smaller pool",
    "tight": "tight: little stays free in a long prefill",
    "refused": "refused",
}


def bars(made: Plan, fleet: Fleet) -> list[Bar]:
    """One bar a rank."""
    return [
        Bar(
            label=f"rank {rank.rank} {rank.node}",
            parts=tuple(Part(name=item.item, bytes=item.bytes) for item in rank.ledger),
            total=int(node.memory_gib * 2**30),
        )
        for rank, node in zip(made.ranks, fleet.nodes, strict=True)
    ]


def grid(profile: Profile, fleet: Fleet) -> Grid:
    """Context by streams on the node with the least memory."""
    node = min(fleet.nodes, key=lambda one: one.memory_gib - one.reserve_gib)
    return Grid(
        title=f"{profile.name}: context by streams on {node.name}",
        rows=[_tokens(context) for context in nearest.CONTEXTS],
        columns=[str(streams) for streams in nearest.STREAMS],
        cells=nearest.cells(profile, node),
        down="context",
        across="streams",
        shades=SHADES,
        meanings=MEANINGS,
    )


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count < 1 << 20 else f"{count >> 20}M"


def cabling(fleet: Fleet) -> tuple[list[str], list[Cable]]:
    """The names of the nodes and the subnets that join them."""
    address = {
        (rank, link.hca): link.address
        for rank, node in enumerate(fleet.nodes)
        for link in node.links
    }
    found = [
        Cable(subnet=subnet, ends=tuple((r, hca, address[r, hca]) for r, hca in ports))
        for subnet, ports in cables(fleet).items()
    ]
    return [node.name for node in fleet.nodes], found
