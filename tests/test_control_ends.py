"""Both ends of the control connection over a real socket: second processes, strangers, a stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dsv41 import host
from dsv41.run import wire
from dsv41.run.control import Head, Tail
from dsv41.run.rounds import Identity, Times

TIMES = Times(beat=0.05, lost=2.0, handshake=1.0, reconnect=0.02, back_off=0.05)
OURS, OTHER = (Identity(digest=f"sha256:{name}", fingerprint="f") for name in ("ours", "other"))


class Ends:
    """Rank 0 of two, and as many processes that call themselves rank 1 as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "key"
        self.key.touch(mode=0o600)
        self.key.write_text(wire.new_key())
        self.port = host.free_port("127.0.0.1", 21000)
        self.address = f"127.0.0.1:{self.port}"
        self.said: list[str] = []
        self.head = Head(
            size=2, identity=OURS, key_file=self.key, times=TIMES, say=self.said.append
        )
        self.tails: list[Tail] = []

    async def tail(self, identity: Identity = OURS) -> tuple[Tail, list[str]]:
        """One more rank 1, and what it says."""
        said: list[str] = []
        made = Tail(rank=1, identity=identity, key_file=self.key, times=TIMES, say=said.append)
        self.tails.append(made)
        await made.open(self.address)
        return made, said

    async def running(self) -> Tail:
        """Both ranks in a round."""
        await self.head.open(self.address)
        first, _ = await self.tail()
        await until(lambda: 1 in self.head.rounds.present)
        self.head.send({"kind": "join", "after": 0})
        first.send({"kind": "join", "after": 0})
        await until(lambda: self.head.rounds.running)
        return first


async def until(true: Callable[[], bool], *, seconds: float = 5.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if true():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come")


@contextlib.asynccontextmanager
async def ends(folder: Path) -> AsyncIterator[Ends]:
    made = Ends(folder)
    try:
        yield made
    finally:
        for tail in made.tails:
            await tail.close()
        await made.head.close()


def asked(folder: Path, what: Callable[[Ends], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        async with ends(folder) as made:
            return await what(made)

    return asyncio.run(whole())


def test_a_second_process_of_a_rank_tries_ever_more_rarely(tmp_path: Path) -> None:
    async def work(at: Ends) -> tuple[list[str], list[str], int]:
        await at.running()
        second, said = await at.tail()
        await asyncio.sleep(1.5)  # 75 tries without a back-off, 6 or 7 with it
        return list(at.said), list(said), second.inbox.qsize()

    head, tail, tries = asked(tmp_path, work)
    assert [line for line in head if "rank 1 has a connection already" in line] == head
    assert len(head) == len(tail) == 1
    assert 3 <= tries <= 8


def test_a_second_process_with_another_plan_changes_nothing(tmp_path: Path) -> None:
    async def work(at: Ends) -> None:
        first = await at.running()
        second, _ = await at.tail(OTHER)
        async with asyncio.timeout(5):
            while (await second.inbox.get())["kind"] != "refused":
                pass
        assert at.head.rounds.absent == {}
        assert first._wire
        first._wire.writer.transport.abort()  # as when its machine dies
        for task in first._tasks:
            task.cancel()
        await until(lambda: not at.head.rounds.running)
        assert [says for _, says in at.head.rounds.failures.found] == ["rank 1 was lost"]

    asked(tmp_path, work)


@pytest.mark.parametrize("field", ["nonce", "proof"])
def test_half_a_character_is_a_strangers(tmp_path: Path, field: str) -> None:
    async def work(at: Ends) -> list[dict[str, Any]]:
        broken: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: broken.append(told))
        await at.head.open(at.address)
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        await reader.readline()
        half = {"hello": {"nonce": "\ud800" if field == "nonce" else ""}, "proof": "\ud800"}
        writer.write(json.dumps(half | ({"proof": ""} if field == "nonce" else {})).encode())
        writer.write(b"\n")
        assert await reader.read() == b""
        writer.close()
        await asyncio.sleep(0.05)
        return broken

    async def both(at: Ends) -> tuple[list[dict[str, Any]], list[str]]:
        return await work(at), at.said

    broken, said = asked(tmp_path, both)
    assert broken == []
    assert said == ["a connection from 127.0.0.1 was dropped: a line is not JSON"]


def test_a_stop_is_heard_while_the_port_is_not_to_be_had(tmp_path: Path) -> None:
    async def work(at: Ends) -> None:
        with socket.create_server(("127.0.0.1", at.port)):
            opening = asyncio.create_task(at.head.open(at.address))
            await asyncio.sleep(0.1)
            assert not opening.done()
            at.head.inbox.put_nowait({"kind": "left"})
            await asyncio.wait_for(opening, 2)  # it may take 60 s to give up

    asked(tmp_path, work)
