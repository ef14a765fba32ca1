"""The Steps of a Plan: one command each, on which node, with its effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsv41.engines.trees import TREES
from dsv41.fleet import Fleet
from dsv41.profile import Profile

MARKER = "SWITCHLESS_RING_ONLY"  # a string in every patched libnccl and in no stock one


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One command of a Plan and what it does to the node: offline, reads hosts, changes hosts."""

    id: str
    node: str
    effect: str
    command: tuple[str, ...]


def steps_of(profile: Profile, fleet: Fleet, *, image: str | None) -> tuple[Step, ...]:
    """Rows first; then workers before the head, which waits for them."""
    workers_first = [*range(1, len(fleet.nodes)), 0]
    ranks = [_of_rank(fleet, "rank", rank, ("rank", "exec")) for rank in workers_first]
    if not fleet.contained:
        return (_pack_here(profile, fleet), *ranks)
    return (*_preparation(profile, fleet, image=image), *ranks)


def _pack_here(profile: Profile, fleet: Fleet) -> Step:
    command = ("dsv41", "pack", "--profile", profile.name, "--tp", str(profile["tp"]))
    return Step(
        id="pack",
        node=fleet.nodes[0].name,
        effect="changes hosts",
        command=(*command, "--state-dir", fleet.state_dir),
    )


def _preparation(profile: Profile, fleet: Fleet, *, image: str | None) -> Iterator[Step]:
    """What every node needs before its rank may start, in the order of the ranks."""
    for rank in range(len(fleet.nodes)):
        yield _of_rank(fleet, "build", rank, ("build",))
        if TREES[profile.tree].maker:
            yield _of_rank(fleet, "weights", rank, ("rank", "weights"))
        if profile.get("nccl_build") == "sparkring":
            yield from _marker(profile, fleet, rank, image)
        if fleet.sps_table or fleet.sts_table:
            yield _tables(fleet, rank)
        yield _of_rank(fleet, "pack", rank, ("pack",))


def _of_rank(fleet: Fleet, name: str, rank: int, verb: tuple[str, ...]) -> Step:
    return Step(
        id=f"{name}-{rank}",
        node=fleet.nodes[rank].name,
        effect="changes hosts",
        command=("dsv41", *verb, "--plan", fleet.plan_file, "--rank", str(rank)),
    )


def _tables(fleet: Fleet, rank: int) -> Step:
    """Pushed by whoever has the fleet file and the tables; the other nodes of the call agree."""
    return Step(
        id=f"tables-{rank}",
        node=fleet.nodes[rank].name,
        effect="changes hosts",
        command=("dsv41", "share", "--tables", "--fleet", "fleet.toml"),
    )


def _marker(profile: Profile, fleet: Fleet, rank: int, image: str | None) -> Iterator[Step]:
    """The patched NCCL says so itself; without it the ring dies after it has connected."""
    node = fleet.nodes[rank]
    grep: tuple[str, ...] = ()
    if node.nccl_library:
        grep = ("grep", "-c", MARKER, node.nccl_library)
    elif image:
        run = (fleet.container_of(rank), "run", "--rm", "--pull=never", "--entrypoint=grep")
        grep = (*run, image, "-c", MARKER, TREES[profile.tree].nccl_path)
    if grep:
        yield Step(id=f"nccl-{rank}", node=node.name, effect="reads hosts", command=grep)
