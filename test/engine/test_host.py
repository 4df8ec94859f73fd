"""Several members in one loop, over stand-ins and a clock that moves when they work."""

from __future__ import annotations

import itertools
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import linux
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.host import (
    ASK_NS,
    ASLEEP_SWITCH_INTERVAL_S,
    AWAKE_SWITCH_INTERVAL_S,
    FillingMember,
    Host,
    Member,
)
from flashrt_ros.engine.host_slack import Slack
from flashrt_ros.errors import DeviceLostError, EngineGoneError
from test.engine.conftest import StandInEngine

MS = 1_000_000
RESERVE_NS = MS // 2
TURN_NS = 20_000
TALKER_FD = 1 << 30
_numbers = itertools.count()


@dataclass
class Clock:
    """Moves when something works, or sleeps; who talks does so at a period, 0 for never.

    Attributes:
        slow_ns: Time to wake up.
    """

    now_ns: int = MS
    armed_ns: int | None = None
    timer_fd: int = -1
    talk_ns: int = 0
    slow_ns: int = 0
    said_ns: int = 0
    num_messages: int = 0
    num_sleeps: int = 0
    num_looks: int = 0
    num_held: int = 0

    def __call__(self) -> int:
        self.now_ns += 100  # what is asked twice is answered twice
        return self.now_ns

    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        """Stand for ``poll``: the timer stays ready until it is set again."""
        if timeout_ms is None:
            self.num_sleeps += 1
            wakes = [self.said_ns + self.talk_ns] if self.talk_ns else []
            wakes += [] if self.armed_ns is None else [self.armed_ns]
            assert wakes, "it would sleep for ever"
            self.now_ns = max(self.now_ns, min(wakes)) + self.slow_ns
        else:
            self.num_looks += 1
            self.now_ns += TURN_NS
        ready = []
        if self.armed_ns is not None and self.now_ns >= self.armed_ns:
            ready.append((self.timer_fd, select.POLLIN))
        if self.talk_ns and self.now_ns >= self.said_ns + self.talk_ns:
            ready.append((TALKER_FD, select.POLLIN))
        return ready

    def look_held(self) -> list[tuple[int, int]]:
        """Stand for the look that keeps the lock."""
        self.num_held += 1
        return self.poll(0)

    def serve(self, fd: int, mask: int) -> None:
        """Stand for the clients that talk."""
        self.num_messages += 1
        self.now_ns += TURN_NS
        self.said_ns = self.now_ns

    def set_timer(self, fd: int, wake_ns: int | None) -> None:
        self.timer_fd, self.armed_ns = fd, wake_ns


@dataclass
class Bare:
    """What a member has besides its loop."""

    clock: Clock
    sink: Any = None
    epoch: int = 1
    info: Any = field(default_factory=lambda: StandInEngine().info)

    def next_background_ns(self) -> int | None:
        return None

    def background(self, now_ns: int) -> bool:
        raise AssertionError("nothing is due")


@dataclass
class Timed(Bare):
    """Ticks at a period; each tick brings nodes that take a time."""

    period_ns: int = 20 * MS
    node_ns: int = MS
    num_nodes: int = 3
    is_device: bool = False
    has_deadline: bool = True
    due_ns: int = 5 * MS
    left: int = 0
    done_ns: int = 0
    lateness_ns: list[int] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return self.left > 0 and self.clock.now_ns >= self.done_ns

    @property
    def is_waiting(self) -> bool:
        return self.clock.now_ns < self.done_ns

    def advance(self) -> bool:
        assert self.has_work
        self.left -= 1
        if self.is_device:
            self.done_ns = self.clock.now_ns + self.node_ns
        else:
            self.clock.now_ns += self.node_ns
        return self.has_work

    def next_deadline_ns(self) -> int | None:
        return self.due_ns if self.has_deadline else None

    def on_deadline(self, now_ns: int) -> None:
        self.lateness_ns.append(now_ns - self.due_ns)
        while self.due_ns <= now_ns:
            self.due_ns += self.period_ns
        self.left = self.num_nodes


