"""Rounds as a pure machine: in any order of events, ranks run together or not at all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.run.rounds import Failures, Identity, Order, Rounds, Times, differs

SIZE = 3
TIMES = Times(failures=10**6)


class World:
    """Ranks that obey: what each runs, and the connections over which orders reach it in order."""

    def __init__(self, times: Times = TIMES) -> None:
        self.head = Rounds(size=SIZE, times=times)
        self.now = 0.0
        self.runs: dict[int, int] = {}  # rank -> round of the engine that it runs
        self.after = dict.fromkeys(range(SIZE), 0)
        self.connected: set[int] = set()
        self.queue: dict[int, list[Order]] = {rank: [] for rank in range(SIZE)}

    def carry(self, orders: list[Order]) -> None:
        for order in orders:
            assert order.rank in self.head.present or order.kind in ("stop", "end")
            self.queue[order.rank].append(order)

    def obey(self, rank: int) -> None:
        """The rank takes one order from its connection."""
        if not self.queue[rank]:
            return
        order = self.queue[rank].pop(0)
        if order.kind == "go":
            assert rank not in self.runs, "two rounds at once"
            assert order.round > self.after[rank]
            self.runs[rank] = self.after[rank] = order.round
        elif order.kind == "stop" and self.runs.get(rank) == order.round:
            del self.runs[rank]
            self.join(rank)

    def connect(self, rank: int) -> None:
        if rank not in self.connected:
            self.connected.add(rank)
            self.queue[rank] = []
            self.carry(self.head.arrives(rank, after=self.after[rank], now=self.now))
            self.join(rank)

    def join(self, rank: int) -> None:
        if rank in self.connected:
            self.carry(self.head.joins(rank, after=self.after[rank], now=self.now))

    def drop(self, rank: int, how: str) -> None:
        """The connection ends; the rank notices and stops its engine."""
        if rank not in self.connected:
            return
        if how == "leaves":
            self.carry(self.head.leaves(rank, now=self.now))
        if how == "final":
            self.carry(self.head.ends(rank, "a cause", final=True, now=self.now))
        self.connected.discard(rank)
        self.runs.pop(rank, None)
        self.queue[rank] = []
        self.carry(self.head.lost(rank, now=self.now))

    def end(self, rank: int) -> None:
        """The engine of a rank ends by itself."""
        if self.runs.pop(rank, None) is not None:
            self.carry(self.head.ends(rank, "it ended", final=False, now=self.now))
            self.join(rank)

    def do(self, what: str, rank: int) -> None:
        """One event, where it can happen."""
        if what in ("lost", "leaves", "final"):
            self.drop(rank, what)
        elif what in ("connect", "end", "obey"):
            getattr(self, what)(rank)
        elif what == "join" and rank not in self.runs:
            self.join(rank)  # said twice, as after a reconnection
        elif what == "wedged" and not self.head.wedged_at:
            self.carry(self.head.wedged("it stands still", now=self.now))
        else:
            self.carry(self.head.tick(now=self.now))

    def settle(self) -> None:
        """Everything that is under way arrives, and pauses pass."""
        for _ in range(8):
            self.now += 30.0
            for rank in range(SIZE):
                while self.queue[rank]:
                    self.obey(rank)
            self.carry(self.head.tick(now=self.now))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["connect", "lost", "leaves", "final", "end", "obey", "join", "tick", "wedged"]
        ),
        st.integers(0, SIZE - 1),
        st.floats(0, 20),
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_any_order_of_events_ends_in_one_round_of_all(steps: list[tuple[str, int, float]]) -> None:
    world = World()
    for what, rank, seconds in steps:
        world.now += seconds
        world.do(what, rank)
        assert len(set(world.runs.values())) <= 2, "an old round may still stop, no more"
        if world.head.running:
            assert world.head.present == set(range(SIZE))
    world.settle()
    if not world.connected >= set(range(SIZE)):
        assert not world.head.running
        assert world.runs == {}
    for rank in range(SIZE):
        world.connect(rank)
    world.settle()
    assert world.runs == dict.fromkeys(range(SIZE), world.head.round)


def test_a_round_waits_for_all_and_says_for_whom() -> None:
    head = Rounds(size=2, times=TIMES)
    assert [o.says for o in head.arrives(0, after=0, now=0)] == ["rank 1: no connection"]
    assert [o.says for o in head.joins(0, after=0, now=1)] == ["rank 1: no connection"]
    assert {o.says for o in head.arrives(1, after=7, now=2)} == {"ranks 1 get ready"}
    assert {(o.kind, o.round) for o in head.joins(1, after=7, now=3)} == {("go", 8)}
    assert head.joins(1, after=7, now=3) == []  # said twice
    assert head.leaves(1, now=4)[0].says == "rank 1 was stopped on purpose"
    assert head.tick(now=5) == []
    assert head.failures.found == []


def test_failures_pause_double_are_forgotten_and_end_it() -> None:
    times = Times(back_off=2, back_off_most=5, failures=5, within=100, healthy=50)
    tries = Failures(times=times)
    assert [tries.note(t, "x") for t in (0, 1, 2, 3, 4)] == [2, 4, 5, 5, None]
    assert Failures(times=times, found=[(0, "old")] * 9).note(101, "new") == 2
    head = Rounds(size=1, times=times)
    head.arrives(0, after=0, now=0)
    now = 0.0
    for number in range(1, 5):
        assert [o.kind for o in head.joins(0, after=number - 1, now=now)] == ["go"]
        head.ends(0, f"cause {number}", final=False, now=now + 1)
        now += 10
    head.joins(0, after=4, now=now)
    head.ends(0, "late", final=False, now=now + 60)  # a healthy one
    assert not head.over
    for number in range(5, 9):
        now += 70
        head.joins(0, after=number, now=now)
        orders = head.ends(0, f"cause {number}", final=False, now=now + 1)
    assert [o.kind for o in head.tick(now=now + 9)] == ["go"] or orders
    assert not head.over  # they lie more than 100 s apart


def test_too_many_failures_tell_the_last_causes() -> None:
    head = Rounds(size=1, times=Times(failures=3, back_off=0))
    head.arrives(0, after=0, now=0)
    for number in range(3):
        head.joins(0, after=number, now=number)
        orders = head.ends(0, f"cause {number}.", final=False, now=number + 0.5)
    assert [(o.kind, o.rank) for o in orders] == [("end", 0)]
    assert "cause 0; rank 0: cause 1; rank 0: cause 2" in orders[0].says
    assert head.joins(0, after=3, now=9) == []


def test_a_wedge_restarts_once() -> None:
    head = Rounds(size=1, times=TIMES)
    head.arrives(0, after=0, now=0)
    head.joins(0, after=0, now=0)
    assert [o.kind for o in head.wedged("stands", now=100)] == ["stop", "wait"]
    head.joins(0, after=1, now=200)
    orders = head.wedged("stands", now=300)
    assert [(o.kind, o.says) for o in orders] == [
        ("end", "wedged again 200 s after the last time: stands")
    ]
    assert head.wedged("stands", now=301) == []


def test_what_differs_is_named_with_both_values() -> None:
    ours = Identity(digest="sha256:a", fingerprint="f")
    assert differs(ours, ours) == ""
    says = differs(Identity(digest="sha256:b", fingerprint="g"), ours)
    assert says == (
        "its Plan is sha256:b, that of rank 0 is sha256:a; "
        "its launch fingerprint is g, that of rank 0 is f"
    )
