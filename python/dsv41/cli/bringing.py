"""`dsv41 serve --fleet`: from nothing to an endpoint that was asked and answered."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import threading
import time
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41 import digests, host
from dsv41 import smoke as ladder
from dsv41.api import Endpoint
from dsv41.cli import crews, gate, lines, preparing, service
from dsv41.engines.asking import ASKING
from dsv41.errors import INTERRUPTED, CheckFailed, EngineFailed, Error, Unsafe
from dsv41.run import fleet, ready, timeline, warmup
from dsv41.share import tables

if TYPE_CHECKING:
    from dsv41.cli.planning import Made
    from dsv41.cli.talk import Talk
    from dsv41.host.reach import Host

EVERY = 1.0  # seconds between two looks at the endpoint
LOOK = 5.0  # and between two looks at the ranks
ENDED = ("ended", "stopped")


@dataclass(kw_only=True)
class Start:
    """One start of a fleet: what it did so far."""

    args: Namespace
    made: Made
    crew: fleet.Crew
    talk: Talk
    began: float = field(default_factory=time.monotonic)
    found: list[int] = field(default_factory=list)  # ranks that ran this Plan before it
    started: list[int] = field(default_factory=list)
    ready: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    keys: bytes | None = field(default=None, repr=False)

    def note(self, what: str) -> None:
        """Remember after how many seconds something was there."""
        self.seconds[what] = round(time.monotonic() - self.began, 2)


def serve(args: Namespace, made: Made, talk: Talk) -> int:
    """Bring the fleet up and follow its logs (or return, with --detach).

    Ctrl-C leaves running what runs and says how to stop it; a TERM stops it, where it is of this
    Plan: before that is known nothing is stopped.
    """
    digests.require(made.plan.ranks[0].image, profile=made.plan.profile)
    keys = _keys(args)
    start = Start(args=args, made=made, crew=fleet.Crew.of(made.fleet), talk=talk, keys=keys)
    try:
        with host.term_raises():
            with start.crew.claimed(_who()):
                _bring(start)
            return 0 if args.detach else lines.follow(start.crew, talk, quiet=True)
    except KeyboardInterrupt:
        talk.say(f"detached; what was started goes on: {_ranks(start.started) or 'nothing'}")
        _say_next(start)
        return 0 if start.ready else INTERRUPTED
    except host.Terminated:
        ours = sorted({*start.found, *start.started})
        talk.say(f"asked to stop: {_ranks(ours) or 'nothing was started, and nothing is stopped'}")
        _end(start, ours)
        return 0
    except Error:
        _undo(start)
        raise
    finally:
        start.crew.close()


def _keys(args: Namespace) -> bytes | None:
    """The keys of --api-key-file, which `serve` puts on the head; checked before all else."""
    if args.api_key_file is None:
        return None
    from dsv41.local.http.keys import read_keys  # noqa: PLC0415 - only there with the local engine

    read_keys(args.api_key_file)
    content: bytes = args.api_key_file.read_bytes()
    return content


def _put_keys(start: Start) -> None:
    if start.keys is not None:
        place = preparing.key_place(start.made.fleet)
        start.crew.hosts[0].put(start.keys, place, mode=0o600, sudo=True)


def _bring(start: Start) -> None:
    crew, plan, talk = start.crew, start.made.plan, start.talk
    crew.each(lambda _, at: crew.install(at))
    _put_keys(start)
    accepted = gate.judge(start.made, crew, start.args.accept, talk)
    alive = _alive(start)
    if len(alive) < len(plan.ranks):
        preparing.image(start.args, start.made, crew, talk)
        start.note("image")
        preparing.carry_out(crew, plan, talk)
        start.note("rows")
        tables.push(start.made.fleet, crew.named)
        crew.push(plan, key=crew.control_key(alive))
        gate.keep(crew, accepted)
        _start_ranks(start, [r for r in range(len(plan.ranks)) if r not in alive])
    _wait(start)
    key = crews.key_of(crew, plan)
    said = ready.first_answer(plan, key=key, seconds=120)
    start.ready = True
    start.note("answer")
    talk.say(f"ready after {start.seconds['answer']:.1f} s; 19 + 23: {said}")
    _warm_up(start, key)
    _smoke(start, key)
    _announce(start)


def _alive(start: Start) -> list[int]:
    """The ranks that run this Plan; Unsafe when another one runs, or all of them serve."""
    plan, crew = start.made.plan, start.crew
    looks = crew.each(crew.look)
    alive = [rank for rank, look in enumerate(looks) if look["alive"]]
    stop = f"dsv41 stop --fleet {start.args.fleet}"
    for rank in alive:
        if looks[rank]["plan"] not in (None, plan.digest):
            raise Unsafe(
                "D435",
                f"{crew.hosts[rank].name} runs rank {rank} of another Plan: expected "
                f"{plan.digest[:19]}, found {str(looks[rank]['plan'])[:19]}.",
                fix=stop,
            )
    if len(alive) == len(plan.ranks) and not ready.why_not(plan):
        raise Unsafe("D063", f"This fleet serves already, at {plan.url}.", fix=stop)
    start.found = [rank for rank in alive if looks[rank]["plan"] == plan.digest]
    if alive:
        start.talk.say(f"going on: {_ranks(alive)} of this Plan run already")
    return alive


def _start_ranks(start: Start, ranks: list[int]) -> None:
    """Workers first, all at once; the head last, which waits for them."""
    crew = start.crew
    head = [rank for rank in ranks if rank == 0]
    for group in ([rank for rank in ranks if rank], head):
        if group:
            start.started += group
            crew.each(crew.start, ranks=group)
            start.talk.say(f"started {_ranks(group)}")
    start.note("started")


def _wait(start: Start) -> None:
    """Until the endpoint says that it is ready; EngineFailed when a rank ends for good."""
    crew, plan, talk = start.crew, start.made.plan, start.talk
    asking, over = ASKING[plan.engine], threading.Event()
    tracks = [
        timeline.Track(name=at.name, rank=rank, engine=plan.engine)
        for rank, at in enumerate(crew.hosts)
    ]
    for track, at in zip(tracks, crew.hosts, strict=True):
        timeline.watch(at, str(crew.run.log_file(track.rank)), track, over=over)
    until, looked = time.monotonic() + asking.boot, time.monotonic()
    talk.say(f"waiting for {plan.url}, {asking.usual}")
    try:
        with talk.board() as board:
            while wrong := ready.why_not(plan):
                board.show([t.says for t in tracks], [t.line() for t in tracks])
                if time.monotonic() - looked > LOOK:
                    _look(start, tracks)
                    looked = time.monotonic()
                if time.monotonic() > until:
                    raise _late(start, wrong)
                time.sleep(EVERY)
    finally:
        over.set()
    start.note("listening")


def _look(start: Start, tracks: list[timeline.Track]) -> None:
    found = start.crew.tried(start.crew.look)
    for track in tracks:
        look = found[track.rank]
        if isinstance(look, Error):
            track.state = look.code  # a lost link is the control connection's matter
            continue
        track.state = str(look["state"])
        if not look["alive"] and look["state"] in ENDED:
            raise EngineFailed(
                "D436",
                f"{track.name}: rank {track.rank} has ended with {look.get('exit')}: "
                f"{look.get('code') or ''} {look['says'] or track.last_line}".rstrip(),
                fix=f"dsv41 logs --fleet {start.args.fleet} --rank {track.rank}",
            )


def _late(start: Start, wrong: str) -> EngineFailed:
    return EngineFailed(
        "D066",
        f"The fleet was not ready within {ASKING[start.made.plan.engine].boot:.0f} s ({wrong}).",
        fix=f"dsv41 logs --fleet {start.args.fleet}",
    )


def _warm_up(start: Start, key: str | None) -> None:
    plan, talk = start.made.plan, start.talk
    endpoint = Endpoint(url=plan.url, key=key, timeout=600)
    for words, seconds in warmup.lengths(endpoint, ASKING[plan.engine].words):
        talk.say(f"warm-up: a prompt of {words} words, {seconds:.1f} s")
    slots = start.made.profile.integer("slots")
    warmup.batch(endpoint, slots)
    talk.say(f"warm-up: a batch of {slots} is prose")
    start.note("warm")


def _smoke(start: Start, key: str | None) -> None:
    if not start.args.skip_smoke:
        endpoint = Endpoint(url=start.made.plan.url, key=key, timeout=600)
        failed = []
        for step in ladder.climb(endpoint):
            start.talk.say(service.step_line(step))
            failed += [] if step["ok"] else [step["name"]]
        if failed:
            raise CheckFailed(
                "D438",
                f"The fleet serves, but smoke failed: {', '.join(failed)}.",
                fix=f"dsv41 smoke --fleet {start.args.fleet}; dsv41 stop --fleet "
                f"{start.args.fleet}",
            )
        start.note("smoke")


def _announce(start: Start) -> None:
    plan, talk = start.made.plan, start.talk
    result: dict[str, Any] = {"url": plan.url, "digest": plan.digest, "seconds": start.seconds}
    folder = host.make_folder(Path(start.args.state_dir) / "receipts")
    now = host.utc_now()
    receipt = host.write_receipt(
        host.unused(folder / f"serve-{now.replace(':', '')}.json"),
        command=f"dsv41 serve --profile {plan.profile} --fleet {start.args.fleet}",
        started=now,
        result=result,
    )
    talk.say(f"receipt: {receipt}")
    _say_next(start)
    if start.args.json:
        ranks = [r.node for r in plan.ranks]
        talk.document("serve", status="ready", nodes=ranks, receipt=str(receipt), **result)
    else:
        talk.put(f"ready {plan.url}")


def _say_next(start: Start) -> None:
    at = f"--fleet {shlex.quote(str(start.args.fleet))}"
    start.talk.say(f"follow it with: dsv41 logs --follow {at}; use it: dsv41 connect {at}")
    start.talk.say(f"stop it with: dsv41 stop {at}")


def _undo(start: Start) -> None:
    """After a failure nothing half started stays; what served before or serves now does."""
    if start.ready or not start.started:
        return
    _end(start, sorted(start.started))
    start.talk.say("weights, rows and images stay; the next serve goes on from there")


def _end(start: Start, ranks: list[int]) -> None:
    """Stop ranks of this Plan, each where no other Plan has taken its place by now."""
    crew = start.crew

    def one(rank: int, at: Host) -> str:
        look = crew.look(rank, at)
        if look["alive"] and look["plan"] not in (None, start.made.plan.digest):
            return "is of another Plan by now, and goes on"
        return crew.stop(rank, at)

    for rank, says in crew.tried(one, ranks=ranks).items():
        said = f"may go on ({says.says})" if isinstance(says, Error) else says
        start.talk.say(f"{crew.hosts[rank].name}: rank {rank} {said}")


def _ranks(ranks: list[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)


def _who() -> str:
    return f"{getpass.getuser()} at {socket.gethostname()} (pid {os.getpid()})"
