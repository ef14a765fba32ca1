"""The control connection: rank 0 listens, every other rank keeps one connection to it.

`Head` carries the orders of `rounds.Rounds` to all ranks and their events to it; `Tail` is the
other end. Both give a rank an `inbox` of messages and take its own with `send`, so that a rank
need not know which one it has. A stranger that connects and says nothing, floods or sends garbage
is dropped at a deadline and told about; it holds one of a bounded number of places till then.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dsv41.errors import EngineFailed, Error
from dsv41.run.rounds import Identity, Order, Rounds, Times, differs
from dsv41.run.wire import LIMIT, SAYS, Gone, Message, Stranger, Wire, close, greet, introduce
from dsv41.run.wire import read_key as key_of

STRANGERS = 32  # connections without a proof at once; the oldest gives way
QUIET = 30.0  # seconds between two lines about strangers


@dataclass(kw_only=True, slots=True)
class Head:
    """Rank 0's end: its own inbox, the connections of the others, and the rounds."""

    size: int
    identity: Identity
    key_file: Path
    times: Times
    say: Callable[[str], None]
    inbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    rounds: Rounds = field(init=False)
    wires: dict[int, tuple[str, Wire]] = field(default_factory=dict)
    _refused: dict[int, Identity] = field(default_factory=dict)
    _strangers: dict[asyncio.Task[None], None] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _ticker: asyncio.Task[None] | None = None
    _told: float = 0.0
    _untold: int = 0

    def __post_init__(self) -> None:
        self.rounds = Rounds(size=self.size, times=self.times)

    async def open(self, address: str, *, after: int = 0) -> None:
        """Listen, and be present as rank 0; EngineFailed D429 when the port cannot be had."""
        if self.size > 1:
            key_of(self.key_file)
            host, _, port = address.rpartition(":")
            self._server = await self._listen(host, int(port))
        self._ticker = asyncio.create_task(self._tick())
        self._carry(self.rounds.arrives(0, after=after, now=time.monotonic()))

    def send(self, message: Message) -> None:
        """What rank 0 has to say itself."""
        self._heard(0, message)

    async def close(self) -> None:
        """End every connection; the other ranks stop their engines and wait for a new rank 0."""
        if self._ticker:
            self._ticker.cancel()
        if self._server:
            self._server.close()
        for task in list(self._strangers):
            task.cancel()
        wires, self.wires = [wire for _, wire in self.wires.values()], {}
        await asyncio.gather(*(wire.close() for wire in wires))

    async def _listen(self, host: str, port: int) -> asyncio.Server | None:
        """The server; None where this rank was stopped before the port could be had."""
        deadline = time.monotonic() + self.times.bind
        while self.inbox.empty():  # all that can be there yet is that somebody stopped this rank
            try:
                return await asyncio.start_server(self._arrived, host, port, limit=LIMIT)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise EngineFailed(
                        "D429",
                        f"Rank 0 cannot listen at {host}:{port}: {error.strerror or error}.",
                        fix=f"see who has the port: ss -ltnp 'sport = :{port}'; the address must "
                        "be this node's own",
                    ) from error
            await asyncio.sleep(min(1.0, self.times.beat))
        return None

    async def _tick(self) -> None:
        """Beats, and rounds that were held back."""
        beaten = 0.0
        while True:
            now = time.monotonic()
            self._carry(self.rounds.tick(now=now))
            if now - beaten >= self.times.beat:
                beaten = now
                for _, wire in self.wires.values():
                    wire.send({"kind": "beat"})
            await asyncio.sleep(min(0.25, self.times.beat / 2))

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its end."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has one
        while len(self._strangers) >= STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
            self._complain("somewhere", f"more than {STRANGERS} prove nothing")
        self._strangers[task] = None
        peer = (writer.get_extra_info("peername") or ("?",))[0]
        try:
            async with asyncio.timeout(self.times.handshake):
                wire, hello = await greet(reader, writer, key_of(self.key_file))
            del self._strangers[task]
            await self._seated(wire, hello, peer)
        except TimeoutError:
            self._complain(peer, "it proved nothing in time")
        except Stranger as error:
            self._complain(peer, error.says)
        except (Gone, Error) as error:
            self._complain(peer, str(error))
        except asyncio.CancelledError:
            pass  # it gave way to another, or rank 0 ends
        finally:
            self._strangers.pop(task, None)
            await close(writer)

    async def _seated(self, wire: Wire, hello: Message, peer: str) -> None:
        """A peer that knows the key: which rank it is, and what it says till it is lost."""
        rank, seat, after = hello.get("rank"), str(hello.get("seat")), hello.get("round")
        if type(rank) is not int or not 0 < rank < self.size or type(after) is not int:
            raise Stranger(f"it says that it is rank {rank!r:.20}")
        found = Identity(digest=str(hello.get("digest")), fingerprint=str(hello.get("fingerprint")))
        if wrong := differs(found, self.identity):
            self.say(f"rank {rank} at {peer} is refused: {wrong}")
            if rank not in self.wires:  # else it is a second one, and says nothing about the first
                self.rounds.absent[rank] = "it differs from rank 0"
                self._refused[rank] = found
                self._say_if_odd()
            wire.send({"kind": "refused", "says": wrong[:SAYS]})
            return
        if (before := self.wires.get(rank)) and before[0] != seat:
            self._complain(peer, f"rank {rank} has a connection already")
            wire.send({"kind": "taken", "says": f"rank {rank} has a connection already"})
            return
        self.wires[rank] = (seat, wire)
        self._refused.pop(rank, None)
        wire.send({"kind": "welcome"})
        self._carry(self.rounds.arrives(rank, after=after, now=time.monotonic()))
        try:
            while self.wires.get(rank) == (seat, wire):
                self._heard(rank, await wire.hear(seconds=self.times.lost))
        except Gone as error:
            self.say(f"rank {rank} at {peer} is lost: {error.says}")
        finally:
            if self.wires.get(rank) == (seat, wire):
                del self.wires[rank]
                self._carry(self.rounds.lost(rank, now=time.monotonic()))

    def _say_if_odd(self) -> None:
        """Where all others agree with one another, it is this rank that has to be mended."""
        if len(self._refused) == self.size - 1 > 1 and len(set(self._refused.values())) == 1:
            self.say("all other ranks are alike: it is rank 0 that has another Plan or fingerprint")

    def _heard(self, rank: int, message: Message) -> None:
        now, says = time.monotonic(), str(message.get("says", ""))[:SAYS]
        kind = message.get("kind")
        if kind == "join":
            after = message.get("after")
            after = after if type(after) is int else 0
            self._carry(self.rounds.joins(rank, after=after, now=now))
        elif kind == "ended":
            self.say(f"rank {rank}: {says}")
            self._carry(self.rounds.ends(rank, says, final=message.get("final") is True, now=now))
        elif kind == "leave":
            self._carry(self.rounds.leaves(rank, now=now))
        elif kind == "wedged" and rank == 0:
            self._carry(self.rounds.wedged(says, now=now))
        elif kind == "up" and rank == 0 and self.rounds.running:
            ranks = sorted(self.rounds.present)
            self._carry([Order(rank=r, kind="up", round=self.rounds.round) for r in ranks])

    def _carry(self, orders: list[Order]) -> None:
        for order in orders:
            message = {"kind": order.kind, "round": order.round, "says": order.says[:SAYS]}
            if order.rank == 0:
                self.inbox.put_nowait(message)
            elif order.rank in self.wires:
                self.wires[order.rank][1].send(message)

    def _complain(self, peer: str, says: str) -> None:
        """Tell about a stranger, but not so often that it fills the log."""
        self._untold += 1
        now = time.monotonic()
        if self._told and now - self._told < QUIET:
            return
        more = f" ({self._untold - 1} more before)" if self._untold > 1 else ""
        self.say(f"a connection from {peer} was dropped: {says}{more}")
        self._told, self._untold = now, 0


