"""The groups of ranks over real TCP: collectives, and what a lost peer does.

The ranks are threads here, each with its own connections; tests/test_rank.py has them as processes.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import torch

from dsv41.errors import EngineFailed, UsageError
from dsv41.local.model.comm import Alone, Gloo

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
TIMEOUT = 2.0  # seconds that a silent peer is waited for


@pytest.fixture
def master() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def each(master: str, world: int, work: Callable[[Gloo], T]) -> list[T]:
    def one(rank: int) -> T:
        group = Gloo(master, rank, world, TIMEOUT)
        try:
            return work(group)
        finally:
            group.close()

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))


def test_collectives(master: str) -> None:
    def work(group: Gloo) -> list[object]:
        rank = group.rank
        total = group.sum(torch.tensor([1.0, 10.0]) * (rank + 1))
        parts = group.gather(torch.tensor([[rank, 7]]))
        word = group.broadcast(torch.tensor([5 + rank]))
        return [total.tolist(), parts and [part.tolist() for part in parts], word.tolist()]

    answers = each(master, 3, work)
    assert answers[0] == [[6.0, 60.0], [[[0, 7]], [[1, 7]], [[2, 7]]], [5]]
    assert answers[1:] == [[[6.0, 60.0], None, [5]]] * 2


def test_nothing_listens_beyond_loopback(master: str) -> None:
    """A TCPStore left to itself listens on every address of the machine."""

    def work(group: Gloo) -> set[str]:
        group.sum(torch.zeros(1))
        return listening_addresses()

    own = {"0100007F"}
    assert set.union(*each(master, 2, work)) - BEFORE <= own


def listening_addresses() -> set[str]:
    """Hexadecimal addresses of this process' listeners (proc_net_tcp(5), state 0A)."""
    inodes = {str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(words[1].split(":")[0])
    return found


BEFORE = listening_addresses()


def test_every_rank_gets_the_same_bits(master: str) -> None:
    def work(group: Gloo) -> torch.Tensor:
        torch.manual_seed(group.rank)
        return group.sum(torch.randn(10_000))

    first, *others = each(master, 3, work)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("silent", "least", "most"),
    [(0.0, 0.0, TIMEOUT - 0.5), (2 * TIMEOUT, TIMEOUT - 0.5, 2 * TIMEOUT - 0.1)],
    ids=["gone", "silent"],
)
def test_a_lost_peer_fails_the_others(
    master: str, silent: float, least: float, most: float
) -> None:
    def work(group: Gloo) -> float | None:
        group.sum(torch.ones(1))
        if group.rank == 2:
            time.sleep(silent)
            return None
        began = time.monotonic()
        with pytest.raises(EngineFailed, match=r"D057 Rank . of 3 could not add up"):
            group.sum(torch.ones(1))
        return time.monotonic() - began

    for seconds in each(master, 3, work)[:2]:
        assert seconds is not None
        assert least <= seconds <= most


def test_a_stranger_takes_no_place(master: str) -> None:
    """A rank of another service comes to our meeting point: it finds nobody, we lose nothing."""

    def stranger() -> None:
        with pytest.raises(EngineFailed):
            Gloo(master, 1, 2, TIMEOUT, group="another")

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stranger)
        answers = each(master, 2, lambda group: group.sum(torch.ones(1)).item())
        waiting.result()
    assert answers == [2.0, 2.0]


def test_a_rank_that_never_comes(master: str) -> None:
    began = time.monotonic()
    with pytest.raises(EngineFailed, match=r"D057 Rank 0 of 2 could not come together .* 1 s"):
        Gloo(master, 0, 2, 1.0)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("master", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_a_meeting_point_is_host_and_port(master: str) -> None:
    with pytest.raises(UsageError, match="D056"):
        Gloo(master, 0, 2, 1.0)


def test_one_rank_needs_nobody() -> None:
    alone, tensor = Alone(), torch.tensor([3.0])
    assert alone.sum(tensor) is tensor
    assert alone.gather(tensor) == [tensor]
    assert alone.broadcast(tensor) is tensor
    alone.close()