@dataclass
class Filling(Bare):
    """Has nodes of two kinds, without end; notes when each was submitted."""

    others: list[Timed] = field(default_factory=list)
    takes_ns: dict[str, int] = field(default_factory=dict)
    is_device: bool = False
    kinds: Iterator[str] = field(default_factory=lambda: itertools.cycle("ab"))
    kind: str = "a"
    done_ns: int | None = None
    is_idle: bool = False
    submitted: list[tuple[int, str, int | None]] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        if self.done_ns is not None:
            return self.clock.now_ns >= self.done_ns
        return not self.is_idle

    @property
    def is_waiting(self) -> bool:
        return self.done_ns is not None

    @property
    def next_node(self) -> str:
        return "" if self.done_ns is not None else self.kind

    def advance(self) -> bool:
        assert self.has_work
        if self.done_ns is not None:
            self.done_ns = None
            return True
        due = [timed.due_ns for timed in self.others if timed.has_deadline]
        self.submitted.append((self.clock.now_ns, self.kind, min(due, default=None)))
        end_ns = self.clock.now_ns + self.takes_ns[self.kind]
        self.kind = next(self.kinds)
        if self.is_device:
            self.done_ns = end_ns
        else:
            self.clock.now_ns = end_ns
        return True

    def next_deadline_ns(self) -> int | None:
        raise AssertionError("it has none")

    def note_shortage(self, needs_ns: int, found_ns: int) -> None:
        self.told.append((needs_ns, found_ns))


@contextmanager
def hosted(clock: Clock, members: list[tuple[Any, Slack | None]], **options: Any) -> Iterator[Host]:
    """Make a host whose loop runs on a clock of the test, and hears who talks on it."""
    with ExitStack() as exits:
        patch = exits.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(linux, "set_timer", clock.set_timer)
        made: list[Any] = []
        for engine, slack in members:
            name = f"host/{os.getpid()}/{next(_numbers)}"
            address = exits.enter_context(EngineSocket(name))
            made.append(
                Member(engine, address) if slack is None else FillingMember(engine, address, slack)
            )
        served = exits.enter_context(Host(made, clock_ns=clock, **options))
        patch.setattr(served, "_poll", clock)
        patch.setitem(served._owners, TALKER_FD, clock)
        clock.register = clock.unregister = lambda *arguments: None  # type: ignore[attr-defined]
        yield served


def run(served: Host, clock: Clock, for_ns: int) -> None:
    until_ns = clock.now_ns + for_ns
    while clock.now_ns < until_ns:
        served._turn()


def make(clock: Clock, takes_ns: dict[str, int], **options: Any) -> tuple[Filling, Slack]:
    """Make a filling member whose nodes were rehearsed."""
    floor_ns = options.pop("floor_ns", 0)
    filling = Filling(clock, takes_ns=takes_ns, **options)
    slack = Slack(reserve_ns=RESERVE_NS, floor_ns=floor_ns, estimates_ns=takes_ns)
    return filling, slack


pytestmark = pytest.mark.usefixtures("runtime_folder")


