"""A policy whose goal is what another model's graphs have written, on the same device."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.feeding import fed_key
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.sharing import share_channel
from flashrt_ros.errors import (
    AbandonedError,
    BackendError,
    ConfigError,
    LoanError,
    NoFreeSlotError,
    PayloadRangeError,
    SpecError,
    UnknownChannelError,
)
from flashrt_ros.models.base import Buffers, OutletSpec, Program, Slots
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import BufferSpec, ShapeKey

GOAL, _ = MinimalPolicy().channels()
LATENT = OutletSpec(replace(GOAL, name="latent"), num_rows=7)
FED = frozenset({"goal"})


class Planner(MinimalPolicy):
    """Leaves the end of each chunk for other models."""

    name = "planner"
    outlet = LATENT

    def buffers(self) -> tuple[BufferSpec, ...]:
        return (*super().buffers(), *self.outlet.buffers())

    def outlets(self) -> tuple[OutletSpec, ...]:
        return (self.outlet,)

    def programs(self) -> dict[ShapeKey, Program]:
        programs, plan = dict(super().programs()), self.plan()
        commit = programs[plan.commit]

        def commit_and_leave(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            self.outlet.write(buffers, "values", buffers["path"][-1])

        return {**programs, plan.commit: commit_and_leave}


class Rig:
    """An engine over a model, ticked by steps."""

    def __init__(self, model: MinimalPolicy, device: str, links: Any, **options: Any) -> None:
        self.now_ns = 1_000_000_000
        self.stamp_ns = 0
        self.config = EngineConfig(model="minimal", device=device, test_hooks=True, **options)
        self.engine = Engine(model, self.config, clock_ns=lambda: self.now_ns, **links)
        self.events: list[protocol.Event] = []
        self.engine.sink = self
        self.goals, self.observations = (
            EmbeddedWriter(self.engine, name) for name in ("goal", "observation")
        )
        for env_index in range(self.config.num_environments):
            self.engine.handle(protocol.Activate(1, env_index, "step", 10.0))

    def output(self, *made: Any) -> None:
        pass

    def event(self, event: protocol.Event) -> None:
        self.events.append(event)

    def stamp(self) -> int:
        self.stamp_ns += 1
        return self.stamp_ns

    def goal(self, x: float, y: float) -> int:
        return self.goals.write(stamp_ns=self.stamp(), values=[x, y])

    def observe(self) -> None:
        self.observations.write(stamp_ns=self.stamp(), position=[0.1, 0.2])

    def chunk(self, branch: int = -1) -> protocol.ChunkRecord:
        """Make the next chunk, and empty its queue."""
        made = self.engine.step(protocol.Step(2, 0, 0, branch, 0, 0)).chunks[0]
        self.engine.step(protocol.Step(2, 0, 4, branch, 0, 0))
        return made

    def drain(self) -> None:
        while self.engine.advance() or self.engine.wait():
            pass

    def settle(self) -> None:
        self.now_ns += 10_000_000
        while self.engine.background(self.now_ns):
            pass

    def restore(self, name: str = "home", *, reset: bool = True, stamp_ns: int = 0) -> None:
        self.engine.handle(protocol.Restore(4, 0, name, False, 3, reset, "", stamp_ns))

    def snapshot(self, name: str) -> None:
        self.engine.handle(protocol.Snapshot(3, 0, name, (), False, True, False))

    def in_force(self) -> tuple[float, ...]:
        copies = self.engine.core.goals.in_force(self.engine.environment(0))
        return tuple(np.frombuffer(copies["goal"][0][:8], np.float32)) if copies else ()

    def status(self) -> protocol.Status:
        status = self.engine.handle(protocol.GetStatus(9, 0))
        assert isinstance(status, protocol.Status)
        return status

    def copies(self) -> int:
        seen = self.engine.handle(protocol.Inspect(8, 0))
        assert isinstance(seen, protocol.Inspection)
        assert seen.torn_reads == 0
        return seen.goal_transport_copies

    def is_fed(self) -> bool:
        return bool(self.engine.core.latches.fed(self.engine.environment(0)))


class Chain:
    """A planner, and a policy that it feeds."""

    def __init__(self, device: str, **options: Any) -> None:
        self.planner = Rig(Planner(), device, {}, **options)
        self.outlet = self.planner.engine.outlet("latent")
        feeds = {"feeds": {"goal": self.outlet}}
        self.policy = Rig(MinimalPolicy(), device, feeds, **options)

    def plan(self, x: float = 0.5, y: float = -0.5) -> tuple[float, ...]:
        """Have the planner make a chunk; returns what it has left for the policy."""
        self.planner.goal(x, y)
        self.planner.observe()
        self.made = self.planner.chunk()
        return tuple(np.frombuffer(self.made.actions, np.float32)[-2:])

    def close(self) -> None:
        self.policy.engine.close()
        self.planner.engine.close()


@pytest.fixture
def make(device: str) -> Iterator[Callable[..., Chain]]:
    with ExitStack() as undo:

        def start(**options: Any) -> Chain:
            chain = Chain(device, **options)
            undo.callback(chain.close)
            return chain

        yield start


@pytest.fixture
def chain(make: Callable[..., Chain]) -> Chain:
    return make()


def rows_in_use(chain: Chain) -> int:
    for rig in (chain.planner, chain.policy):
        rig.engine.core.backend.synchronize()
        rig.engine.core.latches.release_read()
    return chain.outlet.spec.num_rows * len(chain.planner.engine.core.pool.lanes) - (
        chain.outlet.num_free
    )


def test_the_first_node_reads_where_the_planners_graph_wrote(chain: Chain) -> None:
    left = chain.plan()
    chain.policy.observe()
    made = chain.policy.chunk()
    core, env = chain.policy.engine.core, chain.policy.engine.environment(0)
    # what the policy's first node reads, by its captured graph and the index in its binding
    (read,) = (
        read
        for read in chain.policy.engine.core.plan_of(env)
        ._graphs.graph(env.lane.index, fed_key(core.model.plan().latch, FED))
        .slot_reads()
        if read.binding == "goal_slot"
    )
    read_address = read.row_address(core.bindings.read(env.lane, "goal_slot"))
    # what the planner's last node wrote, by its lane and the index in its binding
    planner = chain.planner.engine.core
    lane = planner.environments[0].lane
    place = planner.layout.by_name[LATENT.rows]
    row = planner.bindings.read(lane, LATENT.binding)
    assert read_address == lane.address + place.offset + row * LATENT.row_bytes
    written = planner.backend.read(read_address, 8)
    assert tuple(np.frombuffer(written, np.float32)) == left
    assert chain.policy.copies() == 0
    assert chain.policy.in_force() == left
    source = chain.made.provenance
    assert made.provenance.goal_source_sequence == source.sequence
    assert made.provenance.goal_stamp_ns == source.observation_stamp_ns


@pytest.mark.parametrize("staged", [(), ("goal",)])
def test_fed_and_written_goals_make_equal_chunks(
    make: Callable[..., Chain], staged: tuple[str, ...]
) -> None:
    chain = make(staged_channels=staged)
    chunks = []
    for by_writer in (False, True):
        chain.planner.restore()
        chain.policy.restore()
        left = chain.plan()
        if by_writer:
            chain.policy.goals.write(stamp_ns=chain.policy.stamp(), values=left)
        chain.policy.observe()
        chunks.append(chain.policy.chunk().actions)
        assert chain.policy.is_fed() is not by_writer
    assert chunks[0] == chunks[1]
    chain.policy.restore()
    chain.plan(-0.9, 0.9)  # negative control: another plan, another chunk
    chain.policy.observe()
    assert chain.policy.chunk().actions != chunks[0]


def test_the_newest_of_both_kinds_wins(chain: Chain) -> None:
    chain.plan()
    written = chain.policy.goal(0.3, 0.3)
    chain.policy.observe()
    assert chain.policy.chunk().provenance.goal_sequence == written == 2
    chain.policy.goal(0.4, 0.4)
    chain.plan()
    chain.policy.observe()
    assert chain.policy.chunk().provenance.goal_sequence == 4
    assert chain.policy.is_fed()
    assert chain.policy.engine.core.latches.channel("goal").skipped == [2]
    goals = [e.detail for e in chain.policy.events if e.kind == EventKind.GOAL]
    assert [detail.split()[0] for detail in goals] == ["sequence=2", "sequence=4"]


def test_the_planner_never_writes_what_the_policy_may_read(chain: Chain) -> None:
    first = chain.plan()
    chain.policy.observe()
    chain.policy.chunk()
    for turn in range(20):  # replaced before anybody reads them, all but the last
        last = chain.plan(0.04 * turn, 0.2)
        assert chain.policy.in_force() == first
    assert rows_in_use(chain) == 2  # the one in force, and the newest
    chain.policy.observe()
    chain.policy.chunk()
    assert chain.policy.in_force() == last
    assert rows_in_use(chain) == 1


def test_a_planner_without_a_free_row_says_so(device: str) -> None:
    class Narrow(Planner):
        outlet = replace(LATENT, num_rows=1)

    planner = Rig(Narrow(), device, {})
    feeds = {"feeds": {"goal": planner.engine.outlet("latent")}}
    policy = Rig(MinimalPolicy(), device, feeds)
    planner.goal(0.5, 0.5)
    planner.observe()
    planner.chunk()
    planner.observe()
    before = planner.engine.environment(0).position
    with pytest.raises(NoFreeSlotError, match="more rows"):
        planner.engine.step(protocol.Step(2, 0, 0, -1, 0, 0))
    assert planner.engine.environment(0).position == before
    policy.engine.close()  # lets go
    planner.chunk()
    planner.engine.close()


class Wild(Planner):
    """Leaves the inverse of its goal: NaN of zero, Inf of next to nothing."""

    def programs(self) -> dict[ShapeKey, Program]:
        programs, plan = dict(MinimalPolicy.programs(self)), self.plan()
        commit = programs[plan.commit]

        def commit_and_leave(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            goal = buffers["goal_latched"]
            self.outlet.write(buffers, "values", goal / goal.square())

        return {**programs, plan.commit: commit_and_leave}


@pytest.mark.parametrize(
    ("goal", "error"),
    [
        ((0.0, 1.0), "NON_FINITE"),
        ((1.0, 1e-30), "NON_FINITE"),
        ((1.0, -1e-30), "NON_FINITE"),
        ((1.0, 0.25), "PAYLOAD_RANGE"),
        ((-0.25, 1.0), "PAYLOAD_RANGE"),
    ],
    ids=["nan", "inf", "-inf", "above", "below"],
)
def test_what_no_writer_could_commit_is_refused_at_the_source(
    device: str, goal: tuple[float, float], error: str
) -> None:
    planner = Rig(Wild(), device, {})
    outlet = planner.engine.outlet("latent")
    policy = Rig(MinimalPolicy(), device, {"feeds": {"goal": outlet}})
    for x, y in (goal, (-1.0, 1.0)):
        planner.goal(x, y)
        planner.observe()
        made = planner.chunk()  # its own chunks are its own affair
    faults = [event.detail for event in planner.events if event.kind == EventKind.FAULT]
    assert [detail.partition(":")[0] for detail in faults] == [error]
    assert "field 'values' of outlet 'latent'" in faults[0]
    policy.observe()
    chunk = policy.chunk().provenance  # the control: the second one is taken, and is the first
    assert (chunk.goal_sequence, chunk.goal_source_sequence) == (1, made.provenance.sequence)
    assert policy.in_force() == (-1.0, 1.0)
    assert policy.status().dropped_goals == 0
    policy.engine.close()
    assert outlet.num_free == LATENT.num_rows * len(planner.engine.core.pool.lanes)
    planner.engine.close()


def test_bounds_are_those_that_the_dtype_holds(device: str) -> None:
    """A bound of 0.1 admits the float32 that is nearest to it, as a writer does."""
    (part,) = GOAL.fields
    narrow = replace(part, low=-0.1, high=0.1)
    outlet_spec = OutletSpec(replace(LATENT.channel, fields=(narrow,)), num_rows=7)

    class Narrow(Wild):
        outlet = outlet_spec

    planner = Rig(Narrow(), device, {})
    outlet = planner.engine.outlet("latent")
    edge = float(np.float32(0.1))
    outlet.check(struct.pack("2d", -edge, edge))
    with pytest.raises(PayloadRangeError, match=r"-0.1 to 0.1"):
        outlet.check(struct.pack("2d", -edge, float(np.nextafter(np.float32(0.1), np.float32(1)))))
    planner.engine.close()


def test_a_plan_that_does_not_begin_keeps_no_row(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BackendError("the device refuses")

    chain.planner.goal(0.5, -0.5)
    chain.planner.observe()
    with monkeypatch.context() as patch:
        patch.setattr(chain.planner.engine.core.bindings, "write", fail)
        with pytest.raises(BackendError):
            chain.planner.chunk()
    assert rows_in_use(chain) == 0
    chain.plan()
    assert rows_in_use(chain) == 1


def test_it_lives_no_longer_than_what_it_was_made_from(chain: Chain) -> None:
    chain.planner.goals.write(stamp_ns=5, values=[0.5, 0.5], lifetime_ns=10)
    chain.planner.observe()
    assert chain.planner.chunk().provenance.goal_expires_ns == 15
    chain.policy.observe()
    assert chain.policy.chunk().provenance.goal_expires_ns == 15
    chain.plan()
    chain.policy.observe()
    assert chain.policy.chunk().provenance.goal_expires_ns == 0  # the control


def test_an_abandoned_plan_shows_nothing(chain: Chain) -> None:
    chain.planner.goal(0.5, -0.5)
    for nodes in range(1, 6):
        chain.planner.observe()
        chain.planner.engine.begin_step(protocol.Step(2, 0, 0, -1, 0, 0), lambda answer: None)
        flight = None
        while flight is None or flight.run.index < nodes:
            if not chain.planner.engine.has_work:
                chain.planner.engine.wait()
            chain.planner.engine.advance()
            flight = chain.planner.engine._ticks.plans._flight
            if flight is None:
                break
        if flight is None:
            break
        chain.planner.engine.interrupt(protocol.Interrupt(6, 0, "test", False, None))
        assert chain.policy.status().waiting_for == "goal"
        assert rows_in_use(chain) == 0
        chain.planner.engine.handle(protocol.Resume(7, 0, False))
    chain.planner.restore()
    chain.plan()
    assert chain.policy.status().waiting_for == "observation"  # the control


def test_branches_of_the_planner_show_nothing(chain: Chain) -> None:
    chain.planner.goal(0.5, -0.5)
    chain.planner.observe()
    forked = chain.planner.engine.handle(protocol.Fork(5, 0, "", 1, (5,)))
    assert isinstance(forked, protocol.Forked)
    (branch,) = forked.branches
    chain.planner.engine.step(protocol.Step(2, 0, 0, branch, 0, 0))
    assert chain.policy.status().waiting_for == "goal"
    assert rows_in_use(chain) == 0
    chain.planner.engine.handle(protocol.Select(1, 0, branch, True))
    chain.planner.engine.step(protocol.Step(2, 0, 4, -1, 0, 0))  # pops what the branch made
    left = chain.plan()  # on the lane that the branch had
    core, lane = chain.planner.engine.core, chain.planner.engine.environment(0).lane
    assert lane.index > 0, "not the one that was captured"
    seen = struct.unpack("2d", core.read_output(lane, LATENT.extremes))
    assert seen == (min(left), max(left)), "told by the graph of that lane"
    chain.policy.observe()
    chain.policy.chunk()
    assert chain.policy.in_force() == left
    assert chain.policy.copies() == 0


def test_a_flip_of_the_planner_leaves_the_goal(chain: Chain) -> None:
    chain.planner.settle()  # a lane stands by
    left = chain.plan()
    lane = chain.planner.engine.environment(0).lane.index
    chain.policy.observe()
    first = chain.policy.chunk()
    chain.planner.restore()
    assert chain.planner.engine.environment(0).lane.index != lane
    chain.planner.settle()  # the lane that it left is filled anew
    assert chain.policy.in_force() == left
    chain.policy.observe()
    assert chain.policy.chunk().provenance.goal_sequence == first.provenance.goal_sequence
    other = chain.plan(-0.3, 0.8)
    chain.policy.observe()
    chain.policy.chunk()
    assert chain.policy.in_force() == other != left


def test_a_restore_brings_it_back_through_the_engines_own_ring(chain: Chain) -> None:
    left = chain.plan()
    chain.policy.observe()
    chain.policy.chunk()
    chain.policy.snapshot("before")
    chain.plan(-0.7, 0.6)
    chain.policy.observe()
    chain.policy.chunk()
    assert chain.policy.in_force() != left
    chain.policy.restore("before", reset=False)
    assert chain.policy.in_force() == left
    assert not chain.policy.is_fed()
    assert rows_in_use(chain) == 0
    chain.policy.observe()
    first = chain.policy.chunk()
    assert chain.policy.copies() == 0
    chain.policy.restore("before", reset=False)
    chain.policy.observe()
    assert chain.policy.chunk().actions == first.actions
    assert first.provenance.goal_sequence == 1


def test_interrupt_and_resume_keep_it(chain: Chain) -> None:
    left = chain.plan()
    chain.policy.observe()
    chain.policy.chunk()
    chain.policy.engine.interrupt(protocol.Interrupt(6, 0, "test", False, None))
    other = chain.plan(-0.7, 0.6)
    chain.policy.observe()
    chain.policy.chunk()
    assert chain.policy.in_force() == other
    chain.policy.engine.handle(protocol.Resume(7, 0, False))
    assert chain.policy.in_force() == left
    forked = chain.policy.engine.handle(protocol.Fork(5, 0, "", 1, (5,)))
    assert isinstance(forked, protocol.Forked)
    chain.policy.observe()
    chain.policy.chunk(forked.branches[0])


def test_a_reset_refuses_what_was_made_from_before_it(chain: Chain) -> None:
    chain.planner.goal(0.5, -0.5)
    chain.planner.observe()
    chain.planner.engine.begin_step(protocol.Step(2, 0, 0, -1, 0, 0), lambda answer: None)
    while chain.planner.engine._ticks.plans._flight is None:
        chain.planner.engine.advance()
    chain.policy.restore()  # while the plan is under way
    chain.planner.drain()
    assert chain.policy.status().waiting_for == "goal"
    assert chain.policy.status().dropped_goals == 1
    assert rows_in_use(chain) == 0
    chain.policy.restore(stamp_ns=1000)
    chain.planner.engine.step(protocol.Step(2, 0, 4, -1, 0, 0))
    chain.plan()  # from an observation stamped before
    assert chain.policy.status().dropped_goals == 2
    chain.planner.stamp_ns = 1000
    chain.plan()
    assert chain.policy.status().waiting_for == "observation"


def test_it_grows_old(make: Callable[..., Chain]) -> None:
    chain = make(goal_max_age_ms=10.0)
    chain.plan()
    chain.policy.observe()
    chain.policy.now_ns += 11_000_000
    with pytest.raises(AbandonedError, match="fresh goal"):
        chain.policy.chunk()
    chain.planner.now_ns += 1_000_000
    chain.plan()
    chain.policy.chunk()


def test_a_chunk_in_the_making_bends_from_one_kind_to_the_other(
    make: Callable[..., Chain],
) -> None:
    chain = make(retarget=True)
    plans = chain.policy.engine._ticks.plans
    chain.policy.goal(0.9, 0.9)
    kinds = []
    for turn in range(3):
        chain.policy.observe()
        chain.policy.engine.begin_step(protocol.Step(2, 0, 4, -1, 0, 0), lambda answer: None)
        while plans._flight is None:
            chain.policy.engine.advance()
        left: tuple[float, ...]
        if turn % 2:
            chain.policy.goal(0.25, 0.5)
            left = (0.25, 0.5)
        else:
            left = chain.plan(-0.5, 0.1 * turn)
        chain.policy.drain()
        assert chain.policy.in_force() == left
        kinds.append(chain.policy.is_fed())
        assert chain.policy.engine.environment(0).position.origin.goal_sequence == turn + 2
    assert kinds == [True, False, True]
    assert chain.policy.copies() == 0


def test_a_step_waits_for_the_planner(chain: Chain) -> None:
    answers: list[Any] = []
    chain.policy.observe()
    chain.policy.engine.begin_step(protocol.Step(2, 0, 1, -1, 0, 10**12), answers.append)
    chain.plan()
    chain.policy.drain()
    assert len(answers[0].chunks) == 1


def test_two_policies_share_what_it_leaves(device: str) -> None:
    planner = Rig(Planner(), device, {})
    outlet = planner.engine.outlet("latent")
    with share_channel(GOAL, device=device) as goal:
        links = {"shared": {"goal": goal}, "feeds": {"goal": outlet}}
        one, two = (Rig(MinimalPolicy(), device, links) for _ in range(2))
        planner.goal(0.5, -0.5)
        planner.observe()
        planner.chunk()
        for rig in (one, two):
            rig.observe()
            rig.chunk()
            assert rig.is_fed()
            assert rig.copies() == 0
        sequences = {rig.engine.environment(0).position.origin.goal_sequence for rig in (one, two)}
        assert sequences == {1}, "one commit, one number"
        assert one.in_force() == two.in_force()
        one.goal(0.1, 0.1)
        two.observe()
        two.chunk()
        assert not two.is_fed()
        one.restore()
        planner.observe()
        planner.chunk()
        two.engine.close()
        one.observe()
        one.chunk()
        assert one.is_fed()
        one.engine.close()
    assert outlet.num_free == LATENT.num_rows * len(planner.engine.core.pool.lanes)
    planner.engine.close()


def test_environments_map_one_to_one(make: Callable[..., Chain]) -> None:
    chain = make(num_environments=2)
    for rig in (chain.planner, chain.policy):
        with EmbeddedWriter(rig.engine, "observation", 1) as writer:
            writer.write(stamp_ns=1, position=[0.3, 0.3])
    with EmbeddedWriter(chain.planner.engine, "goal", 1) as writer:
        writer.write(stamp_ns=1, values=[0.3, 0.3])
    chain.planner.engine.step(protocol.Step(2, 1, 0, -1, 0, 0))
    channel = chain.policy.engine.core.latches.channel("goal")
    assert channel.pending(0) is None
    assert channel.pending(1) is not None
    chain.policy.engine.step(protocol.Step(2, 1, 0, -1, 0, 0))
    seen = chain.policy.engine.handle(protocol.Inspect(8, 1))
    assert isinstance(seen, protocol.Inspection)
    assert seen.goal_transport_copies == 0


def test_the_goal_outlives_the_planner(chain: Chain) -> None:
    left = chain.plan()
    chain.planner.engine.close()
    with pytest.raises(LoanError, match="closed"):
        chain.outlet.loan(0, 0)
    chain.policy.observe()
    chain.policy.chunk()
    chain.policy.observe()
    chain.policy.chunk()
    assert chain.policy.in_force() == left
    chain.policy.goal(0.2, 0.2)
    chain.policy.observe()
    chain.policy.chunk()
    assert chain.outlet.num_free == LATENT.num_rows * chain.outlet._num_lanes


def test_a_fed_engine_has_the_fingerprint_of_one_that_is_not(chain: Chain, device: str) -> None:
    lonely = Rig(MinimalPolicy(), device, {})
    assert lonely.engine.core.fingerprint == chain.policy.engine.core.fingerprint
    lonely.engine.close()


class Forgetful(Planner):
    def buffers(self) -> tuple[BufferSpec, ...]:
        return MinimalPolicy.buffers(self)


def test_refusals_say_what_does_not_fit(chain: Chain, device: str) -> None:
    with pytest.raises(UnknownChannelError, match="no outlet 'goal'"):
        chain.planner.engine.outlet("goal")
    with pytest.raises(SpecError, match="latent_rows"):
        Rig(Forgetful(), device, {})
    for name in ("arm", "observation"):
        with pytest.raises(UnknownChannelError, match=f"fed channel '{name}'"):
            Rig(MinimalPolicy(), device, {"feeds": {name: chain.outlet}})

    class Framed(MinimalPolicy):
        def channels(self) -> Any:
            goal, observation = super().channels()
            return replace(goal, frame="map"), observation

    with pytest.raises(ConfigError, match="holds another thing"):
        Rig(Framed(), device, {"feeds": {"goal": chain.outlet}})
    assert len(chain.outlet._consumers) == 1
