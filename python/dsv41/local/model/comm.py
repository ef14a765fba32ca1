"""How the ranks of one model talk: sum, gather and broadcast of tensors.

`Alone` is one rank; `Gloo` is torch's gloo transport over TCP, one object a process. Every call is
a collective: all ranks make the same calls in the same order, with the same shapes.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from dsv41.errors import EngineFailed, UsageError

if TYPE_CHECKING:
    from torch import Tensor


class Comm(Protocol):
    """A group of `world` ranks, seen by rank `rank`."""

    rank: int
    world: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up all ranks' tensors in place; every rank has the same bits afterwards."""

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """All ranks' tensors in rank order, on rank 0; None elsewhere."""

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite every rank's tensor by rank 0's, in place."""

    def close(self) -> None:
        """Leave the group."""


class Alone:
    """A group of one."""

    rank = 0
    world = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Nothing to add."""
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """Give the one tensor there is."""
        return [tensor]

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Nothing to take over."""
        return tensor

    def close(self) -> None:
        """Nothing to leave."""


class Gloo:
    """A group over TCP: rank 0 listens at `master`, the others find each other through it.

    The transport binds to the address of this machine that faces the master, so that ranks on
    loopback are not reachable from outside and no host name has to resolve.

    Args:
        master: HOST:PORT of rank 0.
        rank: this process' place, 0 <= rank < world.
        world: number of ranks.
        group: a name that all ranks of one service have; a rank of another one that comes to this
            meeting point by mistake finds nobody and takes no place.
        timeout: seconds after which a silent peer counts as dead, in every call. A peer whose
            process ended is noticed at once.

    Raises:
        UsageError: D056, when `master` is no HOST:PORT.
        EngineFailed: D057, when not all ranks come together in time; later, from every call, when a
            peer died or stayed silent.
    """

    def __init__(
        self, master: str, rank: int, world: int, timeout: float, *, group: str = "dsv41"
    ) -> None:
        host, port = _address(master)
        self.rank = rank
        self.world = world
        self._timeout = timeout
        span = timedelta(seconds=timeout)
        try:
            store = _store(host, port, rank=rank, world=world, span=span)
            self._group: Any = _connect(
                PrefixStore(group, store), rank=rank, world=world, host=host, port=port, span=span
            )
        except RuntimeError as error:
            raise self._failure(error, "come together") from error

    def sum(self, tensor: Tensor) -> Tensor:
        """All-reduce; gloo reduces each part in one place, so all ranks get the same bits."""
        self._wait(self._group.allreduce([tensor]), "add up")
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """Gather equal shapes on rank 0."""
        if self.rank:
            self._wait(self._group.gather([], tensor, 0), "gather")
            return None
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        self._wait(self._group.gather(parts, tensor, 0), "gather")
        return parts

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Broadcast from rank 0."""
        self._wait(self._group.broadcast(tensor, 0), "broadcast")
        return tensor

    def close(self) -> None:
        """Shut the group down; threads left behind would abort the process at its exit."""
        self._group.shutdown()

    def _wait(self, work: Any, doing: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise self._failure(error, doing) from error

    def _failure(self, error: RuntimeError, doing: str) -> EngineFailed:
        reason = str(error).splitlines()[0]
        return EngineFailed(
            "D057",
            f"Rank {self.rank} of {self.world} could not {doing} with the others"
            f" within {self._timeout:g} s: {reason}",
            fix="read the log of every rank: the first to end says why; then serve again",
        )


def _store(host: str, port: int, *, rank: int, world: int, span: timedelta) -> TCPStore:
    """Where the ranks meet; rank 0 listens at `host` alone.

    A TCPStore of its own accord listens on every address of the machine, so it is given a socket.
    """
    if rank:
        return TCPStore(host, port, world, is_master=False, timeout=span)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    try:
        listener = socket.create_server((host, port), family=family, backlog=2 * world)
    except OSError as error:
        raise RuntimeError(f"{host}:{port}: {error.strerror}") from error
    return TCPStore(
        host, port, world, is_master=True, timeout=span, master_listen_fd=listener.detach()
    )


def _connect(
    store: PrefixStore, *, rank: int, world: int, host: str, port: int, span: timedelta
) -> Any:
    """Make a gloo group on the interface that faces the master."""
    gloo: Any = ProcessGroupGloo  # its typed stub lacks most of what it has
    options = gloo._Options()  # noqa: SLF001 - the only way to choose the address
    options._devices = [gloo.create_device(hostname=_own_address(host, port))]  # noqa: SLF001
    options._timeout = span  # noqa: SLF001
    options._threads = 1  # noqa: SLF001 - one call at a time
    return gloo(store, rank, world, options)


def _own_address(host: str, port: int) -> str:
    """Address of this machine on the way to the master; a datagram socket sends nothing here."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _address(master: str) -> tuple[str, int]:
    host, _, port = master.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(
            "D056",
            f"The meeting point of the ranks must be HOST:PORT, found {master!r}.",
            fix="give --master with an address and a port, as in 127.0.0.1:20000",
        )
    return host.strip("[]"), int(port)
