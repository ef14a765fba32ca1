"""One rank while its process lives: check the machine, wait for the round, run the engine, again.

It keeps the control connection, and writes its state file at each change.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dsv41 import foreground, images
from dsv41.errors import EngineFailed, Error, Unsafe
from dsv41.foreground import Foreground, Ran, checked, in_container
from dsv41.host.reach import Host
from dsv41.images import store
from dsv41.plan import LOCAL, Plan, Rank
from dsv41.run import RunDir, node, recheck, service_name, wedge
from dsv41.run.control import Head, Tail
from dsv41.run.ending import ending
from dsv41.run.rounds import Failures, Identity, Times
from dsv41.run.wire import Message

_ENDS = ("stop", "lost", "end", "left", "refused")


async def run_engine(at: Foreground, plan: Plan, here: Rank, environ: Mapping[str, str]) -> Ran:
    """Run the engine of a rank to its end."""
    if here.container:
        named = (*here.argv, "--group", service_name(plan)) if plan.engine == LOCAL else here.argv
        return await in_container(at, replace(here, argv=named), environ)
    return await at.run(_command(plan, here), {**environ, **here.env})


def _command(plan: Plan, rank: Rank) -> list[str]:
    """The argv to start; `python` is this interpreter, which has the engine that the Plan names."""
    program, *rest = rank.argv
    if program == "python":
        return [sys.executable, *rest, "--parent", str(os.getpid()), "--group", service_name(plan)]
    return [program, *rest]


class _Left(Exception):
    """Somebody stopped this rank on purpose."""


@dataclass(kw_only=True, slots=True)
class Seat:
    """One rank while its process lives."""

    plan: Plan
    here: Rank
    environ: Mapping[str, str]
    say: Callable[[str], None]
    plan_file: Path | None
    key_file: Path
    times: Times
    at: Foreground = field(init=False)
    state: node.State = field(init=False)
    link: Head | Tail = field(init=False)
    failures: Failures = field(init=False)
    image: str | None = None  # what the container engine here calls the Plan's image

    def __post_init__(self) -> None:
        long, short = foreground.CONTAINER_PATIENCE, foreground.TERM_PATIENCE
        patience = long if self.here.container else short
        self.at = Foreground(patience=patience)
        self.state = node.State(self.plan, self.here.rank, pid=os.getpid())
        self.failures = Failures(times=self.times)

    async def live(self) -> int:
        """All rounds; 0 after a stop. Whatever ends the rank is in its state file as well."""
        self.at.listen()
        self.link = self._new_link()
        self.at.told = functools.partial(self.link.inbox.put_nowait, {"kind": "left"})
        self.state.now("waiting", says="it begins")
        try:
            await self._all_rounds()
        except _Left:
            self.link.send({"kind": "leave"})
            self.state.now("stopped", says="it was stopped on purpose", exit=0)
        except Error as error:
            final = not isinstance(error, EngineFailed)
            says = f"{error.code} {error.says}"
            self.link.send({"kind": "ended", "says": says, "final": final})
            self.state.now("ended", says=error.says, code=error.code, exit=error.exit_status)
            raise
        except BaseException as error:
            # no cause that anybody foresaw: told here as well, or it would read as a KILL
            says = f"{type(error).__name__}: {error}"
            self.state.now("ended", says=says, exit=Error.exit_status)
            self.link.send({"kind": "ended", "says": says, "final": False})
            raise
        else:
            self.state.now("stopped", says="its engine ended by itself", exit=0)
        finally:
            await self.link.close()
        return 0

    def _new_link(self) -> Head | Tail:
        identity = Identity(digest=self.plan.digest, fingerprint=self.here.fingerprint)
        if self.here.rank == 0 or self.plan.control is None:
            return Head(
                size=len(self.plan.ranks) if self.plan.control else 1,
                identity=identity,
                key_file=self.key_file,
                times=self.times,
                say=self.say,
            )
        return Tail(
            rank=self.here.rank,
            identity=identity,
            key_file=self.key_file,
            times=self.times,
            say=self.say,
        )

    async def _all_rounds(self) -> None:
        before = node.read_state(RunDir.of(self.plan.state_dir), self.here.rank)
        if self.plan.control is None:  # no other rank to wait for, nobody to start it again
            await self._check()
            await self._round(1)
            return
        after = before.get("round", 0) if before.get("plan") == self.plan.digest else 0
        await self.link.open(self.plan.control, after=after if type(after) is int else 0)
        while True:
            try:
                await self._check()
            except EngineFailed as error:
                await self._pause(error)
                continue
            await self._round(await self._go())

    async def _check(self) -> None:
        """Look at this machine, as far as a look can tell whether the engine will start."""
        for what, check in recheck.before_round(self.plan, self.here, plan_file=self.plan_file):
            self.state.now("waiting", says=f"it checks {what}")
            await asyncio.to_thread(check)
            self._leave_if_told()
        await self._memory()
        if not self.here.container:
            return
        self.state.now("waiting", says="it checks the image")
        self.image = await asyncio.to_thread(images.require, self._target())
        self._leave_if_told()
        self.state.now("waiting", says="the preflight runs")
        self.at.again()
        here = replace(self.here, image=self.image)
        await checked(self.at, here, self.plan.engine, self.environ)
        self._leave_if_told()

    def _target(self) -> images.Target:
        return images.Target(
            host=Host(name=self.here.node, destination="local"),
            program=self.here.container or "podman",
            folder=store.folder_in(self.plan.state_dir),
            reference=self.here.image or "",
        )

    async def _memory(self) -> None:
        """The memory of an engine that has just ended comes back after a while."""
        deadline = time.monotonic() + self.times.memory
        need = recheck.needed(self.here)
        while recheck.memory_here().available < need and time.monotonic() < deadline:
            self.state.now("waiting", says="memory is not free yet")
            await asyncio.sleep(0.5)
            self._leave_if_told()
        recheck.memory(self.here, recheck.memory_here(), self.say)

    async def _pause(self, error: EngineFailed) -> None:
        """Wait before the next look at this machine, or give up with what was found."""
        pause = self.failures.note(time.monotonic(), f"{error.code} {error.says}")
        if pause is None or error.code == "D421":
            raise error
        self.say(f"{error.code} {error.says}")
        self.say(f"  fix: {error.fix}")
        self.link.send({"kind": "ended", "says": f"{error.code} {error.says}", "final": False})
        self.state.now("waiting", says=error.says, code=error.code)
        deadline = time.monotonic() + pause
        while time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            self._leave_if_told()

    async def _go(self) -> int:
        """Be ready, and wait for the round to open; its number."""
        self.at.again()
        self._join()
        while True:
            message = await self._next()
            kind, says = message.get("kind"), str(message.get("says", ""))
            if kind == "welcome":
                self._join()
            elif kind == "go":
                return int(message["round"])
            elif kind in ("wait", "lost"):
                self.state.now("waiting", says=says)
            else:
                self._over(message)

    def _join(self) -> None:
        self.link.send({"kind": "join", "after": self.state.round})

    async def _round(self, number: int) -> None:
        """Run the engine till it ends or the round does; an end of its own is told."""
        self.state.now("starting", round=number)
        self.say(f"round {number}")
        if isinstance(self.link, Tail):
            self.link.round = number
        began = time.monotonic()
        engine = asyncio.create_task(
            run_engine(self.at, self.plan, replace(self.here, image=self.image), self.environ)
        )
        inbox = self.link.inbox
        engine.add_done_callback(lambda _: inbox.put_nowait({"kind": "over"}))
        watch = asyncio.create_task(self._watch())
        why: Message | None = None
        try:
            while (kind := (message := await inbox.get()).get("kind")) != "over":
                if kind == "up":
                    self.state.now("running", round=number)
                elif kind == "stop" and message.get("round") != number:
                    continue  # of a round that is over
                elif why is None and kind in _ENDS:
                    why = message
                    self.say(f"round {number} ends: {message.get('says') or kind}")
                    if not self.at.halted:
                        self.at.halt()
        finally:
            watch.cancel()
        self._leave_if_told()
        if time.monotonic() - began >= self.times.healthy:
            self.failures.forget()
        if why is None:
            await self._ended(engine)
        else:
            self._over(why)
            self.state.now("waiting", says=str(why.get("says", "")), round=number)

    async def _ended(self, engine: asyncio.Task[Ran]) -> None:
        """The engine ended by itself: tell, and go on only where a new start may help."""
        try:
            ran = await engine
            if self.plan.control is None and not ran.status:
                return
            error: Error = ending(ran, engine=self.plan.engine)
        except EngineFailed as failed:  # no container could be started
            error = failed
        if not isinstance(error, EngineFailed) or self.plan.control is None:
            raise error
        self.say(f"{error.code} {error.says}")
        self.link.send({"kind": "ended", "says": f"{error.code} {error.says}", "final": False})
        self.state.now("waiting", says=error.says, code=error.code)

    async def _watch(self) -> None:
        """Rank 0 alone: tell when the engine serves, then look whether it stands still."""
        if self.here.rank:
            return
        url, engine = self.plan.url, self.plan.engine
        pause = min(1.0, self.times.sample)
        while not await asyncio.to_thread(wedge.ready, url, engine):  # noqa: ASYNC110 - a look
            await asyncio.sleep(pause)
        self.link.inbox.put_nowait({"kind": "up"})
        self.link.send({"kind": "up"})
        watch = wedge.Watch(engine=engine, window=self.times.window)
        while True:
            power = None if engine == LOCAL else await asyncio.to_thread(wedge.power)
            series = await asyncio.to_thread(wedge.look, url)
            if says := watch.add(series, now=time.monotonic(), power=power):
                self.link.send({"kind": "wedged", "says": says})
                return
            await asyncio.sleep(self.times.sample)

    async def _next(self) -> Message:
        self._leave_if_told()
        message = await self.link.inbox.get()
        self._leave_if_told()
        return message

    def _leave_if_told(self) -> None:
        if self.at.stopped:
            raise _Left

    def _over(self, message: Message) -> None:
        """Raise what ends this rank for good; other messages do not."""
        says = str(message.get("says", ""))
        if message["kind"] == "end":
            fix = "see the logs of all ranks: dsv41 logs"
            raise EngineFailed("D426", f"All ranks end: {says}.", fix=fix)
        if message["kind"] == "refused":
            raise Unsafe(
                "D422",
                f"Rank 0 refuses rank {self.here.rank}: {says}.",
                fix="dsv41 serve sends one Plan to every node",
            )