@settings(deadline=None, max_examples=25)
@given(
    periods_ms=st.lists(st.integers(5, 40), min_size=1, max_size=2),
    node_us=st.integers(1, 2000),
    num_nodes=st.integers(0, 3),
    a_us=st.integers(1, 30_000),
    b_us=st.integers(1, 30_000),
    on_device=st.tuples(st.booleans(), st.booleans()),
    talk_us=st.sampled_from([0, 100, 1000]),
    busy_poll_us=st.sampled_from([0, 50, 5000]),
    wake_early_us=st.sampled_from([0, 200, 3000]),
)
def test_no_node_is_submitted_that_does_not_fit(
    runtime_folder: Path,
    periods_ms: list[int],
    node_us: int,
    num_nodes: int,
    a_us: int,
    b_us: int,
    on_device: tuple[bool, bool],
    talk_us: int,
    busy_poll_us: int,
    wake_early_us: int,
) -> None:
    """Without a floor: what took the same each time is never under way at a deadline."""
    clock = Clock(talk_ns=talk_us * 1000)
    timed = [
        Timed(
            clock,
            period_ns=period * MS,
            node_ns=node_us * 1000,
            num_nodes=num_nodes,
            is_device=on_device[0],
        )
        for period in periods_ms
    ]
    takes_ns = {"a": a_us * 1000, "b": b_us * 1000}
    filling, slack = make(clock, takes_ns, others=timed, is_device=on_device[1])
    members = [*((one, None) for one in timed), (filling, slack)]
    with hosted(clock, members, busy_poll_us=busy_poll_us, wake_early_us=wake_early_us) as served:
        run(served, clock, 400 * MS)
    for at_ns, kind, deadline_ns in filling.submitted:
        assert deadline_ns is not None
        assert deadline_ns - at_ns >= takes_ns[kind] + RESERVE_NS
    assert not filling.told
    own_ns = 0 if on_device[0] else node_us * 1000 * len(timed)
    for one in timed:
        assert len(one.lateness_ns) >= 5
        assert max(one.lateness_ns) <= own_ns + RESERVE_NS, "as late as without a planner"


@settings(deadline=None, max_examples=25)
@given(
    period_ms=st.integers(2, 20),
    node_us=st.integers(1, 30_000),
    takes_ms=st.integers(1, 60),
    floor_ms=st.integers(1, 200),
    is_device=st.booleans(),
    talk_us=st.sampled_from([0, 100, 1000]),
    busy_poll_us=st.sampled_from([0, 50, 5000]),
    wake_early_us=st.sampled_from([0, 200, 3000]),
)
def test_no_node_waits_longer_than_the_floor_says(
    runtime_folder: Path,
    period_ms: int,
    node_us: int,
    takes_ms: int,
    floor_ms: int,
    is_device: bool,
    talk_us: int,
    busy_poll_us: int,
    wake_early_us: int,
) -> None:
    """Whatever the others have to do, also where they never come to rest."""
    clock = Clock(talk_ns=talk_us * 1000)
    timed = Timed(clock, period_ns=period_ms * MS, node_ns=node_us * 1000)
    takes_ns = {"a": takes_ms * MS, "b": takes_ms * MS}
    filling, slack = make(
        clock, takes_ns, others=[timed], is_device=is_device, floor_ns=floor_ms * MS
    )
    members = [(timed, None), (filling, slack)]
    with hosted(clock, members, busy_poll_us=busy_poll_us, wake_early_us=wake_early_us) as served:
        run(served, clock, 8 * (2 * floor_ms + takes_ms) * MS + 200 * MS)
    # On a device it waits twice: to be taken in, and for the next one. A node of the others
    # that began before, and turns of the loop, come on top.
    waits_ns = (2 * floor_ms * MS + 4 * (node_us * 1000 + TURN_NS)) * (1 + is_device)
    most_ns = waits_ns + (takes_ms + 1) * MS
    times = [at_ns for at_ns, _, _ in filling.submitted]
    assert len(times) >= 3
    assert max(b - a for a, b in itertools.pairwise(times)) <= most_ns
    for at_ns, kind, deadline_ns in filling.submitted[1:]:
        assert deadline_ns is not None
        if deadline_ns - at_ns < takes_ns[kind] + RESERVE_NS:
            assert filling.told, "it is told that its nodes don't fit"


def test_a_node_that_takes_longer_than_any_before_delays_few_ticks_and_is_learned() -> None:
    """Also shows that a node under way at a deadline is noticed here."""
    clock = Clock()
    timed = Timed(clock)
    filling, slack = make(clock, {"a": MS, "b": MS}, others=[timed])
    filling.takes_ns = {"a": 30 * MS, "b": 30 * MS}
    with hosted(clock, [(timed, None), (filling, slack)]) as served:
        run(served, clock, 3000 * MS)
    late = [late_ns for late_ns in timed.lateness_ns if late_ns > MS]
    assert 1 <= len(late) == len(filling.submitted) < 20
    assert max(timed.lateness_ns[-40:]) <= RESERVE_NS


