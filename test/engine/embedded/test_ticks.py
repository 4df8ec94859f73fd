"""Timer ticks, steps that wait, and what an output says about itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.jobs import max_step_count
from flashrt_ros.engine.protocol import EventKind, OutputKind
from flashrt_ros.errors import (
    AbandonedError,
    BusyError,
    ConfigError,
    NotActiveError,
    PayloadRangeError,
    StepTimeoutError,
    TickSourceError,
    UnsupportedError,
)

MakeRig = Callable[..., Any]

PERIOD_NS = 100_000_000


def _actions(rig: Any) -> list[Any]:
    return [entry for entry in rig.recorder.outputs if entry[0] is OutputKind.ACTION]


@pytest.fixture
def timed(make_rig: MakeRig) -> Any:
    rig = make_rig()
    rig.start("timer", 10.0)
    rig.goal(0.5, 0.5)
    rig.observe(0.0, 0.0)
    return rig


def test_a_timer_pops_one_action_per_period(timed: Any) -> None:
    timed.run(timed.now_ns + 9 * PERIOD_NS + 2_000_000)
    actions = _actions(timed)
    assert [entry[1].tick for entry in actions] == list(range(1, 11))
    assert [entry[2] for entry in actions] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    sequences = [entry[1].sequence for entry in timed.recorder.outputs]
    assert sequences == sorted(set(sequences))


def test_missed_ticks_are_skipped_and_counted(timed: Any) -> None:
    timed.run(timed.now_ns + PERIOD_NS)
    timed.now_ns += 5 * PERIOD_NS
    timed.engine.on_deadline(timed.now_ns)
    timed.drain()
    assert timed.status().deadline_misses >= 4
    assert timed.engine.next_deadline_ns() > timed.now_ns


def test_a_timer_waits_for_goal_and_observation(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.start("timer")
    rig.run(rig.now_ns + 3 * PERIOD_NS)
    assert _actions(rig) == []
    assert rig.status().waiting_for == "goal"
    rig.goal(0.1, 0.1)
    assert rig.status().waiting_for == "observation"
    rig.observe(0.1, 0.1)
    rig.run(rig.now_ns + PERIOD_NS)
    assert len(_actions(rig)) == 1


def test_a_threshold_replans_before_the_queue_runs_dry(make_rig: MakeRig) -> None:
    rig = make_rig(replan_threshold=2)
    rig.start("timer")
    rig.goal(0.5, 0.5)
    rig.observe(0.0, 0.0)
    rig.run(rig.now_ns + 12 * PERIOD_NS)
    indices = [entry[2] for entry in _actions(rig)]
    assert indices[:7] == [0, 1, 2, 0, 1, 2, 0]


def test_a_plan_that_spans_ticks_skips_the_actions_whose_time_went_by(make_rig: MakeRig) -> None:
    rig = make_rig(replan_threshold=2)
    rig.start("timer")
    rig.goal(0.5, 0.5)
    rig.observe(0.0, 0.0)
    rig.run(rig.now_ns + PERIOD_NS + 2_000_000)  # two ticks: the next finds two actions queued
    rig.now_ns = rig.engine.next_deadline_ns()
    rig.engine.on_deadline(rig.now_ns)
    rig.advance()  # latched
    rig.take_in()
    popped = len(_actions(rig))
    rig.now_ns = rig.engine.next_deadline_ns()
    rig.engine.on_deadline(rig.now_ns)  # the plan is in flight: the old queue serves
    rig.take_in()
    assert len(_actions(rig)) == popped + 1
    rig.drain()
    rig.now_ns = rig.engine.next_deadline_ns()
    rig.engine.on_deadline(rig.now_ns)
    rig.drain()
    assert _actions(rig)[-1][2] == 1


def test_an_interrupt_acts_within_one_tick(timed: Any) -> None:
    timed.run(timed.now_ns + 2 * PERIOD_NS)
    timed.interrupt()
    tick = timed.status().tick
    goal = timed.goal(-0.5, -0.5)
    timed.run(timed.now_ns + PERIOD_NS)
    first = next(e[1] for e in _actions(timed) if e[1].generation == timed.status().generation)
    assert first.goal_sequence == goal
    assert first.tick - tick <= 1


def test_outputs_name_what_they_were_made_from(rig: Any) -> None:
    goal = rig.goal(0.3, 0.3, source_sequence=77)
    observation = rig.observe(0.2, 0.2, stamp_ns=12345)
    made = rig.step(1).chunks[0].provenance
    assert (made.goal_sequence, made.goal_source_sequence) == (goal, 77)
    assert (made.observation_sequence, made.observation_stamp_ns) == (observation, 12345)
    assert (made.engine_epoch, made.env_index, made.latched_tick) == (rig.engine.epoch, 0, 0)


def test_a_chunk_is_published_as_the_model_made_it(rig: Any) -> None:
    chunk = np.frombuffer(rig.step(1).chunks[0].actions, np.float32).reshape(8, 2)
    popped = [np.frombuffer(rig.step(1).actions[0].values, np.float32) for _ in range(3)]
    assert np.array_equal(chunk[1:4], np.stack(popped))


def test_a_step_waits_for_its_observation_and_times_out(rig: Any) -> None:
    answers: list[Any] = []
    request = protocol.Step(1, 0, 1, -1, 10_000, 5_000_000)
    rig.engine.begin_step(request, answers.append)
    assert not rig.engine.has_work
    with pytest.raises(BusyError):
        rig.engine.begin_step(request, answers.append)
    rig.observe(0.1, 0.1, stamp_ns=9_999)
    assert not rig.engine.has_work
    rig.observe(0.1, 0.1, stamp_ns=10_000)
    rig.drain()
    assert answers[0].tick == 1
    rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 20_000, 5_000_000), answers.append)
    rig.now_ns += 5_000_000
    rig.engine.on_deadline(rig.now_ns)
    assert isinstance(answers[1], StepTimeoutError)


def test_a_cancelled_step_leaves_state_whole(rig: Any) -> None:
    state = rig.state()
    job = rig.engine.begin_step(protocol.Step(1, 0, 4, -1, 0, 10**9), lambda answer: None)
    for _ in range(3):
        rig.advance()
    rig.engine.cancel_step(job)
    assert not rig.engine.has_work
    assert rig.state() == state


def test_steps_need_an_active_environment_and_their_tick_source(make_rig: MakeRig) -> None:
    rig = make_rig()
    with pytest.raises(NotActiveError):
        rig.step()
    rig.start("timer")
    with pytest.raises(TickSourceError):
        rig.step()
    with pytest.raises(ConfigError):
        rig.start("sundial")
    for rate_hz in (0.0, -1.0, 1e-310, 1e9, float("nan")):
        with pytest.raises(ConfigError):
            rig.start("timer", rate_hz=rate_hz)
    with pytest.raises(ConfigError):
        make_rig(replan_threshold=5)


def test_a_step_whose_answer_would_not_fit_is_refused_before_it_runs(rig: Any) -> None:
    with pytest.raises(PayloadRangeError, match="fits a message"):
        rig.step(100_000)
    most = max_step_count(rig.engine.core.model, 0)
    stepped = rig.step(most)
    assert len(protocol.encode(stepped)) <= protocol.MAX_MESSAGE_BYTES
    assert stepped.tick == most


def test_the_goal_is_read_where_the_writer_wrote_it(rig: Any) -> None:
    rig.step(1)
    inspection = rig.inspect()
    memory = rig.goals._ring.memory
    assert inspection.goal_transport_copies == 0
    assert (inspection.read_device, inspection.read_inode) == (memory.device, memory.inode)


def test_a_staged_channel_counts_one_copy(make_rig: MakeRig) -> None:
    rig = make_rig(staged_channels=("goal",))
    rig.ready()
    stepped = rig.step(1)
    assert rig.inspect().goal_transport_copies == 1
    assert rig.inspect().read_inode == 0
    straight = make_rig()
    straight.ready()
    assert straight.step(1).chunks[0].actions == stepped.chunks[0].actions


def test_a_write_after_the_commit_is_detected(rig: Any) -> None:
    rig.step(4)
    ring = rig.goals._ring
    slot, ticket, _ = rig.engine.loan(ring)
    view = np.frombuffer(ring.channel.view(ring.first_slot + slot), np.float32, 2)
    view[:] = 0.25
    rig.engine.commit(ring, slot, ticket, stamp_ns=50, source_sequence=0)
    rig.observe(0.0, 0.0)
    rig.step(1)
    view[:] = 0.75
    assert rig.inspect().torn_reads == 0
    rig.step(3)
    rig.goal(0.1, 0.1)
    rig.step(1)
    assert rig.inspect().torn_reads == 1


def test_test_hooks_are_refused_unless_asked_for(make_rig: MakeRig) -> None:
    from flashrt_ros.engine.config import EngineConfig
    from flashrt_ros.engine.engine import Engine
    from flashrt_ros.models.minimal import MinimalPolicy

    with (
        Engine(MinimalPolicy(), EngineConfig(model="minimal")) as engine,
        pytest.raises(UnsupportedError),
    ):
        engine.handle(protocol.Inspect(1, 0))


def test_environments_do_not_touch_each_other(make_rig: MakeRig) -> None:
    rig = make_rig(num_environments=2)
    rig.ready()
    core = rig.engine.core
    other = core.read_section(core.environments[1].lane)
    rig.step(5)
    rig.reset()
    assert core.read_section(core.environments[1].lane) == other
    assert core.environments[1].generation == 1


def test_events_tell_what_happened(rig: Any) -> None:
    rig.step(4)
    rig.snapshot("here")
    rig.interrupt()
    rig.resume()
    rig.fork(count=1)
    rig.restore("here")
    rig.reset()
    kinds = [EventKind(event.kind) for event in rig.recorder.events]
    assert kinds == [
        EventKind.GOAL,
        EventKind.SNAPSHOT,
        EventKind.INTERRUPT,
        EventKind.RESUME,
        EventKind.FORK,
        EventKind.RESTORE,
        EventKind.RESET,
    ]


def test_a_step_from_before_a_reset_does_not_act_after_it(rig: Any) -> None:
    answers: list[Any] = []
    rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 10_000, 10**9), answers.append)
    rig.reset()
    rig.goal(0.1, 0.1)
    rig.observe(0.1, 0.1, stamp_ns=20_000)
    assert not rig.engine.has_work
    assert isinstance(answers[0], AbandonedError)


def test_a_deactivated_environment_forgets_the_actions_it_had_queued(rig: Any) -> None:
    rig.step(1)
    assert rig.engine.environment(0).position.queue_remaining == 3
    rig.engine.handle(protocol.Deactivate(1, 0))
    rig.start()
    stepped = rig.step(1)
    assert len(stepped.chunks) == 1
    assert stepped.actions[0].index == 0


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_seeds_out_of_range_are_refused_untouched(rig: Any, seed: int) -> None:
    rig.step(2)
    before = rig.state(), rig.status().generation, rig.status().lanes_used
    calls: list[Callable[[], object]] = [
        lambda: rig.reset(seed=seed),
        lambda: rig.fork(count=1, seeds=(seed,)),
        lambda: rig.engine.handle(protocol.Reseed(1, 0, seed, 0)),
        lambda: rig.engine.handle(protocol.Reseed(1, 0, 0, seed)),
    ]
    for call in calls:
        with pytest.raises(PayloadRangeError):
            call()
    assert (rig.state(), rig.status().generation, rig.status().lanes_used) == before
