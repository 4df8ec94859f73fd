"""Random histories of engines that come and go: a planner, and policies that share and are fed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import protocol
from flashrt_ros.engine.ring import SlotState
from flashrt_ros.engine.shared import SharedChannel
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.minimal import MinimalPolicy
from test.engine.lagging.embedded.test_fed import planning
from test.engine.lagging.embedded.test_sharing import Ledger

GOAL, _ = MinimalPolicy().channels()
NUM_POLICIES = 2

_POINTS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
_ONE = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 40)),
    st.tuples(st.just("tick")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("goal"), _POINTS, _POINTS),
    st.tuples(st.just("observe"), _POINTS, _POINTS),
    st.tuples(st.just("interrupt")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("restore"), st.booleans()),
    st.tuples(st.just("fork")),
    st.tuples(st.just("select")),
    st.tuples(st.just("leave")),
)
_ASKED = st.tuples(st.integers(0, NUM_POLICIES), _ONE)


class Crowd:
    """A planner (0) and policies (1 on); one that leaves is followed by another."""

    def __init__(self, make: Callable[..., Any], base: type[MinimalPolicy], order: int) -> None:
        self._make, self._base, self._order = make, base, order
        self.channel = SharedChannel(GOAL, num_consumers=NUM_POLICIES)
        self.goals: dict[tuple[str, int], tuple[float, ...]] = {}
        self.outlets: list[Any] = []
        self.planner = self._new_planner()
        self.policies = [self._new_policy() for _ in range(NUM_POLICIES)]

    def _start(self, rig: Any) -> Any:
        rig.backend.driver.random.seed(self._order)
        rig.start()
        return rig

    def _new_planner(self) -> Any:
        rig = self._start(self._make(model=planning(self._base)))
        outlet: Any = rig.engine.outlet("latent")
        loan, commit = outlet.loan, outlet.commit

        def loan_and_scribble(lane: int, env_index: int) -> int:
            row: int = loan(lane, env_index)
            ctypes.memset(outlet.row_address(row), 0xFF, 8)
            return row

        def note_and_commit(row: int, env_index: int, **more: int) -> int:
            left = np.frombuffer(ctypes.string_at(outlet.row_address(row), 8), np.float32)
            sequence = self.channel._sequences[0] + 1
            self.goals["goal", sequence] = tuple(map(float, left))
            taken: int = commit(row, env_index, **more)
            return taken

        outlet.loan, outlet.commit = loan_and_scribble, note_and_commit
        self.outlets.append(outlet)
        return rig

    def _new_policy(self) -> Any:
        links = {"shared": {"goal": self.channel}, "feeds": {"goal": self.outlets[-1]}}
        rig = self._make(links=links, replan_threshold=2, retarget=True)
        rig.written = Ledger(self.goals)
        return self._start(rig)

    @property
    def rigs(self) -> list[Any]:
        return [self.planner, *self.policies]

    def ask(self, who: int, what: str, *arguments: Any) -> None:
        rig = self.rigs[who]
        engine = rig.engine
        if what == "run":
            for _ in range(*arguments):
                rig.work(2)
                rig.turn()
        elif what == "tick":
            rig.tick()
        elif what in ("goal", "observe"):
            newest_ns = max(one.stamp_ns for one in self.rigs)
            for one in self.rigs:
                one.stamp_ns = newest_ns
            rig.write("goal" if what == "goal" else "observation", *arguments)
        elif what == "interrupt":
            rig.interrupt()
        elif what == "resume":
            engine.handle(protocol.Resume(7, 0, False))
        elif what == "snapshot":
            rig.snapshot("a")
        elif what == "restore":
            rig.restore("home" if arguments[0] else "a", reset=arguments[0])
        elif what == "fork":
            engine.handle(protocol.Fork(5, 0, "", 1, ()))
        elif what == "select" and engine.core.branches:
            engine.handle(protocol.Select(1, 0, min(engine.core.branches), True))
        elif what == "leave":
            self.leave(who)

    def leave(self, who: int) -> None:
        """Close an engine, whatever is under way, and have another take its place."""
        self.rigs[who].engine.close()
        if who:
            self.policies[who - 1] = self._new_policy()
        else:  # those that it fed go on, and are fed no more
            self.planner = self._new_planner()

    def close(self) -> None:
        for rig in self.policies:
            rig.engine.close()
        states = {self.channel.state(slot) for slot in range(self.channel.num_slots)}
        references = [sum(outlet._references) for outlet in self.outlets]
        self.planner.engine.close()
        self.channel.close()
        assert states == {SlotState.FREE}
        assert not any(references)


@settings(max_examples=25, deadline=None)
@given(order=st.integers(0, 99), asked=st.lists(_ASKED, max_size=60))
def test_histories(
    slow_rig: Callable[..., Any],
    memoryless: type[MinimalPolicy],
    order: int,
    asked: list[tuple[int, tuple[Any, ...]]],
) -> None:
    crowd = Crowd(slow_rig, memoryless, order)
    try:
        for rig in crowd.rigs:
            rig.feed()
        for who, what in asked:
            with suppress(FlashrtError):
                crowd.ask(who, *what)
        for rig in crowd.rigs:
            rig.finish()
            rig.check_counters()
    finally:
        crowd.close()
