"""Verbs at the wrong moment: what is refused leaves no trace, what is done is done whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_ros.engine import linux, protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.errors import (
    AbandonedError,
    BackendError,
    CaptureError,
    FlashrtError,
    LanePoisonedError,
    LoanError,
    NonFiniteError,
    SpecError,
    StaleGenerationError,
    TickSourceError,
)
from flashrt_ros.models.action_queue import counter
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import Role

MakeRig = Callable[..., Any]


def _loaned_goal(rig: Any, x: float, ring: Any = None) -> tuple[Any, protocol.Commit]:
    ring = ring or rig.goals._ring
    slot, ticket, _ = rig.engine.loan(ring)
    np.frombuffer(ring.channel.view(ring.first_slot + slot), np.float32, 2)[:] = x
    return ring, protocol.Commit(0, 0, slot, ticket, 1_000, 9, False)


def _facts(rig: Any) -> tuple[object, ...]:
    env = rig.engine.environment(0)
    pending = [rig.engine.core.latches.channel(name).pending(0) for name in ("goal", "observation")]
    return rig.state(), env.generation, dict(env.latched), pending, rig.status().num_capsules


# interrupts ----------------------------------------------------------------------------------


def test_a_goal_loaned_before_a_reset_does_not_act_through_an_interrupt(rig: Any) -> None:
    ring, commit = _loaned_goal(rig, 0.9)
    rig.reset()
    before = _facts(rig)
    with pytest.raises(StaleGenerationError):
        rig.engine.interrupt(protocol.Interrupt(1, 0, "", False, commit), ring)
    assert _facts(rig) == before


def test_an_interrupt_takes_goals_of_its_own_environment_only(make_rig: MakeRig) -> None:
    rig = make_rig(num_environments=2)
    rig.ready()
    rig.step(1)
    with EmbeddedWriter(rig.engine, "goal", 1) as other:
        for ring in (other._ring, rig.observations._ring):
            _, commit = _loaned_goal(rig, 0.5, ring)
            before = _facts(rig)
            with pytest.raises(LoanError, match="goal writer of environment 0"):
                rig.engine.interrupt(protocol.Interrupt(1, 0, "", False, commit), ring)
            assert _facts(rig) == before
            rig.engine.return_loan(ring, commit.slot, commit.ticket)


def test_an_interrupt_on_a_poisoned_lane_changes_nothing(rig: Any) -> None:
    rig.step(1)
    rig.goal(0.1, 0.1)
    ring, commit = _loaned_goal(rig, 0.9)
    rig.engine.environment(0).lane.poison("a test said so")
    before = _facts(rig)
    with pytest.raises(LanePoisonedError):
        rig.engine.interrupt(protocol.Interrupt(1, 0, "", False, commit), ring)
    assert _facts(rig) == before


def test_a_goal_on_its_way_does_not_replace_the_interrupts_until_the_resume(rig: Any) -> None:
    rig.step(1)
    ring, commit = _loaned_goal(rig, 0.9)  # stamped 1000
    reply = rig.engine.interrupt(protocol.Interrupt(1, 0, "", False, commit), ring)
    with pytest.raises(FlashrtError, match="older"):
        rig.goal(0.1, 0.1, stamp_ns=999)
    made = rig.step(1).chunks[0].provenance
    assert (made.goal_sequence, reply.tick) == (reply.goal_sequence, 1)
    rig.resume()
    rig.goal(0.1, 0.1, stamp_ns=999)


def test_a_restore_lifts_the_bound_of_the_interrupts_it_forgets(rig: Any) -> None:
    rig.step(1)
    ring, commit = _loaned_goal(rig, 0.9)
    rig.engine.interrupt(protocol.Interrupt(1, 0, "", False, commit), ring)
    rig.restore("home")
    rig.goal(0.1, 0.1, stamp_ns=999)


def test_home_means_that_of_the_verbs_environment(make_rig: MakeRig) -> None:
    rig = make_rig(num_environments=2)
    rig.ready()
    rig.engine.handle(protocol.Activate(1, 1, "step", 0.0))
    reply = rig.engine.handle(protocol.Pin(1, "home", True, 1))
    assert reply.capsule.name == "home.1"
    for request in (protocol.Pin(1, "home", True, 2), protocol.Drop(1, "home", 2)):
        with pytest.raises(FlashrtError, match="no environment"):
            rig.engine.handle(request)


# branches ------------------------------------------------------------------------------------


def test_a_reset_between_two_branch_steps_ends_the_step_not_the_engine(rig: Any) -> None:
    rig.step(4)
    forked = rig.fork(count=2)
    answers: list[Any] = []
    for branch in forked.branches:
        request = protocol.Step(1, 0, 8, branch, 0, 10**9)
        rig.engine.begin_step(request, answers.append)
    rig.advance()
    rig.restore("home")
    rig.drain()
    assert [type(answer) for answer in answers] == [AbandonedError, AbandonedError]
    rig.observe(0.3, 0.3, stamp_ns=77)
    stepped = rig.step(0, branch=forked.branches[0])
    assert stepped.chunks[0].provenance.observation_stamp_ns == 77


def test_a_fork_leaves_a_new_goal_to_the_environment(rig: Any) -> None:
    rig.step(2)
    rig.interrupt(hold=True)
    goal = rig.goal(0.9, 0.9)
    forked = rig.fork(count=2)
    assert rig.status().waiting_for == ""
    made = [rig.step(0, branch=branch).chunks[0] for branch in forked.branches]
    made += rig.step(1).chunks
    assert {chunk.provenance.goal_sequence for chunk in made} == {goal}
    details = [e.detail for e in rig.recorder.events if e.kind == EventKind.GOAL]
    assert sum(f"sequence={goal} " in detail for detail in details) == 1


def test_a_branch_of_a_capsule_without_a_goal_takes_the_live_one(rig: Any) -> None:
    goal = rig.goal(0.4, 0.4)
    forked = rig.fork("home", count=1)
    stepped = rig.step(1, branch=forked.branches[0])
    assert stepped.chunks[0].provenance.goal_sequence == goal


def test_branches_that_step_do_not_starve_the_writers(rig: Any) -> None:
    rig.step(4)
    branches = rig.fork(count=4).branches
    for turn in range(20):
        rig.observe(0.1, 0.1)
        rig.goal(0.2, 0.2)
        rig.step(1, branch=branches[turn % 4])


def test_selecting_the_environment_itself_releases_the_branches(rig: Any) -> None:
    rig.step(4)
    rig.fork(count=4)
    before = rig.state(), rig.status().generation
    rig.engine.handle(protocol.Select(1, 0, -1, True))
    assert (rig.state(), rig.status().generation) == before
    assert rig.status().branches == ()
    rig.fork(count=4)
    rig.reset()
    assert rig.status().branches == ()


def test_a_poisoned_branch_is_not_selected(rig: Any) -> None:
    rig.step(4)
    (branch,) = rig.fork(count=1).branches
    rig.engine.core.branches[branch].lane.poison("a test said so")
    before = _facts(rig)
    with pytest.raises(LanePoisonedError):
        rig.engine.handle(protocol.Select(1, 0, branch, True))
    assert _facts(rig) == before


@pytest.mark.parametrize("branch", [-2, -5, 7])
def test_an_unknown_branch_is_not_stepped(rig: Any, branch: int) -> None:
    before = _facts(rig)
    with pytest.raises(FlashrtError, match="no branch"):
        rig.step(1, branch=branch)
    assert _facts(rig) == before


# lanes ---------------------------------------------------------------------------------------


def _break_pop(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = rig.engine.environment(0).lane

    def fail(key: object, *, beside: bool = False) -> None:
        lane.poison("a test said so")
        raise BackendError("the pop failed", is_torn=True)

    monkeypatch.setattr(lane, "replay", fail)


def test_a_pop_that_fails_is_a_fault_and_a_restore_heals_it(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.step(2)
    rig.snapshot("good")
    with monkeypatch.context() as patch:
        _break_pop(rig, patch)
        with pytest.raises(BackendError):
            rig.step(1)
    assert rig.recorder.events[-1].kind == EventKind.FAULT
    assert rig.status().waiting_for == "restore"
    rig.engine.handle(protocol.Deactivate(1, 0))
    rig.start()
    rig.restore("good")
    rig.observe(0.1, 0.1)
    assert rig.step(1).tick == 3


def test_a_timer_survives_a_pop_that_fails(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    rig.start("timer")
    rig.goal(0.1, 0.1)
    rig.observe(0.1, 0.1)
    rig.run(rig.now_ns + 150_000_000)
    with monkeypatch.context() as patch:
        _break_pop(rig, patch)
        rig.run(rig.now_ns + 500_000_000)
    assert rig.status().waiting_for == "restore"
    assert rig.recorder.events[-1].kind == EventKind.FAULT


def test_a_changed_thread_count_refuses_the_plan(rig: Any) -> None:
    torch.set_num_threads(2)
    try:
        with pytest.raises(FlashrtError, match="thread count"):
            rig.step(1)
    finally:
        torch.set_num_threads(1)
    assert rig.step(1).tick == 1


# barriers ------------------------------------------------------------------------------------


def test_a_rollback_does_not_lower_the_stamp_that_a_reset_asked_for(rig: Any) -> None:
    rig.reset(stamp_ns=1_000)
    rig.goal(0.1, 0.1, stamp_ns=1_000)
    rig.observe(0.1, 0.1, stamp_ns=1_000)
    rig.step(6)
    rig.engine.handle(protocol.Rollback(1, 0, 1, ""))
    with pytest.raises(FlashrtError, match="older"):
        rig.observe(0.1, 0.1, stamp_ns=999)


def test_a_repeated_episode_id_is_forgotten_once_the_environment_moved(rig: Any) -> None:
    first = rig.reset(episode_id="a")
    rig.reset()
    assert rig.reset(episode_id="a").generation == first.generation + 2


def test_an_episode_id_stands_for_one_request(rig: Any) -> None:
    rig.reset(episode_id="a", seed=1)
    before = _facts(rig)
    for other in ({"seed": 2}, {"keep_goal": True, "seed": 1}):
        with pytest.raises(SpecError, match="other arguments"):
            rig.reset(episode_id="a", **other)
    with pytest.raises(FlashrtError, match="other arguments"):
        rig.restore("nowhere", reset=True, episode_id="a", seed=1)
    assert _facts(rig) == before


def test_a_restore_that_names_nothing_is_refused(rig: Any) -> None:
    before = _facts(rig)
    with pytest.raises(FlashrtError, match="no capsule"):
        rig.restore("")
    assert _facts(rig) == before
    assert rig.restore("", reset=True).path


def test_a_step_that_waits_does_not_outlive_its_tick_source(rig: Any) -> None:
    answers: list[Any] = []
    rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 10_000, 10**9), answers.append)
    rig.start("timer")
    assert isinstance(answers[0], AbandonedError)
    with pytest.raises(TickSourceError):
        rig.step(1)


def test_figures_count_since_the_activation(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.start("timer")
    rig.goal(0.1, 0.1)
    rig.observe(0.1, 0.1)
    rig.run(rig.now_ns + 500_000_000)
    rig.engine.handle(protocol.Deactivate(1, 0))
    rig.now_ns += 600_000_000_000
    rig.start("timer")
    rig.run(rig.now_ns + 500_000_000)
    assert rig.status().rate_hz == pytest.approx(10.0, rel=0.01)
    assert rig.status().deadline_misses == 0


# declarations --------------------------------------------------------------------------------


class _WithoutInputs(MinimalPolicy):
    def inputs(self) -> dict[str, str]:
        return {}


class _TooLong(MinimalPolicy):
    execute_horizon = 99


class _TwoGoals(MinimalPolicy):
    def channels(self) -> Any:
        goal, observation = super().channels()
        return goal, observation, dataclasses.replace(goal, name="second")

    def inputs(self) -> Any:
        return {**super().inputs(), "second.values": "goal"}

    def buffers(self) -> Any:
        return (*super().buffers(), counter("second_slot", Role.BINDING))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_WithoutInputs(), "no INPUT buffer"),
        (_TooLong(), "executes more"),
        (_TwoGoals(), "two slot fields in INPUT buffer 'goal'"),
    ],
)
def test_contradicting_declarations_are_refused(model: MinimalPolicy, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Engine(model, EngineConfig())


class _Refused(MinimalPolicy):
    def programs(self) -> Any:
        def bad(buffers: Any, slots: Any) -> None:
            buffers["path"].add_(buffers["path"].sum().item())

        return {**super().programs(), ("step", 1): bad}


def test_a_refused_capture_leaves_nothing_mapped() -> None:
    with pytest.raises(CaptureError):
        Engine(_Refused(), EngineConfig())
    before = linux.num_fds(), _num_maps()
    for _ in range(10):
        with pytest.raises(CaptureError):
            Engine(_Refused(), EngineConfig())
    assert linux.num_fds() == before[0]
    assert _num_maps() <= before[1] + 3


def _num_maps() -> int:
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def test_what_overflows_to_infinity_is_refused(rig: Any) -> None:
    with pytest.raises(NonFiniteError):
        rig.observations.write(stamp_ns=99, position=[1e39, 0.0])
