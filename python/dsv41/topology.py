"""Each topology in data: which pairs of nodes a cable must join; a switch joins all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

# subnet -> (rank, hca) of every port in it
Cables = Mapping[str, Sequence[tuple[int, str]]]


def faults(topology: str, names: Sequence[str], cables: Cables) -> Iterator[str]:
    """What about the cables cannot be true of the topology, in words, with the nodes' names."""
    if topology == "switch":
        return _of_switch(names, cables)
    return _of_direct(topology, names, cables)


def ends(names: Sequence[str], ports: Sequence[tuple[int, str]]) -> str:
    """Ports in words: `spark1 rocep1s0f0, spark2 rocep1s0f0`."""
    return ", ".join(f"{names[rank]} {hca}" for rank, hca in ports)


def _of_switch(names: Sequence[str], cables: Cables) -> Iterator[str]:
    for network, ports in cables.items():
        missing = set(range(len(names))) - {rank for rank, _ in ports}
        if missing:
            without = ", ".join(names[rank] for rank in sorted(missing))
            yield f"subnet {network} of the switch misses a node: {without}"


def _of_direct(topology: str, names: Sequence[str], cables: Cables) -> Iterator[str]:
    size = len(names)
    if topology == "triangle" and size != 3:
        yield f"a triangle has 3 nodes, not {size}"
    for network, ports in cables.items():
        if len(ports) != 2:
            yield f"subnet {network} is one cable and needs 2 ends, not {ends(names, ports)}"
    pairs = {frozenset((rank, (rank + 1) % size)) for rank in range(size)}
    joined = {frozenset(rank for rank, _ in ports) for ports in cables.values()}
    for pair in sorted(map(sorted, pairs - joined)):
        yield f"no cable (subnet) joins {_both(names, pair)}"
    for pair in sorted(map(sorted, joined - pairs)):
        yield f"a cable joins {_both(names, pair)}, which are not neighbors"


def _both(names: Sequence[str], pair: Sequence[int]) -> str:
    return " and ".join(names[rank] for rank in pair)