def test_without_a_floor_what_never_fits_never_runs() -> None:
    clock = Clock()
    timed = Timed(clock)
    filling, slack = make(clock, {"a": 30 * MS, "b": 30 * MS}, others=[timed])
    with hosted(clock, [(timed, None), (filling, slack)]) as served:
        run(served, clock, 1000 * MS)
    assert not filling.submitted
    assert max(timed.lateness_ns) <= RESERVE_NS


def test_a_shortage_is_told_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    timed = Timed(clock)
    filling, slack = make(clock, {"a": 30 * MS, "b": 30 * MS}, others=[timed], floor_ns=50 * MS)
    with hosted(clock, [(timed, None), (filling, slack)]) as served:
        run(served, clock, 500 * MS)
        assert len(filling.submitted) > 3
        assert len(filling.told) == 2, "once for each kind"
        for needs_ns, found_ns in filling.told:
            assert 30 * MS + RESERVE_NS <= needs_ns < 31 * MS
            assert 10 * MS < found_ns < 20 * MS
        assert len([line for line in caplog.messages if "30.5 ms of slack" in line]) == 2
        filling.takes_ns = {"a": MS, "b": MS}
        run(served, clock, 500 * MS)
    assert filling.told[2:] == [(0, 0)], "what an owed node took replaces the estimate"


def test_without_deadlines_nodes_run_freely() -> None:
    clock = Clock()
    timed = Timed(clock, has_deadline=False)
    filling, slack = make(clock, {"a": 30 * MS, "b": 30 * MS}, others=[timed])
    with hosted(clock, [(timed, None), (filling, slack)]) as served:
        run(served, clock, 300 * MS)
    assert len(filling.submitted) >= 9


def test_two_without_deadlines_take_turns_one_node_at_a_time() -> None:
    clock = Clock()
    timed = Timed(clock)
    pairs = [make(clock, {"a": MS, "b": MS}, others=[timed], is_device=True) for _ in range(2)]
    with hosted(clock, [(timed, None), *pairs]) as served:
        run(served, clock, 200 * MS)
    ends: list[tuple[int, int]] = sorted(
        (at_ns, at_ns + MS) for filling, _ in pairs for at_ns, _, _ in filling.submitted
    )
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
    counts = [len(filling.submitted) for filling, _ in pairs]
    assert abs(counts[0] - counts[1]) <= 1


def test_what_waited_and_is_not_wanted_any_more_owes_nothing() -> None:
    clock = Clock()
    timed = Timed(clock)
    filling, slack = make(clock, {"a": 30 * MS, "b": 30 * MS}, others=[timed], floor_ns=100 * MS)
    with hosted(clock, [(timed, None), (filling, slack)]) as served:
        run(served, clock, 60 * MS)
        filling.is_idle = True
        run(served, clock, 200 * MS)
        filling.is_idle = False
        began_ns = clock.now_ns
        run(served, clock, 150 * MS)
    assert filling.submitted[0][0] >= began_ns + 100 * MS


