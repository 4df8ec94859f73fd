"""Random histories of two engines that read one channel, each over a device that lags behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import protocol
from flashrt_ros.engine.ring import SlotState
from flashrt_ros.engine.shared import SharedChannel
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.minimal import MinimalPolicy

GOAL, _ = MinimalPolicy().channels()

_POINTS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
_ONE = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 12)),
    st.tuples(st.just("run"), st.integers(1, 30)),
    st.tuples(st.just("tick")),
    st.tuples(st.just("goal"), _POINTS, _POINTS),
    st.tuples(st.just("goal"), _POINTS, _POINTS),
    st.tuples(st.just("observe"), _POINTS, _POINTS),
    st.tuples(st.just("interrupt")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("restore"), st.booleans()),
    st.tuples(st.just("fork")),
)


class Ledger(dict[tuple[str, int], tuple[float, ...]]):
    """What was written: observations to one engine, goals to both."""

    def __init__(self, goals: dict[tuple[str, int], tuple[float, ...]]) -> None:
        super().__init__()
        self._goals = goals

    def __setitem__(self, key: tuple[str, int], value: tuple[float, ...]) -> None:
        if key[0] == "goal":
            self._goals[key] = value
        else:
            super().__setitem__(key, value)

    def __missing__(self, key: tuple[str, int]) -> tuple[float, ...]:
        return self._goals[key]


class Pair:
    """Two engines; each writes to both, over scribbles, into a ring that came through it."""

    def __init__(self, make: Callable[..., Any], **options: Any) -> None:
        self.channel = SharedChannel(GOAL)
        links = {"shared": {"goal": self.channel}}
        self.rigs = [make(links=links, **options) for _ in range(2)]
        goals: dict[tuple[str, int], tuple[float, ...]] = {}
        for rig in self.rigs:
            rig.written = Ledger(goals)

    def ask(self, who: int, what: str, *arguments: Any) -> None:
        rig = self.rigs[who]
        if what == "work":
            rig.work(*arguments)
        elif what == "run":
            for _ in range(*arguments):
                rig.work(2)
                rig.turn()
        elif what == "tick":
            rig.tick()
        elif what in ("goal", "observe"):
            for one in self.rigs:
                one.stamp_ns = max(one.stamp_ns for one in self.rigs)
            rig.write("goal" if what == "goal" else "observation", *arguments)
        elif what == "interrupt":
            rig.interrupt()
        elif what == "resume":
            rig.engine.handle(protocol.Resume(7, 0, False))
        elif what == "snapshot":
            rig.snapshot("a")
        elif what == "restore":
            rig.restore("home" if arguments[0] else "a", reset=arguments[0])
        elif what == "fork":
            rig.engine.handle(protocol.Fork(5, 0, "", 1, ()))

    def close(self) -> None:
        for rig in self.rigs:
            rig.engine.close()
        states = {self.channel.state(slot) for slot in range(self.channel.num_slots)}
        self.channel.close()
        assert states == {SlotState.FREE}


@pytest.mark.parametrize(
    "options",
    [{}, {"replan_threshold": 2, "retarget": True}],
    ids=["plain", "bending"],
)
@settings(max_examples=20, deadline=None)
@given(order=st.integers(0, 99), asked=st.lists(st.tuples(st.integers(0, 1), _ONE), max_size=60))
def test_histories(
    slow_rig: Callable[..., Any],
    options: dict[str, Any],
    order: int,
    asked: list[tuple[int, tuple[Any, ...]]],
) -> None:
    pair = Pair(slow_rig, **options)
    try:
        for rig in pair.rigs:
            rig.backend.driver.random.seed(order)
            rig.start()
            rig.feed()
        for who, what in asked:
            with suppress(FlashrtError):
                pair.ask(who, *what)
        for rig in pair.rigs:
            rig.finish()
            rig.check_counters()
    finally:
        pair.close()


def write_on(pair: Pair, turns: int) -> set[int]:
    """Write at full rate, one device at the heels of the writer and one far behind."""
    for turn in range(turns):
        for number in range(8):  # more than a ring has slots
            pair.ask(0, "goal", -0.01 * turn, 0.1 * number)
        for who, pace in ((0, 30), (1, 3)):
            pair.ask(who, "observe", 0.01 * turn, 0.25)
            pair.ask(who, "tick")
            pair.ask(who, "run", pace)
    made = [made for _, made, _ in pair.rigs[1].watcher.outputs]
    return {one.goal_sequence for one in made}


def test_the_slow_one_reads_what_it_was_given(slow_rig: Callable[..., Any]) -> None:
    pair = Pair(slow_rig, replan_threshold=4, retarget=True)
    for rig in pair.rigs:
        rig.start()
        rig.feed()
    assert len(write_on(pair, 60)) > 5
    pair.close()


def test_holds_of_one_alone_are_found(slow_rig: Callable[..., Any]) -> None:
    """Negative control: the second engine's holds are not counted."""
    pair = Pair(slow_rig, replan_threshold=4, retarget=True)
    for rig in pair.rigs:
        rig.start()
        rig.feed()
    second = pair.rigs[1].engine.core.latches.channel("goal")
    second._hold = lambda slot: None
    offer = second.offer

    def offer_uncounted(env_index: int, slot: int, meta: Any) -> None:
        offer(env_index, slot, meta)
        pair.channel.release(slot)

    second.offer = offer_uncounted
    second._let_go = lambda slot: None
    with pytest.raises(AssertionError, match="assert b"):
        write_on(pair, 60)
    for rig in pair.rigs:
        rig.engine.close()
