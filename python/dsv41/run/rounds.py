"""Rounds: all ranks of a Plan run together or not at all. Pure: events in, orders out.

A round opens when every rank is present, equal to rank 0 and ready to start its engine. It ends
when an engine ends, a rank is lost or leaves, or the engine is found wedged: then every rank stops
its engine and joins the next one. Nothing here reads a clock or a socket; `now` is in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CAUSES = 3  # how many of the last causes are told when the ranks give up
WEDGED_AGAIN = 3600.0  # a second wedge within this time is no accident


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """How long things may take, in seconds. Users have no knob for these; tests are short.

    Attributes:
        beat: between two beats of a connection.
        lost: without a beat, until the other end counts as lost.
        handshake: for a stranger to prove that it is none.
        reconnect: before the first new try to reach rank 0; doubled up to `lost`.
        back_off: before the round after a failed one; doubled up to `back_off_most`.
        healthy: a round that ran this long makes earlier failures forgotten.
        failures: failed rounds within `within` seconds that make the ranks give up.
        sample: between two looks at the engine. Reading a GPU's power every 2 s cost a Spark
            0.6 ms a step (user report P56), so 10.
        window: that an engine must stand still to be wedged.
        memory: for the memory of an engine that has just ended to come back.
        bind: for rank 0 to get its control port.
    """

    beat: float = 5.0
    lost: float = 15.0
    handshake: float = 5.0
    reconnect: float = 0.5
    back_off: float = 2.0
    back_off_most: float = 60.0
    healthy: float = 600.0
    failures: int = 5
    within: float = 7200.0
    sample: float = 10.0
    window: float = 40.0
    memory: float = 30.0
    bind: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What must be equal on all ranks."""

    digest: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What one rank is told: go, stop, end or wait."""

    rank: int
    kind: str
    round: int = 0
    says: str = ""


def differs(found: Identity, expected: Identity) -> str:
    """What of a rank differs from rank 0, both values named; empty when it is equal."""
    parts = [
        f"its {name} is {theirs}, that of rank 0 is {ours}"
        for name, theirs, ours in (
            ("Plan", found.digest, expected.digest),
            ("launch fingerprint", found.fingerprint, expected.fingerprint),
        )
        if theirs != ours
    ]
    return "; ".join(parts)


@dataclass(kw_only=True, slots=True)
class Failures:
    """Failed tries of late: how long to wait before the next one, and when to give up."""

    times: Times
    found: list[tuple[float, str]] = field(default_factory=list)

    def note(self, now: float, says: str) -> float | None:
        """Seconds to wait; None when there were too many of them."""
        kept = [(t, text) for t, text in self.found if now - t <= self.times.within]
        self.found = [*kept, (now, says)]
        if len(self.found) >= self.times.failures:
            return None
        doubled = self.times.back_off * 2.0 ** (len(self.found) - 1)
        return min(self.times.back_off_most, doubled)

    def forget(self) -> None:
        """A long healthy run: what was before does not count."""
        self.found = []

    def told(self) -> str:
        """How many there were, and the last causes."""
        last = "; ".join(text.rstrip(".") for _, text in self.found[-CAUSES:])
        return f"{len(self.found)} failures in a row: {last}"


@dataclass(kw_only=True, slots=True)
class Rounds:
    """What rank 0 knows of all ranks. Every method gives the orders that follow from an event.

    Attributes:
        size: how many ranks there are.
        round: number of the last round that opened; never goes back, also over a new rank 0.
        running: whether that round goes on.
        present: ranks with a connection (rank 0 with itself).
        joined: those that are ready to start their engine.
        absent: why a rank is not there, where it said so.
        over: why the ranks gave up; empty until they do.
    """

    size: int
    times: Times
    round: int = 0
    running: bool = False
    present: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    absent: dict[int, str] = field(default_factory=dict)
    over: str = ""
    failures: Failures = field(init=False)
    opened: float = 0.0
    not_before: float = 0.0
    wedged_at: float | None = None
    waits: str = ""

    def __post_init__(self) -> None:
        self.failures = Failures(times=self.times)

    def arrives(self, rank: int, *, after: int, now: float) -> list[Order]:
        """A rank that is equal connected; `after` is the last round that it was in."""
        again = self.lost(rank, now=now) if rank in self.present else []
        self.present.add(rank)
        self.absent.pop(rank, None)
        if not self.running:
            self.round = max(self.round, after)
        return [*again, *self._next(now)]

    def joins(self, rank: int, *, after: int, now: float) -> list[Order]:
        """A rank has no engine any more and is ready to start one; it was in round `after`.

        One that says so twice, while the round that follows opens, does not leave it thereby.
        """
        ended: list[Order] = []
        if self.running and after < self.round:
            return []
        if self.running:  # it would have said that its engine ended
            ended = self._fails(f"rank {rank} left round {self.round}", now=now, but=rank)
        if rank in self.present:
            self.joined.add(rank)
            self.waits = ""  # it has not heard yet what all wait for
        return [*ended, *self._next(now)]

    def ends(self, rank: int, says: str, *, final: bool, now: float) -> list[Order]:
        """The engine of a rank ended; `final` when the rank ends with it, not to come back."""
        self.joined.discard(rank)
        if final:
            self.absent[rank] = says
        told = f"rank {rank}: {says}"
        if self.running:
            return [*self._fails(told, now=now, but=rank), *self._next(now)]
        return self._next(now)

    def leaves(self, rank: int, *, now: float) -> list[Order]:
        """A rank was stopped on purpose."""
        self.absent[rank] = "it was stopped on purpose"
        return self._gone(rank, now=now, says=f"rank {rank} was stopped on purpose", failed=False)

    def lost(self, rank: int, *, now: float) -> list[Order]:
        """The connection of a rank ended, or its beats did."""
        known = rank in self.absent
        says = f"rank {rank} was lost"
        return self._gone(rank, now=now, says=says, failed=not known)

    def wedged(self, says: str, *, now: float) -> list[Order]:
        """The engine stands still while requests run: one restart, then no more."""
        if not self.running:
            return []
        before, self.wedged_at = self.wedged_at, now
        if before is not None and now - before <= WEDGED_AGAIN:
            self._close()
            return self._give_up(f"wedged again {now - before:.0f} s after the last time: {says}")
        return [*self._fails(says, now=now, but=None), *self._next(now)]

    def tick(self, *, now: float) -> list[Order]:
        """Time passed: a round that was held back may open."""
        return self._next(now)

    def _gone(self, rank: int, *, now: float, says: str, failed: bool) -> list[Order]:
        was = rank in self.present
        self.present.discard(rank)
        self.joined.discard(rank)
        if not (was and self.running):
            return self._next(now)
        if failed:
            return [*self._fails(says, now=now, but=rank), *self._next(now)]
        self._close()
        return [*self._stop(says, but=rank), *self._next(now)]

    def _fails(self, says: str, *, now: float, but: int | None) -> list[Order]:
        """The round ends early: stop, and wait before the next one, or give up."""
        if now - self.opened >= self.times.healthy:
            self.failures.forget()
        self._close()
        pause = self.failures.note(now, says)
        if pause is None:
            return self._give_up(self.failures.told())
        self.not_before = now + pause
        return self._stop(says, but=but)

    def _close(self) -> None:
        self.running = False
        self.joined.clear()
        self.waits = ""

    def _give_up(self, says: str) -> list[Order]:
        self.over = says
        return [Order(rank=r, kind="end", says=says) for r in sorted(self.present)]

    def _stop(self, says: str, *, but: int | None) -> list[Order]:
        ranks = sorted(self.present - {but})
        return [Order(rank=r, kind="stop", round=self.round, says=says) for r in ranks]

    def _next(self, now: float) -> list[Order]:
        """Open a round if nothing is missing, else say what is, once."""
        if self.running or self.over:
            return []
        missing = self._missing(now)
        if missing:
            told = missing != self.waits
            self.waits = missing
            ranks = sorted(self.present) if told else []
            return [Order(rank=r, kind="wait", says=missing) for r in ranks]
        self.round += 1
        self.running, self.opened, self.waits = True, now, ""
        self.joined.clear()
        return [Order(rank=r, kind="go", round=self.round) for r in sorted(self.present)]

    def _missing(self, now: float) -> str:
        absent = [r for r in range(self.size) if r not in self.present]
        if absent:
            return "; ".join(f"rank {r}: {self.absent.get(r, 'no connection')}" for r in absent)
        late = [r for r in range(self.size) if r not in self.joined]
        if late:
            return f"ranks {', '.join(map(str, late))} get ready"
        return "a pause after a failed round" if now < self.not_before else ""