def test_two_with_deadlines_take_turns() -> None:
    clock = Clock()
    timed = [Timed(clock, num_nodes=10, node_ns=MS // 2) for _ in range(2)]
    with hosted(clock, [(one, None) for one in timed]) as served:
        run(served, clock, 10 * MS)
        assert abs(timed[0].left - timed[1].left) <= 1
        run(served, clock, 100 * MS)
    assert max(timed[0].lateness_ns + timed[1].lateness_ns) <= MS


# looking for messages ------------------------------------------------------------------------


def talk_once(served: Host, clock: Clock) -> None:
    """Have a message served now, and none after it."""
    before, clock.talk_ns = clock.num_messages, 1
    while clock.num_messages == before:
        served._turn()
    clock.talk_ns = 0


def test_an_expired_timer_keeps_nobody_awake() -> None:
    """A deadline is no message: after it the loop sleeps until the next, and looks no more."""
    clock = Clock()
    timed = Timed(clock, num_nodes=0)
    with hosted(clock, [(timed, None)], busy_poll_us=50) as served:
        run(served, clock, 1000 * MS)
        assert len(timed.lateness_ns) >= 50
        assert clock.num_sleeps <= len(timed.lateness_ns) + 1
        assert clock.num_looks <= len(timed.lateness_ns)


@pytest.mark.parametrize("talk_us", [0, 300])
@pytest.mark.parametrize("wake_early_us", [0, 100, 200])
def test_a_tick_does_not_wait_for_the_loop_to_wake_up(wake_early_us: int, talk_us: int) -> None:
    """A loop that sleeps until the tick is as late as it takes to wake up, and this shows it."""
    clock = Clock(slow_ns=150_000, talk_ns=talk_us * 1000)
    timed = Timed(clock, num_nodes=0)
    with hosted(clock, [(timed, None)], wake_early_us=wake_early_us) as served:
        run(served, clock, 1000 * MS)
        assert clock.num_sleeps >= len(timed.lateness_ns), "it does sleep"
        assert bool(talk_us) == (clock.num_messages > 1000)
    assert len(timed.lateness_ns) >= 50
    left_ns = max(0, clock.slow_ns - wake_early_us * 1000)
    if not talk_us:  # else a message may have woken it up before
        assert min(timed.lateness_ns) >= left_ns
    assert max(timed.lateness_ns) <= left_ns + 2 * TURN_NS


def interval_us() -> int:
    """Return how long a thread waits for the interpreter's lock before it asks for it."""
    return round(sys.getswitchinterval() * 1e6)


@pytest.mark.parametrize("owns_process", [False, True])
def test_other_threads_make_way_for_a_loop_that_wakes_up(
    monkeypatch: pytest.MonkeyPatch, owns_process: bool
) -> None:
    """And interrupt no short turn of it; where others live in the process, all is as it was."""
    before_us = interval_us()
    clock = Clock(talk_ns=3 * MS)
    timed = Timed(clock)
    asleep_us: set[int] = set()
    awake_us: set[int] = set()
    poll, serve = clock.poll, clock.serve

    def note_poll(timeout_ms: int | None) -> list[tuple[int, int]]:
        if timeout_ms is None:
            asleep_us.add(interval_us())
        return poll(timeout_ms)

    def note_serve(fd: int, mask: int) -> None:
        awake_us.add(interval_us())
        serve(fd, mask)
        if clock.num_messages == 20:
            served.stop()

    monkeypatch.setattr(clock, "poll", note_poll)
    monkeypatch.setattr(clock, "serve", note_serve)
    options = {"busy_poll_us": 50, "wake_early_us": 200}
    with hosted(clock, [(timed, None)], owns_process=owns_process, **options) as served:
        served.run()
    awake, asleep = AWAKE_SWITCH_INTERVAL_S * 1e6, ASLEEP_SWITCH_INTERVAL_S * 1e6
    assert awake_us == {round(awake) if owns_process else before_us}
    assert asleep_us == {round(asleep) if owns_process else before_us}
    assert interval_us() == before_us


def test_who_does_not_own_its_process_leaves_its_threads_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(interval_s: float) -> None:
        raise AssertionError("it is somebody else's")

    clock = Clock(talk_ns=3 * MS)
    with hosted(clock, [(Timed(clock), None)], busy_poll_us=50, wake_early_us=200) as served:
        monkeypatch.setattr(sys, "setswitchinterval", refuse)
        run(served, clock, 100 * MS)
    assert clock.num_sleeps > 10


def test_a_loop_that_fails_leaves_the_interval_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before_us = interval_us()
    clock = Clock()

    def fail(timeout_ms: int | None) -> list[tuple[int, int]]:
        raise OSError("not now")

    monkeypatch.setattr(clock, "poll", fail)
    members: list[tuple[Any, Slack | None]] = [(Timed(clock), None)]
    with hosted(clock, members, owns_process=True) as served, pytest.raises(OSError, match="not"):
        served.run()
    assert interval_us() == before_us


def test_the_lock_is_kept_before_a_deadline() -> None:
    clock = Clock()
    timed = Timed(clock, num_nodes=0)
    with hosted(clock, [(timed, None)], busy_poll_us=50, wake_early_us=2000) as served:
        run(served, clock, 500 * MS)
    assert len(timed.lateness_ns) >= 20
    assert clock.num_held == clock.num_looks >= 20 * len(timed.lateness_ns)


def test_the_lock_is_kept_before_a_deadline_while_others_are_asked() -> None:
    """A filling member that has a node under way is asked in between, by the same look."""
    clock = Clock()
    timed = Timed(clock, period_ns=5 * MS, num_nodes=0)
    filling, slack = make(clock, {"a": 30 * MS, "b": 30 * MS}, others=[timed], is_device=True)
    filling.done_ns = 1000 * MS
    with hosted(clock, [(timed, None), (filling, slack)], wake_early_us=2000) as served:
        run(served, clock, 500 * MS)
    assert len(timed.lateness_ns) >= 90
    assert max(timed.lateness_ns) <= 2 * TURN_NS
    assert clock.num_held >= 20 * len(timed.lateness_ns)


def note_background(monkeypatch: pytest.MonkeyPatch, timed: Timed, due_ns: int) -> list[int]:
    """Give a member background work that is due once; returns when it began, as that happens."""
    began_ns: list[int] = []

    def begin(now_ns: int) -> bool:
        began_ns.append(now_ns)
        return False

    monkeypatch.setattr(timed, "next_background_ns", lambda: None if began_ns else due_ns)
    monkeypatch.setattr(timed, "background", begin)
    return began_ns


@pytest.mark.parametrize("is_near", [False, True], ids=["slack", "no-slack"])
def test_who_wakes_up_early_has_time_for_background_work(
    monkeypatch: pytest.MonkeyPatch, is_near: bool
) -> None:
    """What becomes due meanwhile is done when it is due, or after a deadline that is too near."""
    clock = Clock()
    timed = Timed(clock, due_ns=20 * MS, num_nodes=0)
    due_ns = 20 * MS - RESERVE_NS // 2 if is_near else 18 * MS
    began_ns = note_background(monkeypatch, timed, due_ns)
    with hosted(clock, [(timed, None)], wake_early_us=5000) as served:
        run(served, clock, 100 * MS)
    assert len(began_ns) == 1
    assert 0 <= began_ns[0] - (20 * MS if is_near else 18 * MS) <= 2 * TURN_NS
    assert max(timed.lateness_ns) <= 2 * TURN_NS


def test_who_looks_sleeps_once_the_time_is_up() -> None:
    clock = Clock()
    timed = Timed(clock, has_deadline=False, num_nodes=0)
    with hosted(clock, [(timed, None)], busy_poll_us=10_000) as served:
        timed.has_deadline, timed.due_ns = True, 1000 * MS  # so that it wakes up again
        talk_once(served, clock)
        began_ns, num_sleeps = clock.now_ns, clock.num_sleeps
        served._turn()
        assert 0 <= clock.now_ns - began_ns - 10 * MS <= TURN_NS
        assert clock.num_sleeps == num_sleeps
        served._turn()
        assert clock.num_sleeps == num_sleeps + 1


def test_who_looks_takes_what_comes() -> None:
    clock = Clock()
    timed = Timed(clock, due_ns=1000 * MS, num_nodes=0)
    with hosted(clock, [(timed, None)], busy_poll_us=10_000) as served:
        talk_once(served, clock)
        num_sleeps, clock.talk_ns = clock.num_sleeps, MS
        run(served, clock, 100 * MS)
        assert clock.num_messages >= 90
        assert clock.num_sleeps == num_sleeps


def test_who_looks_is_at_hand_for_a_deadline() -> None:
    clock = Clock()
    timed = Timed(clock, due_ns=5 * MS, num_nodes=0)
    with hosted(clock, [(timed, None)], busy_poll_us=1_000_000) as served:
        talk_once(served, clock)
        num_sleeps = clock.num_sleeps
        run(served, clock, 500 * MS)
        assert clock.num_sleeps == num_sleeps, "it looked all the time"
    assert len(timed.lateness_ns) >= 24
    assert min(timed.lateness_ns) >= 0
    assert max(timed.lateness_ns) <= 2 * TURN_NS


@pytest.mark.parametrize("is_near", [False, True], ids=["slack", "no-slack"])
def test_who_looks_is_at_hand_for_background_work(
    monkeypatch: pytest.MonkeyPatch, is_near: bool
) -> None:
    """It begins when it is due, or once the deadline has passed that it is due too near to."""
    clock = Clock()
    timed = Timed(clock, due_ns=20 * MS, num_nodes=0)
    due_ns = 20 * MS - RESERVE_NS // 2 if is_near else 10 * MS
    began_ns = note_background(monkeypatch, timed, due_ns)
    with hosted(clock, [(timed, None)], busy_poll_us=1_000_000) as served:
        talk_once(served, clock)
        num_sleeps = clock.num_sleeps
        run(served, clock, 100 * MS)
        assert clock.num_sleeps == num_sleeps, "it looked all the time"
    assert len(began_ns) == 1
    assert 0 <= began_ns[0] - (20 * MS if is_near else 10 * MS) <= 2 * TURN_NS
    assert max(timed.lateness_ns) <= 2 * TURN_NS


@pytest.mark.parametrize(
    ("busy_poll_us", "wake_early_us", "talk_ns"),
    [(50, 0, MS), (1_000_000, 0, MS), (50, 40_000, 0)],
    ids=["sleeps", "looks", "before-a-deadline"],
)
def test_nobody_looks_past_a_device_that_is_done(
    monkeypatch: pytest.MonkeyPatch, busy_poll_us: int, wake_early_us: int, talk_ns: int
) -> None:
    """Each node follows the one before as soon as without anybody who talks."""
    clock = Clock()
    timed = Timed(clock, period_ns=50 * MS, num_nodes=20, is_device=True)
    late_ns = []
    submit = timed.advance

    def advance() -> bool:
        if timed.left < timed.num_nodes:
            late_ns.append(clock.now_ns - timed.done_ns)
        return submit()

    monkeypatch.setattr(timed, "advance", advance)
    options = {"busy_poll_us": busy_poll_us, "wake_early_us": wake_early_us}
    with hosted(clock, [(timed, None)], **options) as served:
        talk_once(served, clock)
        clock.talk_ns = talk_ns
        run(served, clock, 500 * MS)
    assert len(late_ns) >= 100
    assert max(late_ns) <= ASK_NS + 3 * TURN_NS


@pytest.mark.parametrize("is_device", [False, True])
def test_nobody_looks_past_a_filling_member(is_device: bool) -> None:
    """What fits runs on while others talk, and while their next message is looked for."""
    clock = Clock()
    timed = Timed(clock, has_deadline=False)
    filling, slack = make(clock, {"a": MS, "b": MS}, others=[timed], is_device=is_device)
    with hosted(clock, [(timed, None), (filling, slack)], busy_poll_us=1_000_000) as served:
        talk_once(served, clock)
        run(served, clock, 100 * MS)
        clock.talk_ns = MS // 2
        run(served, clock, 100 * MS)
    times = [at_ns for at_ns, _, _ in filling.submitted]
    assert len(times) >= 150
    assert max(b - a for a, b in itertools.pairwise(times)) <= MS + ASK_NS + 6 * TURN_NS


def test_a_stop_ends_the_look(runtime_folder: Path) -> None:
    """Real sockets: who would look for an hour does not keep the process from its end."""
    name, engine = f"host/{os.getpid()}/{next(_numbers)}", StandInEngine()
    with ExitStack() as exits:
        exits.enter_context(engine.channel)
        address = exits.enter_context(EngineSocket(name))
        served = exits.enter_context(Host([Member(engine, address)], busy_poll_us=3_600_000_000))
        thread = threading.Thread(target=served.run)
        thread.start()
        with EngineClient(name, timeout_s=60.0) as client:
            client.ping()
            served.stop()
            thread.join(60.0)
            assert not thread.is_alive()


# estimates -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_an_estimate_is_never_below_the_last_nor_above_the_longest(times: list[int]) -> None:
    slack = Slack(reserve_ns=0, floor_ns=0)
    for index, took_ns in enumerate(times):
        slack.note("a", took_ns)
        assert took_ns <= slack.needs_ns("a") <= max(times[: index + 1])


def test_an_estimate_comes_down_slowly_after_one_that_took_long() -> None:
    slack = Slack(reserve_ns=0, floor_ns=0)
    slack.note("a", 160 * MS)
    slack.note("a", 0)
    assert slack.needs_ns("a") == 150 * MS
    for _ in range(100):
        slack.note("a", 10 * MS)
    assert slack.needs_ns("a") < 11 * MS


def test_while_a_node_waits_what_took_long_for_once_is_forgotten() -> None:
    slack = Slack(reserve_ns=0, floor_ns=0, estimates_ns={"a": 2 * MS})
    slack.note("a", 40 * MS)
    assert not slack.fits("a", 0, 20 * MS)
    average_ns = 2 * MS + 38 * MS // 8
    for now_ms in range(0, 300, 5):
        slack.wait(now_ms * MS, 20 * MS)
    assert average_ns <= slack.needs_ns("a") < average_ns + 2 * MS
    slack.note("b", 40 * MS)
    for now_ms in range(300, 3000, 5):
        slack.wait(now_ms * MS, 20 * MS)
    assert slack.needs_ns("b") == 40 * MS, "what always takes long is not"


def test_a_kind_that_never_ran_counts_as_the_longest() -> None:
    slack = Slack(reserve_ns=7, floor_ns=0, estimates_ns={"a": 3, "b": 5})
    assert slack.needs_ns("c") == 12
    slack.note("c", 1)
    assert slack.needs_ns("c") == 8


# clients -------------------------------------------------------------------------------------


def test_one_that_fails_to_let_go_leaves_no_other_open(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device that is lost: the failure is told, and every connection ends."""
    names = [f"host/{os.getpid()}/{next(_numbers)}" for _ in range(2)]
    engines = [StandInEngine(epoch=one) for one in (1, 2)]

    def fail(ring: object) -> None:
        raise DeviceLostError("the device is lost")

    monkeypatch.setattr(engines[0], "close_writer", fail)
    with ExitStack() as exits:
        for engine in engines:
            exits.enter_context(engine.channel)
        addresses = [exits.enter_context(EngineSocket(name)) for name in names]
        served = Host([Member(one, at) for one, at in zip(engines, addresses, strict=True)])
        thread = threading.Thread(target=served.run)
        thread.start()
        clients = [exits.enter_context(EngineClient(n, timeout_s=60.0)) for n in (*names, *names)]
        clients[0].open_writer("goal")
        served.stop()
        thread.join(60.0)
        with pytest.raises(DeviceLostError):
            served.close()
        assert served.num_clients == 0
        for client in clients:
            with pytest.raises(EngineGoneError):
                client.ping()
        assert [engine.sink for engine in engines] == [None, None]
        served.close()


def test_each_member_has_clients_of_its_own(runtime_folder: Path) -> None:
    """Real sockets: who talks to one does not see the other; one stop ends both."""
    names = [f"host/{os.getpid()}/{next(_numbers)}" for _ in range(2)]
    engines = [StandInEngine(epoch=one) for one in (1, 2)]
    with ExitStack() as exits:
        for engine in engines:
            exits.enter_context(engine.channel)
        addresses = [exits.enter_context(EngineSocket(name)) for name in names]
        served = exits.enter_context(
            Host([Member(one, at) for one, at in zip(engines, addresses, strict=True)])
        )
        thread = threading.Thread(target=served.run)
        thread.start()
        exits.callback(thread.join, 60.0)
        exits.callback(served.stop)
        clients = [exits.enter_context(EngineClient(name, timeout_s=60.0)) for name in names]
        assert [client.engine_epoch for client in clients] == [1, 2]
        clients[0].drop("x")
        assert engines[0].trace == ["Drop"]
        assert not engines[1].trace
        assert served.num_clients == 2
        clients[1].stop()
        thread.join(60.0)
        assert not thread.is_alive()
