"""A goal committed while a chunk is in the making, taken between two nodes of its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.protocol import EventKind, OutputKind
from flashrt_ros.engine.ring import SlotState
from flashrt_ros.errors import BackendError, ConfigError, SpecError
from flashrt_ros.models.base import PolicyPlan
from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.models.minimal import NUM_STEPS, MinimalPolicy

COMMIT = NUM_STEPS + 1
"""Place of the commit node."""


def chunk_with_a_goal_before(rig: Any, node: int | None, **goal: int) -> protocol.ChunkRecord:
    """Make a chunk from home on, with another goal committed before a node runs."""
    rig.reset(seed=3)
    rig.goal(0.5, -0.5)
    rig.observe(0.1, 0.2)
    answers: list[Any] = []
    rig.engine.begin_step(protocol.Step(1, 0, 0, -1, 0, 0), answers.append)
    flight = None
    while not answers:
        flight = rig.engine._ticks.plans._flight
        if flight is not None and flight.run.index == node and not goal.get("done"):
            rig.engine.core.backend.synchronize()  # the goal before was read: the next node bends
            rig.goal(-0.8, 0.7)
            goal["done"] = 1
        if not rig.engine.advance() and not rig.engine.wait():
            assert answers
    return answers[0].chunks[0]  # type: ignore[no-any-return]


@pytest.fixture
def bending(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig(retarget=True)
    rig.start()
    return rig


def test_a_goal_bends_the_chunk_in_the_making_from_the_next_node_on(
    bending: Any, make_rig: Callable[..., Any]
) -> None:
    plain = make_rig()
    plain.start()
    under_old = chunk_with_a_goal_before(plain, None)
    bent = [chunk_with_a_goal_before(bending, node) for node in range(1, COMMIT)]
    # without one, and where retarget is off, a chunk is made under the goal that it began with
    assert chunk_with_a_goal_before(bending, None).actions == under_old.actions
    for node in range(1, COMMIT):
        chunk = chunk_with_a_goal_before(plain, node)
        assert chunk.actions == under_old.actions
        assert chunk.provenance.goal_stamp_ns == plain.stamp_ns - 2
    # before the first step it is as if the plan had begun under the new goal
    bending.reset(seed=3)
    bending.goal(-0.8, 0.7)
    bending.observe(0.1, 0.2)
    under_new = bending.step(0).chunks[0]
    assert bent[0].actions == under_new.actions
    assert len({under_old.actions, *(chunk.actions for chunk in bent)}) == COMMIT
    assert len({chunk.provenance.goal_sequence for chunk in bent}) == len(bent)


def test_it_comes_too_late_for_the_commit(bending: Any) -> None:
    chunk = chunk_with_a_goal_before(bending, COMMIT)
    assert chunk.actions == chunk_with_a_goal_before(bending, None).actions
    rig = bending
    chunk = chunk_with_a_goal_before(rig, COMMIT)
    newest = rig.engine.core.latches.channel("goal")
    pending = newest.pending(0)
    assert newest.meta(pending).sequence == chunk.provenance.goal_sequence + 1
    rig.step(4)
    assert rig.step(1).chunks[0].provenance.goal_sequence == chunk.provenance.goal_sequence + 1


def test_provenance_state_and_events_name_the_newest_goal(bending: Any) -> None:
    chunk = chunk_with_a_goal_before(bending, 2, lifetime_ns=0)
    made, env = chunk.provenance, bending.engine.environment(0)
    assert made.goal_stamp_ns == bending.stamp_ns
    assert made.goal_sequence == env.latched["goal"].meta.sequence
    assert made.observation_stamp_ns == bending.stamp_ns - 1
    assert made.latched_tick == 0
    core = bending.engine.core
    address = env.lane.address + core.layout.by_name["goal_sequence"].offset
    assert int.from_bytes(core.backend.read(address, 8), "little") == made.goal_sequence
    assert core.goals.in_force(env)["goal"][0][:8] == np.array([-0.8, 0.7], np.float32).tobytes()
    goals = [e.detail for e in bending.recorder.events if e.kind == EventKind.GOAL]
    assert "node=" not in goals[-2]
    assert goals[-1].endswith(" node=2")
    assert bending.inspect().goal_transport_copies == 0


def test_slots_go_back_once_they_are_read(bending: Any) -> None:
    for node in range(1, COMMIT):
        chunk_with_a_goal_before(bending, node)
        bending.engine.core.backend.synchronize()
        bending.engine.core.latches.release_read()
        states = bending.goals._ring.states
        assert states.count(SlotState.HELD) == 1
        assert states.count(SlotState.COMMITTED) == states.count(SlotState.LOANED) == 0
    assert bending.engine.core.latches.torn_reads == 0


def test_a_planner_that_never_rests_does_not_hold_the_chunk_up(bending: Any) -> None:
    bending.goal(0.5, -0.5)
    bending.observe(0.1, 0.2)
    answers: list[Any] = []
    bending.engine.begin_step(protocol.Step(1, 0, 0, -1, 0, 0), answers.append)
    for turn in range(200):
        bending.goal(0.001 * turn, 0.5)
        if not bending.engine.advance():
            bending.engine.wait()
        if answers:
            break
    assert len(answers[0].chunks) == 1
    # each step under the newest goal that there was
    assert bending.engine.core.latches.num_latches <= 1 + NUM_STEPS


def test_actions_go_on_while_the_chunk_bends(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(retarget=True, replan_threshold=2)
    rig.start("timer")
    rig.goal(0.5, -0.5)
    rig.observe(0.1, 0.2)
    period = 100_000_000
    start = rig.now_ns
    rig.run(start + 2 * period - 1)
    rig.now_ns += 1_000_001
    rig.engine.on_deadline(rig.now_ns)  # pops the third, and starts the next chunk beside
    rig.advance()  # latch
    rig.take_in()
    rig.goal(-0.8, 0.7)
    rig.now_ns += period
    rig.engine.on_deadline(rig.now_ns)  # a tick in the middle of the plan
    rig.drain()
    made = [p for kind, p, *_ in rig.recorder.outputs if kind is OutputKind.CHUNK][-1]
    assert made.goal_stamp_ns == rig.stamp_ns
    assert (made.tick, made.latched_tick) == (4, 3)
    assert rig.engine.environment(0).position.queue_head == 1


def test_the_interrupt_stack_and_restores_are_as_before(bending: Any) -> None:
    rig = bending
    rig.ready()
    rig.step(4)
    rig.snapshot("before")
    before = rig.state()
    rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 0, 0), lambda answer: None)
    rig.advance()
    rig.advance()
    rig.engine.core.backend.synchronize()
    rig.goal(-0.8, 0.7)
    rig.advance()  # bends
    assert rig.engine.environment(0).latched["goal"].meta.stamp_ns == rig.stamp_ns
    bent_ns = rig.stamp_ns
    assert rig.interrupt().boundary == 2
    assert rig.state() == before
    rig.goal(0.0, 0.9)
    rig.step(2)
    rig.resume()
    assert rig.state() == before
    assert rig.step(1).chunks[0].provenance.goal_stamp_ns == bent_ns  # in force at the interrupt
    # a restore brings the boundary's own goal back, and what follows is what followed
    rig.restore("before", keep_goal=False)
    rig.observe(0.1, 0.2)
    first = rig.step(5)
    rig.restore("before", keep_goal=False)
    rig.observe(0.1, 0.2)
    again = rig.step(5)
    assert [a.values for a in first.actions] == [a.values for a in again.actions]


def test_branches_keep_their_goal(bending: Any) -> None:
    bending.ready()
    bending.step()
    (branch,) = bending.fork(count=1, seeds=(5,)).branches
    plain = bending.step(0, branch=branch).chunks
    bending.engine.handle(protocol.Select(1, 0, -1, True))
    (branch,) = bending.fork(count=1, seeds=(5,)).branches
    answers: list[Any] = []
    bending.engine.begin_step(protocol.Step(1, 0, 0, branch, 0, 0), answers.append)
    bending.advance()
    bending.goal(-0.8, 0.7)
    bending.drain()
    assert [c.actions for c in answers[0].chunks] == [c.actions for c in plain]


def test_a_staged_channel_bends_to_the_same_bytes(
    bending: Any, make_rig: Callable[..., Any]
) -> None:
    staged = make_rig(retarget=True, staged_channels=("goal",))
    staged.start()
    for node in (1, 2, 3):
        expected = chunk_with_a_goal_before(bending, node).actions
        assert chunk_with_a_goal_before(staged, node).actions == expected


class Stubborn(MinimalPolicy):
    def plan(self) -> PolicyPlan:
        return replace(super().plan(), retarget=None)


class Careless(MinimalPolicy):
    def optional_programs(self) -> Any:
        return {("retarget",): lambda buffers, slots: buffers["goal"].zero_()}


def test_a_model_that_can_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="retarget"):
        Engine(Stubborn(), EngineConfig(model="minimal", retarget=True))
    Engine(Stubborn(), EngineConfig(model="minimal")).close()
    with pytest.raises(SpecError, match="SCRATCH"):
        Engine(Careless(), EngineConfig(model="minimal", retarget=True))


def test_it_is_no_part_of_the_fingerprint(bending: Any, make_rig: Callable[..., Any]) -> None:
    assert bending.engine.core.fingerprint == make_rig().engine.core.fingerprint


# the flow policy -----------------------------------------------------------------------------


class FlowRig:
    """The flow policy in an engine, stepped by hand."""

    def __init__(self, device: str) -> None:
        config = EngineConfig(retarget=True, device=device, num_standby_lanes=0)
        self.engine = Engine(FlowPolicy.untrained(0), config)
        self.goals = EmbeddedWriter(self.engine, "goal")
        self.observations = EmbeddedWriter(self.engine, "observation")
        self.image = np.random.default_rng(0).integers(0, 255, (96, 96, 3), np.uint8)
        self.engine.handle(protocol.Activate(1, 0, "step", 10.0))

    def chunk(self, goal: list[float], other: list[float] | None = None, node: int = 0) -> bytes:
        self.engine.handle(protocol.Restore(1, 0, "home", False, 3, True, "", 0))
        self.goals.write(stamp_ns=1, values=goal)
        self.observations.write(stamp_ns=1, image=self.image, agent_pos=[0.2, 0.3])
        answers: list[Any] = []
        self.engine.begin_step(protocol.Step(1, 0, 0, -1, 0, 0), answers.append)
        while not answers:
            flight = self.engine._ticks.plans._flight
            if other and flight is not None and flight.run.index == node:
                self.engine.core.backend.synchronize()
                self.goals.write(stamp_ns=2, values=other)
                other = None
            assert self.engine.advance() or self.engine.wait() or answers
        return answers[0].chunks[0].actions  # type: ignore[no-any-return]


def test_a_goal_that_can_not_be_latched_again_ends_the_plan_and_not_the_engine(
    bending: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = bending
    rig.goal(0.5, -0.5)
    rig.observe(0.1, 0.2)
    answers: list[Any] = []
    rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 0, 0), answers.append)
    while rig.engine._ticks.plans._flight is None:
        rig.engine.advance()
    rig.engine.core.backend.synchronize()
    newer = rig.goal(-0.8, 0.7)

    def fail(*_: object) -> None:
        raise BackendError("the device refuses")

    before = rig.engine.environment(0).position
    with monkeypatch.context() as patch:
        patch.setattr(rig.engine.core.bindings, "write_one", fail)
        while rig.engine.advance() or rig.engine.wait():
            pass
    assert [type(answer) for answer in answers] == [BackendError]
    assert rig.engine.environment(0).position == before
    assert rig.step(1).chunks[0].provenance.goal_sequence == newer


@pytest.fixture
def flow(device: str) -> Iterator[FlowRig]:
    rig = FlowRig(device)
    yield rig
    rig.engine.close()


def test_the_flow_policy_bends_without_encoding_again(flow: FlowRig) -> None:
    old, new = [0.1, 0.1], [0.4, 0.45]
    under_old, under_new = flow.chunk(old), flow.chunk(new)
    # before the encoder (1) and right after it (2) nothing was made under the old goal yet
    assert flow.chunk(old, new, 1) == under_new
    assert flow.chunk(old, new, 2) == under_new
    bent = [flow.chunk(old, new, node) for node in range(3, 12)]
    assert len({under_old, under_new, *bent}) == 11
    # the later, the less
    away = [
        float(np.abs(np.frombuffer(chunk, np.float32) - np.frombuffer(under_old, np.float32)).max())
        for chunk in (under_new, *bent)
    ]
    assert away[0] > away[-1] > 0
    assert flow.chunk(old, new, 12) == under_old