@dataclass(kw_only=True, slots=True)
class Tail:
    """The end of any other rank: one connection to rank 0, made again whenever it is lost."""

    rank: int
    identity: Identity
    key_file: Path
    times: Times
    say: Callable[[str], None]
    inbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    round: int = 0
    _seat: str = field(default_factory=lambda: secrets.token_hex(8))
    _pause: float = 0.0
    _told: str = ""
    _wire: Wire | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def open(self, address: str, *, after: int = 0) -> None:
        """Begin to connect; Unsafe D420 when there is no key."""
        key_of(self.key_file)
        self.round = after
        host, _, port = address.rpartition(":")
        self._tasks = [
            asyncio.create_task(self._keep(host, int(port))),
            asyncio.create_task(self._beat()),
        ]

    def send(self, message: Message) -> None:
        """Tell rank 0, where there is a connection."""
        if self._wire:
            self._wire.send(message)

    async def close(self) -> None:
        """End the connection; what was sent before still arrives."""
        for task in self._tasks:
            task.cancel()
        if self._wire:
            await self._wire.close()

    async def _keep(self, host: str, port: int) -> None:
        self._pause = self.times.reconnect
        while True:
            try:
                await self._listen(await self._connect(host, port))
            except (Gone, Error, OSError, TimeoutError) as error:
                says = error.says if isinstance(error, Gone | Error) else _why(error)
                if says != self._told:
                    self.say(f"rank 0 at {host}:{port}: {says}")
                self._told = says
                self.inbox.put_nowait({"kind": "lost", "says": f"rank 0 is not there: {says}"})
            await asyncio.sleep(self._pause)
            self._pause = min(self.times.lost, 2 * self._pause)

    async def _connect(self, host: str, port: int) -> Wire:
        async with asyncio.timeout(self.times.handshake):
            reader, writer = await asyncio.open_connection(host, port, limit=LIMIT)
            try:
                hello = {
                    "rank": self.rank,
                    "seat": self._seat,
                    "round": self.round,
                    "digest": self.identity.digest,
                    "fingerprint": self.identity.fingerprint,
                }
                return await introduce(reader, writer, key_of(self.key_file), hello)
            except BaseException:
                await close(writer)
                raise

    async def _listen(self, wire: Wire) -> None:
        """Hear till the connection ends."""
        self._wire = wire
        try:
            while True:
                message = await wire.hear(seconds=self.times.lost)
                if message.get("kind") == "taken":
                    raise Gone(str(message.get("says")))
                if message.get("kind") == "welcome":  # a proof alone is no place
                    self._pause, self._told = self.times.reconnect, ""
                if message.get("kind") != "beat":
                    self.inbox.put_nowait(message)
        finally:
            self._wire = None
            with contextlib.suppress(OSError):
                await wire.close()

    async def _beat(self) -> None:
        while True:
            self.send({"kind": "beat"})
            await asyncio.sleep(self.times.beat)


def _why(error: OSError | TimeoutError) -> str:
    return getattr(error, "strerror", None) or "it does not answer"
