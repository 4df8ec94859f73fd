"""An engine over a device that lags behind: what goes out and when, and who may write what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.library import Library
from flashrt_ros.errors import BackendError, DeviceLostError
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import ArenaLayout

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes


def test_an_action_that_is_late_is_not_taken_for_the_next(slow: Any) -> None:
    slow.tick()
    slow.tick()
    slow.tick()
    slow.finish()
    assert [index for kind, index in slow.kinds() if kind == "action"] == [0, 1]
    assert slow.engine._ticks.plans.stats[0].deadline_misses == 2
    slow.tick()
    slow.finish()
    assert slow.kinds()[-1] == ("action", 2)
    slow.check_counters()


def test_a_chunk_is_published_before_its_actions(slow: Any) -> None:
    slow.empty()
    slow.fly(5)
    before = len(slow.watcher.outputs)
    slow.tick()  # the commit is submitted: this pops its first action
    slow.backend.synchronize()
    slow.engine._ticks.plans._land_pops()
    assert len(slow.watcher.outputs) == before
    slow.finish()
    assert slow.kinds()[before : before + 2] == [("chunk", 0), ("action", 0)]
    slow.check_counters()


def test_an_action_of_the_old_chunk_is_published_before_the_new_one(
    make_slow: Callable[..., Any],
) -> None:
    rig = make_slow(replan_threshold=2)
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    rig.tick()
    rig.finish()
    rig.tick()  # finds two: the next chunk is made beside them
    rig.fly(4)
    rig.work(100)
    rig.tick()
    rig.turn()
    flight = rig.engine._ticks.plans._flight
    assert flight is not None
    assert flight.run.is_done
    before = len(rig.watcher.outputs)
    rig.work(100)  # both are done when the host looks
    rig.finish()
    assert rig.kinds()[before:] == [("action", 3), ("chunk", 0)]


def test_two_ticks_of_one_chunk_pop_no_action_twice(slow: Any) -> None:
    slow.empty()
    slow.fly(5)
    before = len(slow.watcher.outputs)
    slow.tick()
    slow.finish()
    assert slow.kinds()[before:] == [("chunk", 0), ("action", 0)]
    slow.tick()
    slow.finish()
    assert slow.kinds()[-1] == ("action", 1)


@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
def test_nothing_of_an_interrupted_plan_is_published(slow: Any, nodes: int) -> None:
    slow.empty()
    slow.fly(nodes)
    before = len(slow.watcher.outputs)
    assert slow.interrupt().boundary == nodes
    slow.backend.synchronize()
    for _ in range(8):
        slow.turn()
    slow.check_counters()
    assert len(slow.watcher.outputs) == before


@pytest.mark.parametrize("count", [1, 4])
def test_a_step_answers_when_the_device_is_done(make_slow: Callable[..., Any], count: int) -> None:
    rig = make_slow()
    rig.start("step")
    rig.feed()
    answers = rig.begin_step(count)
    while rig.engine.has_work:
        rig.turn()
    assert not answers
    rig.finish()
    assert [record.index for record in answers[0].actions] == list(range(count))
    assert rig.kinds() == [("chunk", 0), *[("action", index) for index in range(count)]]


def test_a_slot_is_not_lent_while_the_device_may_read_it(make_slow: Callable[..., Any]) -> None:
    rig = make_slow()
    rig.start("step")
    rig.feed()
    rig.begin_step(1)
    rig.turn()  # the latch node is submitted, and has not run
    held = rig.engine.environment(0).latched["observation"].slot
    channel = rig.engine.core.latches.channel("observation")
    rig.interrupt()
    lent = set()
    for _ in range(2 * channel.spec.num_ring_slots):
        if rig.write("observation", 0.3, 0.3):
            lent.add(channel.pending(0))
        rig.restore("home") if _ == 2 else None
    assert held not in lent
    rig.backend.synchronize()
    for _ in range(2 * channel.spec.num_ring_slots):
        assert rig.write("observation", 0.3, 0.3)
        lent.add(channel.pending(0))
    assert held in lent


def test_goals_are_brought_back_as_often_as_asked(make_slow: Callable[..., Any]) -> None:
    rig = make_slow()
    rig.start("step")
    rig.feed()
    rig.begin_step(1)
    rig.finish()
    rig.snapshot("here")
    for _ in range(6):
        rig.restore("here")
        rig.write("observation", 0.1, 0.2)
        rig.begin_step(1)
        for _ in range(4):
            rig.turn()  # as far as it goes while the device does nothing
    rig.finish()
    rig.check_counters()


def aim_twice(rig: Any) -> None:
    """Step under one goal, keep the boundary, and step under another."""
    rig.start("step")
    rig.feed(0.9, 0.9)
    rig.begin_step(4)
    rig.finish()
    rig.snapshot("here")
    rig.feed(-0.9, -0.9)
    rig.begin_step(1)
    rig.finish()


def test_a_goal_that_is_on_its_way_back_can_be_interrupted(make_slow: Callable[..., Any]) -> None:
    rig = make_slow()
    aim_twice(rig)
    rig.restore("here")
    rig.interrupt()
    rig.engine.handle(protocol.Resume(7, 0, False))
    rig.write("observation", 0.1, 0.2)
    answers = rig.begin_step(1)
    rig.finish()
    assert answers[0].chunks[0].provenance.goal_sequence == 1


def test_a_goal_on_its_way_back_does_not_land_on_the_next(make_slow: Callable[..., Any]) -> None:
    rig = make_slow(num_branch_lanes=0)
    aim_twice(rig)
    rig.interrupt()  # under the second goal
    here = rig.engine.core.store.get("here").id
    for _ in range(5):
        rig.engine.handle(protocol.Rollback(1, 0, 0, here))
    rig.backend.driver.laziest = rig.backend.streams.copy.handle
    rig.engine.handle(protocol.Resume(7, 0, False))
    rig.write("observation", 0.1, 0.2)
    answers = rig.begin_step(4)
    rig.finish()
    assert answers[0].chunks[0].provenance.goal_sequence == 2


def test_draws_of_plans_that_were_left_keep_their_bytes(make_slow: Callable[..., Any]) -> None:
    rig = make_slow()
    rig.start("step")
    for seed in range(8):
        rig.restore("home", reset=True, seed=seed)
        rig.feed()
        answers = rig.begin_step(1)
        for _ in range(4):
            rig.turn()
    rig.finish()
    assert len(answers[0].chunks) == 1
    rig.check_counters()


def test_few_nodes_are_under_way_however_often_plans_are_left(
    make_slow: Callable[..., Any],
) -> None:
    rig = make_slow()
    rig.start("step")
    plan = rig.backend.streams.plan
    rig.feed()
    before = plan.num_marks
    for _ in range(8):
        rig.begin_step(1)
        for _ in range(4):
            rig.turn()
        rig.interrupt()
    assert plan.num_marks - before <= 2
    rig.finish()
    rig.check_counters()


def test_a_spill_holds_no_action_up(make_slow: Callable[..., Any]) -> None:
    rig = make_slow(
        has_own_memory=True,
        capsule_quota_bytes=2 * BLOCK_BYTES,
        num_standby_lanes=0,
        replan_threshold=3,
    )
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    rig.settle()
    rig.write("observation", 0.1, 0.2)
    rig.tick()
    while rig.engine.has_work:
        rig.turn()
    rig.backend.streams.state.wait(rig.backend.streams.state.num_marks)
    rig.advance()
    assert rig.kinds()[-1] == ("action", 1)
    rig.snapshot("first")  # the tier is full
    rig.begin_background()
    rig.assert_actions_come_beside_the_plan()


def test_a_boundary_that_can_not_be_kept_is_a_fault_and_no_end(
    make_slow: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = make_slow(rollback_every_ticks=1)
    events: list[protocol.Event] = []
    slow.watcher.event = events.append
    slow.start()
    slow.feed()
    slow.tick()

    def fail(*_: int) -> None:
        raise BackendError("the device refuses")

    with monkeypatch.context() as patch:
        patch.setattr(slow.backend, "copy_aside", fail)
        slow.finish()  # the action is taken in later than it was popped
    faults = [event.detail for event in events if event.kind == protocol.EventKind.FAULT]
    assert faults == ["BACKEND: the device refuses"]
    assert slow.kinds() == [("chunk", 0), ("action", 0)]
    slow.tick()
    slow.finish()
    assert slow.kinds()[-1] == ("action", 1)
    assert len(slow.engine.environment(0).boundaries) == 1


def test_a_fork_holds_no_action_up(make_slow: Callable[..., Any]) -> None:
    rig = make_slow(replan_threshold=3)
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    rig.snapshot("here")
    rig.write("observation", 0.1, 0.2)
    rig.tick()
    while rig.engine.has_work:
        rig.turn()
    rig.backend.streams.state.wait(rig.backend.streams.state.num_marks)
    rig.advance()
    rig.engine.handle(protocol.Fork(5, 0, "here", 2, ()))
    rig.assert_actions_come_beside_the_plan()


def test_a_file_holds_what_the_device_had_copied(
    make_slow: Callable[..., Any], tmp_path: Path
) -> None:
    rig = make_slow(has_own_memory=True, rollback_tier="host", capsule_folder=str(tmp_path))
    rig.start("step")
    rig.feed()
    rig.begin_step(1)
    rig.finish()
    rig.settle()
    rig.feed()
    rig.begin_step(4)
    rig.backend.driver.laziest = rig.backend.streams.copy.handle
    while len(rig.engine.environment(0).boundaries) < 2:
        if not rig.engine.has_work:
            rig.work(1)
        rig.advance()
    boundary = rig.engine.environment(0).boundaries[-1]
    saved: list[Any] = []
    request = protocol.Save(1, 0, boundary.id, "saved", False)
    rig.engine.begin(request, saved.append)
    # a plan's node, submitted last, may be done long before the copy
    rig.engine.core.environments[0].lane.replay(("step", 0))
    rig.backend.streams.plan.wait(rig.backend.streams.plan.num_marks)
    assert not rig.backend.driver.is_idle(rig.backend.streams.copy.handle)
    while not saved:
        if rig.engine.core.storage.mover.wait(1.0):
            rig.engine._waits.background(1 << 20)
        rig.work(1)
    rig.backend.synchronize()
    expected = rig.backend.read(boundary.block.address, boundary.num_bytes)
    rig.engine.handle(protocol.Load(1, 0, "saved", "loaded", False, False))
    capsule = rig.engine.core.store.get("loaded")
    assert rig.backend.read(capsule.block.address, capsule.num_bytes) == expected


def test_an_engine_closes_with_everything_under_way(
    make_slow: Callable[..., Any], tmp_path: Path
) -> None:
    rig = make_slow(
        has_own_memory=True, capsule_quota_bytes=2 * BLOCK_BYTES, capsule_folder=str(tmp_path)
    )
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    rig.snapshot("kept")
    rig.empty()
    rig.fly(2)
    rig.begin_background()
    rig.engine.close()
    assert not rig.backend.driver.step()
    rig.engine.close()


def test_what_fails_to_close_keeps_nothing_else_open(
    slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = slow.engine.core
    monkeypatch.setattr(core.storage.mover, "_job", LostJob())
    with pytest.raises(DeviceLostError):
        slow.engine.close()
    assert core.latches.channel("goal")._is_closed
    slow.engine.close()


class LostJob:
    """A copy whose device is gone."""

    def wait(self) -> None:
        raise DeviceLostError("the device is lost")


def test_an_engine_that_can_not_begin_leaves_nothing_open(
    slow_rig: Callable[..., Any], slow_backend: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def fail(library: Library) -> None:
        raise DeviceLostError("the device is lost")

    monkeypatch.setattr(Library, "take_in_kept", fail)
    monkeypatch.setattr(slow_backend, "close", lambda backend: closed.append(backend))
    with pytest.raises(DeviceLostError):
        slow_rig()
    assert len(closed) == 1
