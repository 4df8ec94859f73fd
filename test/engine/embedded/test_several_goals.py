"""A model with several goal channels: each is latched, told, aged and brought back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.capsule.capsule import GoalOrigin
from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.errors import AbandonedError, SpecError, StaleGenerationError, StaleStampError
from flashrt_ros.models.action_queue import counter
from flashrt_ros.models.base import Buffers, Program, Slots, slot_binding
from flashrt_ros.models.minimal import NUM_STEPS, MinimalPolicy
from flashrt_ros.runtime.spec import (
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

GRIPPER = ChannelSpec(
    "gripper",
    ChannelRole.GOAL,
    (FieldSpec("width", (1,), "float32", low=0.0, high=1.0, units="m"),),
)


class Grasping(MinimalPolicy):
    """The minimal policy, whose chunks lean on a second goal: the width of a gripper."""

    name = "grasping"

    def buffers(self) -> tuple[BufferSpec, ...]:
        return (
            *super().buffers(),
            BufferSpec("gripper", (1,), "float32", Role.INPUT),
            counter(slot_binding("gripper"), Role.BINDING),
            BufferSpec("gripper_latched", (1,), "float32", Role.SCRATCH),
        )

    def channels(self) -> tuple[ChannelSpec, ...]:
        goal, observation = super().channels()
        return goal, observation, GRIPPER

    def inputs(self) -> Mapping[str, str]:
        return {**super().inputs(), "gripper.width": "gripper"}

    def programs(self) -> dict[ShapeKey, Program]:
        programs, plan = dict(super().programs()), self.plan()
        latch, commit = programs[plan.latch], programs[plan.commit]

        def latch_both(buffers: Buffers, slots: Slots) -> None:
            latch(buffers, slots)
            _latch_gripper(buffers, slots)

        def commit_both(buffers: Buffers, slots: Slots) -> None:
            buffers["path"].add_(buffers["gripper_latched"])
            commit(buffers, slots)
            buffers["gripper"].copy_(buffers["gripper_latched"])

        return {**programs, plan.latch: latch_both, plan.commit: commit_both}

    def optional_programs(self) -> Mapping[ShapeKey, Program]:
        ((key, retarget),) = super().optional_programs().items()

        def retarget_both(buffers: Buffers, slots: Slots) -> None:
            retarget(buffers, slots)
            _latch_gripper(buffers, slots)

        return {key: retarget_both}


def _latch_gripper(buffers: Buffers, slots: Slots) -> None:
    width = slots["gripper.width"].index_select(0, buffers[slot_binding("gripper")])
    buffers["gripper_latched"].copy_(width[0])


class TwoGoals:
    """An engine over it, with a writer of each channel."""

    def __init__(self, device: str, **options: Any) -> None:
        self.now_ns = 1_000_000_000
        self.stamp_ns = 0
        config = EngineConfig(model="grasping", device=device, test_hooks=True, **options)
        self.engine = Engine(Grasping(), config, clock_ns=lambda: self.now_ns)
        self.events: list[protocol.Event] = []
        self.engine.sink = self
        self.poses, self.widths, self.observations = (
            EmbeddedWriter(self.engine, name) for name in ("goal", "gripper", "observation")
        )
        self.engine.handle(protocol.Activate(1, 0, "step", 10.0))

    def output(self, *made: Any) -> None:
        pass

    def event(self, event: protocol.Event) -> None:
        self.events.append(event)

    def stamp(self) -> int:
        self.stamp_ns += 1
        return self.stamp_ns

    def pose(self, x: float, y: float, **more: int) -> int:
        return self.poses.write(stamp_ns=self.stamp(), values=[x, y], **more)

    def width(self, width: float, **more: int) -> int:
        return self.widths.write(stamp_ns=self.stamp(), width=[width], **more)

    def observe(self) -> int:
        return self.observations.write(stamp_ns=self.stamp(), position=[0.1, 0.2])

    def ready(self) -> None:
        self.pose(0.5, -0.5)
        self.width(0.25)
        self.observe()

    def chunk(self) -> protocol.ChunkRecord:
        """Make the next chunk, and empty its queue."""
        made = self.engine.step(protocol.Step(2, 0, 0, -1, 0, 0)).chunks[0]
        self.engine.step(protocol.Step(2, 0, 4, -1, 0, 0))
        return made

    def snapshot(self, name: str) -> protocol.CapsuleInfo:
        request = protocol.Snapshot(3, 0, name, (), False, True, False)
        reply = self.engine.handle(request)
        assert isinstance(reply, protocol.CapsuleReply)
        return reply.capsule

    def restore(self, name: str, **more: Any) -> None:
        asked = {"keep_goal": False, "seed": None, "reset": False, **more}
        self.engine.handle(
            protocol.Restore(rid=4, env_index=0, capsule=name, episode_id="", stamp_ns=0, **asked)
        )

    def goals(self) -> dict[str, tuple[bytes, int]]:
        """Copy the first bytes and the stamps of the goals in force."""
        copies = self.engine.core.goals.in_force(self.engine.environment(0))
        return {name: (payload[:4], meta.stamp_ns) for name, (payload, meta) in copies.items()}


@pytest.fixture
def make(device: str) -> Iterator[Callable[..., TwoGoals]]:
    rigs: list[TwoGoals] = []

    def start(**options: Any) -> TwoGoals:
        rigs.append(TwoGoals(device, **options))
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.engine.close()


@pytest.fixture
def rig(make: Callable[..., TwoGoals]) -> TwoGoals:
    return make()


def test_a_plan_waits_for_a_goal_on_each_channel(rig: TwoGoals) -> None:
    rig.pose(0.5, -0.5)
    rig.observe()
    with pytest.raises(AbandonedError, match="waiting for gripper"):
        rig.chunk()
    rig.width(0.25)
    rig.chunk()


def test_each_is_latched_at_the_boundary_in_place(rig: TwoGoals) -> None:
    rig.ready()
    first = rig.chunk()
    rig.restore("home", reset=True, seed=0)
    rig.ready()
    again = rig.chunk()
    assert again.actions == first.actions
    rig.restore("home", reset=True, seed=0)
    rig.ready()
    rig.width(0.75)  # negative control: the second goal acts
    assert rig.chunk().actions != first.actions
    seen = rig.engine.handle(protocol.Inspect(8, 0))
    assert isinstance(seen, protocol.Inspection)
    assert (seen.goal_transport_copies, seen.torn_reads) == (0, 0)


def test_a_staged_channel_beside_one_that_is_not_gives_the_same_bytes(
    make: Callable[..., TwoGoals],
) -> None:
    chunks = []
    for staged in ((), ("gripper",), ("goal", "gripper")):
        rig = make(staged_channels=staged)
        rig.ready()
        chunks.append(rig.chunk().actions)
        seen = rig.engine.handle(protocol.Inspect(8, 0))
        assert isinstance(seen, protocol.Inspection)
        assert seen.goal_transport_copies == len(staged)  # so the count is no constant
    assert len(set(chunks)) == 1


def test_provenance_and_capsules_tell_of_each(rig: TwoGoals) -> None:
    rig.ready()
    rig.pose(0.1, 0.2)
    sequence = rig.width(0.5, source_sequence=77, lifetime_ns=1000)
    made = rig.chunk().provenance
    assert (made.goal_sequence, made.goal_stamp_ns) == (2, 4)
    assert made.other_goals == (protocol.GoalSource("gripper", sequence, 77, 5, 1005),)
    assert made.goal_expires_ns == 1005  # the first that ends
    origin = rig.engine.environment(0).position.origin
    assert (origin.goal_sequence, origin.goal_stamp_ns) == (2, 4)
    (gripper,) = origin.other_goals
    assert gripper == GoalOrigin("gripper", sequence, 77, 5, 1005)
    details = [e.detail for e in rig.events if e.kind == EventKind.GOAL]
    assert [detail.split()[0] for detail in details] == ["sequence=2", "channel=gripper"]


def test_a_restore_brings_all_back(rig: TwoGoals) -> None:
    rig.ready()
    rig.chunk()
    rig.snapshot("before")
    before = rig.goals()
    rig.pose(-0.1, -0.2)
    rig.width(0.9)
    rig.observe()
    rig.chunk()
    assert rig.goals() != before
    rig.restore("before")
    assert rig.goals() == before
    rig.observe()
    first = rig.chunk()
    assert first.provenance.goal_stamp_ns == before["goal"][1]
    rig.restore("before")
    rig.observe()
    assert rig.chunk().actions == first.actions
    rig.restore("before")
    rig.width(0.9)  # negative control: one of them alone makes other bytes
    rig.observe()
    assert rig.chunk().actions != first.actions


def test_they_survive_the_engine(make: Callable[..., TwoGoals], tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    rig = make(capsule_folder=str(tmp_path))
    rig.ready()
    rig.chunk()
    before = rig.goals()
    rig.snapshot("kept")
    rig.engine.handle(protocol.Save(9, 0, "kept", "", False))
    rig.engine.close()
    other = make(capsule_folder=str(tmp_path))
    other.engine.handle(protocol.Load(9, 0, "kept", "again", False, False))
    other.restore("again")
    assert other.goals() == before


def test_a_resume_and_a_branch_have_all(rig: TwoGoals) -> None:
    rig.ready()
    rig.chunk()
    before = rig.goals()
    rig.engine.interrupt(protocol.Interrupt(6, 0, "test", False, None))
    rig.pose(-0.1, -0.2)
    rig.width(0.9)
    rig.chunk()
    rig.engine.handle(protocol.Resume(7, 0, False))
    assert rig.goals() == before
    forked = rig.engine.handle(protocol.Fork(5, 0, "", 1, (5,)))
    assert isinstance(forked, protocol.Forked)
    branch = rig.engine.core.branches[forked.branches[0]]
    assert set(rig.engine.core.goals.in_force(branch)) == {"goal", "gripper"}
    rig.engine.step(protocol.Step(1, 0, 0, forked.branches[0], 0, 0))
    rig.engine.handle(protocol.Select(1, 0, forked.branches[0], True))
    assert rig.goals() == before


def test_a_reset_drops_and_refuses_all(rig: TwoGoals) -> None:
    rig.ready()
    rig.chunk()
    ring = rig.widths._ring
    slot, ticket, _ = rig.engine.loan(ring)
    rig.restore("home", reset=True)
    assert rig.goals() == {}
    with pytest.raises(StaleGenerationError):
        rig.engine.commit(ring, slot, ticket, stamp_ns=rig.stamp(), source_sequence=0)
    rig.pose(0.5, 0.5)
    rig.observe()
    with pytest.raises(AbandonedError, match="waiting for gripper"):
        rig.chunk()


def test_a_chunk_in_the_making_bends_to_either(make: Callable[..., TwoGoals]) -> None:
    rig = make(retarget=True)

    def bent(*goals: tuple[str, Any]) -> protocol.ChunkRecord:
        rig.restore("home", reset=True, seed=0)
        rig.ready()
        answers: list[Any] = []
        rig.engine.begin_step(protocol.Step(2, 0, 0, -1, 0, 0), answers.append)
        left = list(goals)
        while not answers:
            flight = rig.engine._ticks.plans._flight
            if left and flight is not None and flight.run.index == NUM_STEPS:
                name, values = left.pop()
                getattr(rig, name)(*values)
            assert rig.engine.advance() or rig.engine.wait() or answers
        return answers[0].chunks[0]  # type: ignore[no-any-return]

    plain = bent()
    wide = bent(("width", (0.9,)))
    away = bent(("pose", (-0.9, 0.9)))
    assert len({plain.actions, wide.actions, away.actions}) == 3
    assert wide.provenance.goal_sequence == plain.provenance.goal_sequence + 1
    env = rig.engine.environment(0)
    assert env.position.origin.other_goals[0].stamp_ns == rig.stamp_ns - 2
    assert env.position.origin.goal_stamp_ns == rig.stamp_ns


def test_a_channel_with_blanks_in_its_name_is_told_whole(rig: TwoGoals) -> None:
    rig.ready()
    rig.chunk()
    env = rig.engine.environment(0)
    goal = env.latched["gripper"].meta
    rig.engine.core.announce_goal(env, "left gripper node=9", goal, 2)
    facts = protocol.parse_detail(rig.events[-1].detail).facts
    assert facts["channel"] == "left gripper node=9"
    assert (facts["sequence"], facts["node"]) == (str(goal.sequence), "2")


def test_each_grows_old_by_itself(make: Callable[..., TwoGoals]) -> None:
    rig = make(goal_max_age_ms=100.0)
    rig.ready()
    rig.now_ns += 80_000_000
    rig.pose(0.5, 0.5)
    rig.now_ns += 40_000_000
    status = rig.engine.handle(protocol.GetStatus(9, 0))
    assert isinstance(status, protocol.Status)
    assert status.waiting_for == "fresh goal 'gripper'"
    assert status.goal_age_ns == 120_000_000  # the oldest counts
    with pytest.raises(AbandonedError):
        rig.chunk()
    stale = [e.detail for e in rig.events if e.kind == EventKind.STALE]
    assert len(stale) == 1
    assert stale[0].startswith("goal channel=gripper age_ms=120.0")
    rig.width(0.5)
    rig.chunk()


def test_an_interrupt_bounds_the_channel_of_its_goal_alone(rig: TwoGoals) -> None:
    rig.ready()
    rig.chunk()
    old_ns = rig.stamp()
    ring = rig.poses._ring
    slot, ticket, _ = rig.engine.loan(ring)
    commit = protocol.Commit(
        rid=0,
        writer=0,
        slot=slot,
        ticket=ticket,
        stamp_ns=rig.stamp(),
        source_sequence=0,
        lifetime_ns=0,
        loan_next=False,
    )
    rig.engine.interrupt(protocol.Interrupt(6, 0, "test", False, commit), ring)
    with pytest.raises(StaleStampError):
        rig.poses.write(stamp_ns=old_ns, values=[0.0, 0.0])
    rig.widths.write(stamp_ns=old_ns, width=[0.5])
    rig.chunk()
    rig.engine.handle(protocol.Resume(7, 0, False))
    rig.poses.write(stamp_ns=old_ns, values=[0.0, 0.0])


class Forgetful(Grasping):
    def inputs(self) -> Mapping[str, str]:
        return MinimalPolicy.inputs(self)


class Nameless(Grasping):
    def channels(self) -> tuple[ChannelSpec, ...]:
        return (*super().channels(), replace(GRIPPER, name="arm"))


@pytest.mark.parametrize(("model", "names"), [(Forgetful, "gripper.width"), (Nameless, "arm_slot")])
def test_a_model_that_forgets_one_is_refused_by_name(model: type, names: str) -> None:
    with pytest.raises(SpecError, match=names):
        Engine(model(), EngineConfig(model="grasping"))
