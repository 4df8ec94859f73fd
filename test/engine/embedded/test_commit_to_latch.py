"""A goal is latched within one tick of its commit, wherever in a tick or plan that falls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import protocol
from flashrt_ros.engine.protocol import EventKind, OutputKind
from flashrt_ros.errors import PayloadRangeError
from flashrt_ros.models.minimal import MinimalPolicy

PERIOD_NS = 100_000_000
EVERY_TICK = MinimalPolicy.execute_horizon
"""A replan threshold with which each tick makes the next chunk too."""

MakeRig = Callable[..., Any]
moments = st.lists(st.integers(0, 3 * PERIOD_NS), min_size=1, max_size=12)
random_histories = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def latches(rig: Any) -> dict[int, tuple[int, int, int]]:
    """Return commit and latch of every goal by its sequence, engine clock, and the node."""
    found = {}
    for event in rig.recorder.events:
        if event.kind == EventKind.GOAL:
            said = {
                key: value for key, _, value in (w.partition("=") for w in event.detail.split())
            }
            node = int(said.get("node", 0))
            found[int(said["sequence"])] = int(said["committed_ns"]), int(said["latched_ns"]), node
    return found


def begin(rig: Any) -> int:
    rig.start("timer", 1e9 / PERIOD_NS)
    rig.observe(0.1, 0.2)
    rig.goal(0.5, -0.5)
    rig.run(rig.now_ns + PERIOD_NS)
    now_ns: int = rig.now_ns
    return now_ns


def check(rig: Any, committed: dict[int, int], first_latch: int) -> None:
    """Each goal was latched in time, unless a newer one came before its tick."""
    found = latches(rig)
    for sequence, committed_ns in committed.items():
        newer = [ns for other, ns in committed.items() if other > sequence]
        if sequence in found:
            assert found[sequence][0] == committed_ns
            assert 0 <= found[sequence][1] - committed_ns <= PERIOD_NS
        else:
            assert min(newer) <= committed_ns + PERIOD_NS
    assert max(found) == max(committed, default=first_latch)


@random_histories
@given(moments=moments)
@pytest.mark.parametrize("option", [{"replan_threshold": EVERY_TICK}, {"replan_on_goal": True}])
def test_a_commit_is_latched_by_the_next_tick(
    make_rig: MakeRig, option: dict[str, Any], moments: list[int]
) -> None:
    rig = make_rig(**option)
    try:
        start_ns = begin(rig)
        committed = {}
        for moment in sorted(moments):
            rig.run(start_ns + moment)
            committed[rig.goal(0.1, 0.1)] = rig.now_ns
        rig.run(rig.now_ns + PERIOD_NS)
        check(rig, committed, 1)
    finally:
        rig.engine.close()


def test_the_control_latches_with_the_next_chunk_only(make_rig: MakeRig) -> None:
    rig = make_rig()
    begin(rig)
    rig.goal(0.1, 0.1)
    rig.run(rig.now_ns + PERIOD_NS)
    assert max(latches(rig)) == 1
    rig.run(rig.now_ns + 3 * PERIOD_NS)
    assert max(latches(rig)) == 2


def test_a_new_goal_and_nothing_else_brings_the_next_chunk_forward(make_rig: MakeRig) -> None:
    rig = make_rig(replan_on_goal=True)
    begin(rig)
    num_chunks = count_chunks(rig)
    rig.run(rig.now_ns + PERIOD_NS)
    rig.observe(0.2, 0.2)
    rig.run(rig.now_ns + PERIOD_NS)
    assert count_chunks(rig) == num_chunks
    rig.goal(0.1, 0.1)
    rig.run(rig.now_ns + PERIOD_NS)
    assert count_chunks(rig) == num_chunks + 1
    rig.run(rig.now_ns + 2 * PERIOD_NS)
    assert count_chunks(rig) == num_chunks + 1


def test_a_step_makes_a_chunk_under_a_goal_committed_before_it(make_rig: MakeRig) -> None:
    rig = make_rig(replan_on_goal=True)
    rig.ready()
    rig.step(2)
    rig.goal(0.1, 0.1)
    assert len(rig.step(1).chunks) == 1
    assert not rig.step(1).chunks
    with pytest.raises(PayloadRangeError, match="fits a message"):
        rig.step(10_000)


def count_chunks(rig: Any) -> int:
    return sum(kind is OutputKind.CHUNK for kind, *_ in rig.recorder.outputs)


def interrupt_with_a_goal(rig: Any) -> int:
    ring = rig.goals._ring
    slot, ticket, _ = rig.engine.loan(ring)
    np.frombuffer(ring.channel.view(ring.first_slot + slot), np.float32, 2)[:] = [0.7, 0.7]
    rig.stamp_ns += 1
    commit = protocol.Commit(0, 0, slot, ticket, rig.stamp_ns, 42, False)
    reply = rig.engine.interrupt(protocol.Interrupt(1, 0, "", False, commit), ring)
    sequence: int = reply.goal_sequence
    return sequence


@random_histories
@given(
    moments=moments.filter(lambda moments: len(moments) <= 8),
    nodes=st.lists(st.integers(0, 4), min_size=12, max_size=12),
)
def test_a_goal_that_interrupts_is_latched_by_the_next_tick_whatever_is_in_flight(
    make_rig: MakeRig, moments: list[int], nodes: list[int]
) -> None:
    rig = make_rig()
    try:
        start_ns = begin(rig)
        committed = {}
        for moment, left in zip(sorted(moments), nodes, strict=False):
            while (due := rig.engine.next_deadline_ns()) <= start_ns + moment:
                rig.now_ns = due
                rig.engine.on_deadline(due)
                if due + PERIOD_NS <= start_ns + moment:
                    rig.drain()
                else:  # the tick in which the interrupt comes: its plan is not done
                    for _ in range(left):
                        rig.advance()
            rig.now_ns = start_ns + moment
            committed[interrupt_with_a_goal(rig)] = rig.now_ns
            rig.advance()  # the loop's next turn
        rig.drain()
        rig.run(rig.now_ns + PERIOD_NS)
        check(rig, committed, 1)
    finally:
        rig.engine.close()


@random_histories
@given(before=st.integers(1, 3), ticks=st.integers(0, 3))
@pytest.mark.parametrize("replan_threshold", [0, 2])
def test_with_retarget_a_commit_in_a_plan_of_many_ticks_is_latched_with_its_next_step(
    make_rig: MakeRig, before: int, ticks: int, replan_threshold: int
) -> None:
    rig = make_rig(retarget=True, replan_threshold=replan_threshold)
    try:
        begin(rig)
        while rig.engine._ticks.plans._flight is None:
            rig.now_ns = rig.engine.next_deadline_ns()
            rig.engine.on_deadline(rig.now_ns)
            if not rig.engine._ticks.plans._ready:
                rig.drain()
            else:
                rig.advance()
        for _ in range(before - 1):
            rig.advance()
        for _ in range(ticks):  # the device is slow
            rig.now_ns = rig.engine.next_deadline_ns()
            rig.engine.on_deadline(rig.now_ns)
        rig.engine.core.backend.synchronize()  # the goal before was read: the next node bends
        committed = {rig.goal(0.1, 0.1): rig.now_ns}
        rig.advance()
        check(rig, committed, 1)
        (sequence,) = committed
        assert latches(rig)[sequence][2] == before
        assert latches(rig)[sequence][1] == rig.now_ns
    finally:
        rig.engine.close()


def test_a_step_makes_a_chunk_for_each_of_its_ticks_too(make_rig: MakeRig) -> None:
    rig = make_rig(replan_threshold=EVERY_TICK)
    rig.ready()
    done = rig.step(6)
    assert len(done.chunks) == len(done.actions) == 6
    assert [action.index for action in done.actions] == [0] * 6
    with pytest.raises(PayloadRangeError, match="fits a message"):
        rig.step(10_000)


def first_action_under(rig: Any, sequence: int) -> bool:
    return any(
        kind is OutputKind.ACTION and made.goal_sequence == sequence
        for kind, made, *_ in rig.recorder.outputs
    )


def test_a_goal_that_interrupts_is_acted_on_by_the_next_tick(make_rig: MakeRig) -> None:
    """Its chunk is begun at once, so that the tick finds it made."""
    rig = make_rig()
    begin(rig)
    sequence = interrupt_with_a_goal(rig)
    assert rig.engine.has_work
    rig.drain()
    assert latches(rig)[sequence][1] == rig.now_ns
    assert not first_action_under(rig, sequence)  # actions keep to the ticks
    rig.now_ns = rig.engine.next_deadline_ns()
    rig.engine.on_deadline(rig.now_ns)
    rig.take_in()
    assert first_action_under(rig, sequence)
    assert rig.status().deadline_misses == 0


def test_a_chunk_that_is_late_for_its_tick_is_acted_on_when_it_is_made(make_rig: MakeRig) -> None:
    rig = make_rig()
    begin(rig)
    sequence = interrupt_with_a_goal(rig)
    rig.advance()
    for expected_misses in (0, 1):  # the first is served late, the second not at all
        rig.now_ns = rig.engine.next_deadline_ns()
        rig.engine.on_deadline(rig.now_ns)
        assert rig.status().deadline_misses == expected_misses
    rig.drain()
    assert first_action_under(rig, sequence)
    assert rig.engine.environment(0).position.queue_head == 1


def test_an_interrupt_without_a_goal_waits_for_its_tick(make_rig: MakeRig) -> None:
    """So that a goal which comes next, on its own, is in time for the chunk."""
    rig = make_rig()
    begin(rig)
    rig.interrupt()
    assert not rig.engine.has_work
    sequence = rig.goal(0.3, 0.3)
    rig.run(rig.now_ns + PERIOD_NS)
    assert first_action_under(rig, sequence)


def test_an_interrupted_environment_that_is_stepped_waits_for_its_step(rig: Any) -> None:
    rig.step(2)
    interrupt_with_a_goal(rig)
    assert not rig.engine.has_work
