"""Random histories of a policy that is fed by a planner, each over a device that lags behind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import protocol
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.base import Buffers, OutletSpec, Slots
from flashrt_ros.models.minimal import MinimalPolicy

GOAL, _ = MinimalPolicy().channels()
NUM_ROWS = 4
"""One to write, and three for the engine that reads."""

_POINTS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
_ONE = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 12)),
    st.tuples(st.just("run"), st.integers(1, 30)),
    st.tuples(st.just("run"), st.integers(10, 40)),
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
)
_ASKED = st.tuples(st.sampled_from(["planner", "policy"]), _ONE)


def planning(base: type[MinimalPolicy]) -> type[MinimalPolicy]:
    """Return a model that leaves the end of each chunk, in range, for other models."""
    outlet = OutletSpec(replace(GOAL, name="latent"), num_rows=NUM_ROWS)

    class Planner(base):  # type: ignore[misc, valid-type]
        name = "planner"

        def buffers(self) -> Any:
            return (*super().buffers(), *outlet.buffers())

        def outlets(self) -> Any:
            return (outlet,)

        def programs(self) -> Any:
            programs, plan = dict(super().programs()), self.plan()
            commit = programs[plan.commit]

            def commit_and_leave(buffers: Buffers, slots: Slots) -> None:
                commit(buffers, slots)
                outlet.write(buffers, "values", buffers["path"][-1].clamp(-1.0, 1.0))

            return {**programs, plan.commit: commit_and_leave}

    return Planner


class Pair:
    """A planner that scribbles over every row that it is lent, and the policy that it feeds."""

    def __init__(self, make: Callable[..., Any], base: type[MinimalPolicy], **options: Any) -> None:
        self.planner = make(model=planning(base))
        self.outlet: Any = self.planner.engine.outlet("latent")
        self.policy = make(links={"feeds": {"goal": self.outlet}}, **options)
        self._loan, self._commit = self.outlet.loan, self.outlet.commit
        self.outlet.loan, self.outlet.commit = self.loan, self.commit
        self.num_fed = 0

    def loan(self, lane: int, env_index: int) -> int:
        row: int = self._loan(lane, env_index)
        ctypes.memset(self.outlet.row_address(row), 0xFF, 8)
        return row

    def commit(self, row: int, env_index: int, **more: int) -> int:
        left = np.frombuffer(ctypes.string_at(self.outlet.row_address(row), 8), np.float32)
        taken: int = self._commit(row, env_index, **more)
        if taken:
            self.num_fed += 1
            channel = self.policy.engine.core.latches.channel("goal")
            sequence = channel.meta(channel.pending(0)).sequence
            self.policy.written["goal", sequence] = tuple(map(float, left))
        return taken

    def ask(self, who: str, what: str, *arguments: Any) -> None:
        rig = self.planner if who == "planner" else self.policy
        engine = rig.engine
        if what == "work":
            rig.work(*arguments)
        elif what == "run":
            for _ in range(*arguments):
                rig.work(2)
                rig.turn()
        elif what == "tick":
            rig.tick()
        elif what in ("goal", "observe"):
            # the planner's observations are the policy's goals: stamped by one clock
            self.planner.stamp_ns = self.policy.stamp_ns = max(
                self.planner.stamp_ns, self.policy.stamp_ns
            )
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

    def close(self) -> None:
        self.policy.engine.close()
        assert self.outlet.num_free == self.outlet.spec.num_rows * len(
            self.planner.engine.core.pool.lanes
        )
        self.planner.engine.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"replan_threshold": 2, "retarget": True}, {"staged_channels": ("goal",)}],
    ids=["plain", "bending", "staged"],
)
@settings(max_examples=20, deadline=None)
@given(order=st.integers(0, 99), asked=st.lists(_ASKED, max_size=60))
def test_histories(
    slow_rig: Callable[..., Any],
    memoryless: type[MinimalPolicy],
    options: dict[str, Any],
    order: int,
    asked: list[tuple[str, tuple[Any, ...]]],
) -> None:
    pair = Pair(slow_rig, memoryless, **options)
    try:
        for rig in (pair.planner, pair.policy):
            rig.backend.driver.random.seed(order)
            rig.start()
            rig.feed()
        for who, what in asked:
            with suppress(FlashrtError):
                pair.ask(who, *what)
        for rig in (pair.planner, pair.policy):
            rig.finish()
            rig.check_counters()
    finally:
        pair.close()


def feed_on(pair: Pair, turns: int) -> None:
    """Let both go on at full rate, the planner's device far ahead of the policy's."""
    for turn in range(turns):
        pair.ask("planner", "goal", -0.01 * turn, 0.5)
        pair.ask("planner", "observe", 0.25, 0.01 * turn)
        pair.ask("planner", "tick")
        pair.ask("planner", "run", 30)
        pair.ask("policy", "observe", 0.01 * turn, 0.25)
        pair.ask("policy", "tick")
        pair.ask("policy", "run", 3)


def test_the_policy_acts_on_what_the_planner_left_while_both_run(
    slow_rig: Callable[..., Any], memoryless: type[MinimalPolicy]
) -> None:
    pair = Pair(slow_rig, memoryless, replan_threshold=4, retarget=True)
    for rig in (pair.planner, pair.policy):
        rig.start()
        rig.feed()
    feed_on(pair, 60)
    made = [made for kind, made, _ in pair.policy.watcher.outputs if kind.name == "CHUNK"]
    assert pair.num_fed > 10
    assert len({one.goal_sequence for one in made}) > 5
    pair.close()


def test_a_row_is_judged_once_the_device_has_told_of_it(
    slow_rig: Callable[..., Any], memoryless: type[MinimalPolicy]
) -> None:
    """Not by what the plan before has left: each is judged as it is, good and bad in turn."""

    class Wild(planning(memoryless)):  # type: ignore[misc]
        def programs(self) -> Any:
            programs, plan = dict(memoryless.programs(self)), self.plan()
            commit, (outlet,) = programs[plan.commit], self.outlets()

            def commit_and_leave(buffers: Buffers, slots: Slots) -> None:
                commit(buffers, slots)
                goal = buffers["goal_latched"]
                outlet.write(buffers, "values", goal * goal / goal)  # no number where one is 0

            return {**programs, plan.commit: commit_and_leave}

    planner = slow_rig(model=Wild)
    policy = slow_rig(links={"feeds": {"goal": planner.engine.outlet("latent")}})
    events: list[protocol.Event] = []
    planner.watcher.event = events.append
    planner.start("step")
    taken = []
    for x in (0.5, 0.0, 0.25, 0.0, 0.0, 1.0):
        planner.feed(x, 0.5)
        before = policy.engine.core.latches.newest(policy.engine.environment(0), "goal")
        for count in (0, 4):
            planner.begin_step(count)
            planner.finish()
        after = policy.engine.core.latches.newest(policy.engine.environment(0), "goal")
        taken.append(after.sequence > before.sequence)
    assert taken == [True, False, True, False, False, True]
    faults = [event.detail for event in events if event.kind == protocol.EventKind.FAULT]
    assert [detail.partition(":")[0] for detail in faults] == ["NON_FINITE"] * 3
    policy.engine.close()
    planner.engine.close()


def test_a_row_that_is_lent_too_early_is_found(
    slow_rig: Callable[..., Any], memoryless: type[MinimalPolicy]
) -> None:
    """Negative control: holds that are not counted."""
    pair = Pair(slow_rig, memoryless, replan_threshold=4, retarget=True)
    for rig in (pair.planner, pair.policy):
        rig.start()
        rig.feed()

    def loan(lane: int, env_index: int) -> int:
        pair.outlet._references = [0] * len(pair.outlet._references)
        return pair.loan(lane, env_index)

    pair.outlet.loan = loan
    with pytest.raises(AssertionError, match="assert b"):
        feed_on(pair, 60)
    pair.policy.finish = pair.planner.finish = lambda: None
    pair.policy.engine.close()
    pair.planner.engine.close()
