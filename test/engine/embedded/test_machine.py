"""Random histories of verbs against a model of what an engine promises."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    AbandonedError,
    CapsuleNotFoundError,
    CapsulePinnedError,
    CapsuleQuotaError,
    FlashrtError,
    InterruptDepthError,
    NoBoundaryError,
    StaleGenerationError,
)
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import ArenaLayout

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes


@dataclass
class Interrupted:
    """What a resume has to bring back."""

    state: bytes
    goal: bytes
    was_held: bool


class EngineMachine(RuleBasedStateMachine):
    """Knows the bytes of every named capsule and interruption, and what generations may do.

    It knows too whether the environment pauses, and whether a goal waits to end that.
    """

    make: Any
    options: dict[str, Any] = {}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        super().__init__()
        self.rig = self.make(num_environments=2, **self.options)
        self.named: dict[str, bytes] = {}
        self.stack: list[Interrupted] = []
        self.is_held = False
        self.has_new_goal = False
        self.branches: list[int] = []
        self.generation = 1
        self.count = 0
        self.seen: dict[str, bytes] = {}

    @initialize()
    def begin(self) -> None:
        self.rig.ready()
        self.named["home"] = self.rig.state()

    @rule(x=st.floats(-1, 1, width=32), y=st.floats(-1, 1, width=32))
    def feed(self, x: float, y: float) -> None:
        self.commit_goal(x, y)
        self.rig.observe(y, x)

    def commit_goal(self, x: float, y: float) -> None:
        with contextlib.suppress(FlashrtError):  # stamped before the goal of an interrupt
            self.rig.goal(x, y)
            self.has_new_goal = True

    def goal_in_force(self) -> bytes:
        newest = self.rig.engine.core.goals.newest(self.rig.engine.environment(0))
        return newest["goal"][0] if newest else b""

    def note_plan(self) -> None:
        """Take note that a plan has begun: it latched the goal, and ended a pause."""
        self.is_held = self.has_new_goal = False

    @rule(count=st.integers(1, 9))
    def step(self, count: int) -> None:
        before = self.rig.state()
        is_paused = self.is_held and not self.has_new_goal
        try:
            done = self.rig.step(count)
        except FlashrtError:
            assert self.rig.state() == before
        else:
            assert not is_paused
            if done.chunks:
                self.note_plan()

    @rule(
        nodes=st.integers(1, 4),
        goal=st.none() | st.tuples(*[st.floats(-1, 1, width=32)] * 2),
        goal_at=st.integers(0, 3),
        then=st.sampled_from(
            ["cancel", "interrupt", "hold", "goal", "resume", "restore", "snapshot", "fork", "end"]
        ),
        data=st.data(),
    )
    def meet_a_plan_in_flight(
        self, nodes: int, goal: Any, goal_at: int, then: str, data: Any
    ) -> None:
        before = self.rig.state()
        due = self.rig.engine.environment(0).position.queue_remaining == 0
        answers: list[Any] = []
        job = self.rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 0, 0), answers.append)
        for node in range(nodes if due else 0):
            if goal and node == goal_at:
                self.commit_goal(*goal)
            was_flying = self.rig.engine._ticks.plans._flight is not None
            self.rig.advance()
            flight = self.rig.engine._ticks.plans._flight
            if flight is not None and not was_flying:
                self.note_plan()
            elif flight is not None and flight.bent_at == flight.run.index:
                self.has_new_goal = False  # latched in the middle
            assert self.rig.state() == before
        is_flying = self.rig.engine._ticks.plans._flight is not None
        if then in ("interrupt", "hold"):
            self.interrupt(hold=then == "hold")
        elif then == "goal":
            self.interrupt_with_a_goal(0.25, -0.25, hold=data.draw(st.booleans()))
        elif then == "resume" and self.stack:
            self.resume(keep=data.draw(st.booleans()))
        elif then == "restore":
            self.restore(data, keep=data.draw(st.booleans()), reset=data.draw(st.booleans()))
        elif then == "snapshot":
            self.snapshot()
        elif then == "fork":
            self.fork(count=1)
        elif then == "end" and is_flying:
            self.rig.drain()
            assert not isinstance(answers[0], FlashrtError)
            # the step's own plan; one that was bent took the goal along
            self.has_new_goal = self.rig.engine.core.latches.has_new_goal(
                self.rig.engine.environment(0)
            )
            return
        if not answers:
            self.rig.engine.cancel_step(job)
        elif then not in ("snapshot", "fork", "cancel"):
            assert isinstance(answers[0], AbandonedError)

    @rule()
    def snapshot(self) -> None:
        self.count += 1
        name = f"capsule-{self.count}"
        self.rig.snapshot(name)
        self.named[name] = self.rig.state()

    @rule(data=st.data(), keep=st.booleans(), reset=st.booleans())
    def restore(self, data: Any, keep: bool, reset: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.named)))
        self.rig.restore(name, keep_goal=keep, reset=reset)
        self.note_restore(name, keep=keep, reset=reset)

    def note_restore(self, name: str, *, keep: bool, reset: bool) -> None:
        self.generation += 1
        self.stack.clear()
        self.is_held = False
        self.has_new_goal = self.has_new_goal and keep
        if reset:
            self.branches.clear()
        assert self.rig.state() == self.named[name]

    @rule(hold=st.booleans())
    def interrupt(self, hold: bool) -> None:
        before, goal = self.rig.state(), self.goal_in_force()
        try:
            reply = self.rig.interrupt(hold=hold)
        except FlashrtError:
            assert len(self.stack) == 8
            assert self.rig.state() == before
            return
        self.note_interrupt(reply, before, goal, hold=hold, has_goal=False)

    def note_interrupt(
        self,
        reply: protocol.Interrupted,
        state: bytes,
        goal: bytes,
        *,
        hold: bool,
        has_goal: bool,
    ) -> None:
        self.stack.append(Interrupted(state, goal, self.is_held and not self.has_new_goal))
        self.generation += 1
        self.is_held, self.has_new_goal = hold, has_goal
        assert reply.depth == len(self.stack)

    @rule(x=st.floats(-1, 1, width=32), y=st.floats(-1, 1, width=32), hold=st.booleans())
    def interrupt_with_a_goal(self, x: float, y: float, hold: bool) -> None:
        before, goal, engine = self.rig.state(), self.goal_in_force(), self.rig.engine
        ring = self.rig.goals._ring
        slot, ticket, _ = engine.loan(ring)
        np.frombuffer(ring.channel.view(ring.first_slot + slot), np.float32, 2)[:] = [x, y]
        self.rig.stamp_ns += 1
        commit = protocol.Commit(0, 0, slot, ticket, self.rig.stamp_ns, 1, False)
        try:
            reply = engine.interrupt(protocol.Interrupt(1, 0, "", hold, commit), ring)
        except InterruptDepthError:
            engine.return_loan(ring, slot, ticket)
            assert len(self.stack) == 8
            assert self.rig.state() == before
            return
        assert ring.loaned_slot is None
        self.note_interrupt(reply, before, goal, hold=hold, has_goal=True)
        assert self.goal_in_force()[:8] == np.array([x, y], np.float32).tobytes()

    @rule(then=st.sampled_from(["interrupt", "reset"]))
    def write_across_a_barrier(self, then: str) -> None:
        engine, ring = self.rig.engine, self.rig.goals._ring
        slot, ticket, _ = engine.loan(ring)
        if then == "reset":
            self.rig.restore("home", reset=True)
            self.note_restore("home", keep=False, reset=True)
        else:
            generation = self.generation
            self.interrupt(hold=False)
            if self.generation == generation:  # the stack was full
                engine.return_loan(ring, slot, ticket)
                return
        with pytest.raises(StaleGenerationError):
            engine.commit(ring, slot, ticket, stamp_ns=self.rig.stamp_ns + 1, source_sequence=0)
        assert ring.loaned_slot is None

    @precondition(lambda self: self.stack)
    @rule(keep=st.booleans())
    def resume(self, keep: bool) -> None:
        live = self.goal_in_force()
        self.rig.resume(keep_goal=keep)
        top = self.stack.pop()
        self.generation += 1
        self.is_held = top.was_held and not keep
        self.has_new_goal = self.has_new_goal and keep
        assert self.rig.state() == top.state
        assert self.goal_in_force() == (live if keep else top.goal)

    @rule(count=st.integers(1, 3))
    def fork(self, count: int) -> None:
        before = self.rig.state()
        try:
            self.branches += self.rig.fork(count=count).branches
        except FlashrtError:
            assert len(self.branches) + count > 4
        assert self.rig.state() == before

    @precondition(lambda self: self.branches)
    @rule(data=st.data(), ticks=st.integers(0, 3))
    def step_a_branch(self, data: Any, ticks: int) -> None:
        before = self.rig.state()
        branch = data.draw(st.sampled_from(self.branches))
        lacks = self.rig.engine.core.latches.missing(
            self.rig.engine.core.branches[branch], self.rig.engine.environment(0)
        )
        try:
            self.rig.step(ticks, branch=branch)
        except AbandonedError:
            assert lacks
        else:
            assert not lacks
        assert self.rig.state() == before

    @precondition(lambda self: self.branches)
    @rule(data=st.data(), release=st.booleans())
    def select(self, data: Any, release: bool) -> None:
        branch = data.draw(st.sampled_from(self.branches))
        self.rig.engine.handle(protocol.Select(1, 0, branch, release))
        self.generation += 1
        self.has_new_goal = False
        self.branches.remove(branch)
        if release:
            self.branches.clear()

    @rule(back=st.integers(1, 3))
    def rollback(self, back: int) -> None:
        before = self.rig.state()
        try:
            moved = self.rig.engine.handle(protocol.Rollback(1, 0, back, ""))
        except FlashrtError:
            assert self.rig.state() == before
        else:
            self.generation += 1
            self.has_new_goal = False
            assert self.rig.state() == self.seen[moved.capsule_id]

    @rule(data=st.data())
    def go_back_to_an_ancestor(self, data: Any) -> None:
        store, env = self.rig.engine.core.store, self.rig.engine.environment(0)
        line = [key for key in store.ancestors(env.parent) if store.find(key)]
        key = data.draw(st.sampled_from(line))
        generation = self.generation
        try:
            self.rig.engine.handle(protocol.Rollback(1, 0, 0, key))
        except NoBoundaryError:
            assert self.generation > generation  # what waited before it moved the environment
            return
        self.generation += 1
        self.has_new_goal = False
        assert self.rig.state() == self.seen.get(key, self.rig.state())

    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: Any, pinned: bool) -> None:
        key = data.draw(st.sampled_from([c.id for c in self.rig.engine.core.store]))
        with contextlib.suppress(CapsulePinnedError, CapsuleQuotaError):
            self.rig.engine.handle(protocol.Pin(1, key, pinned))

    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        key = data.draw(st.sampled_from([c.id for c in self.rig.engine.core.store]))
        name = self.rig.engine.core.store.get(key).name
        with contextlib.suppress(CapsulePinnedError):
            self.rig.engine.handle(protocol.Drop(1, key))
            self.named.pop(name, None)

    @rule()
    def settle(self) -> None:
        self.rig.settle()

    @invariant()
    def figures_agree(self) -> None:
        status = self.rig.status()
        assert status.generation == self.generation
        assert status.interrupt_depth == len(self.stack)
        is_paused = self.is_held and not self.has_new_goal
        assert (status.waiting_for == "resume") == is_paused
        assert self.rig.engine.environment(0).is_held == self.is_held
        assert sorted(status.branches) == sorted(self.branches)

    @invariant()
    def host_counters_agree_with_state(self) -> None:
        env = self.rig.engine.environment(0)
        position = env.position
        assert self.number("tick") == position.tick
        assert self.number("noise_seed") == position.noise_seed
        assert self.number("noise_counter") == position.noise_counter
        if position.queue_remaining:
            assert self.number("queue_head") == position.queue_head

    @invariant()
    def lineage_is_whole(self) -> None:
        store = self.rig.engine.core.store
        for capsule in store:
            if capsule.tier != "disk":
                payload = self.read(capsule)
                assert self.seen.setdefault(capsule.id, payload) == payload
            assert not capsule.parent or store.find(capsule.parent)
        for env in self.rig.engine.core.environments:
            assert not env.parent or store.find(env.parent)
            line = set(store.ancestors(env.parent))
            assert all(boundary.id in line for boundary in env.boundaries)

    @invariant()
    def the_other_environment_is_left_alone(self) -> None:
        core = self.rig.engine.core
        assert core.environments[1].generation == 1
        payload = core.read_section(core.environments[1].lane)
        assert self.seen.setdefault("other environment", payload) == payload

    @invariant()
    def capsules_keep_their_bytes(self) -> None:
        for name, payload in self.named.items():
            capsule = self.rig.engine.core.store.get(name)
            assert capsule.tier == "disk" or self.read(capsule) == payload

    @invariant()
    def no_slot_is_lost(self) -> None:
        latches = self.rig.engine.core.latches
        latches.release_read()
        assert latches.torn_reads == 0
        assert self.rig.goals._ring.loaned_slot is None

    def number(self, buffer: str) -> int:
        core = self.rig.engine.core
        address = core.environments[0].lane.address + core.layout.by_name[buffer].offset
        return int.from_bytes(core.backend.read(address, 8), "little", signed=True)

    def read(self, capsule: Capsule) -> bytes:
        payload: bytes = self.rig.engine.core.backend.read(capsule.block.address, capsule.num_bytes)
        return payload

    def teardown(self) -> None:
        self.rig.engine.close()


@dataclass(eq=False)
class Asked:
    """A restore that waits for the disk."""

    order: int
    name: str
    reset: bool


class WaitingMachine(EngineMachine):
    """The same where most capsules lie on disk, and restores of them wait.

    Whatever is asked after a restore and moves the environment ends it.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.options = {
            "capsule_folder": self._folder.name,
            "capsule_quota_bytes": 4 * BLOCK_BYTES,
            **type(self).options,
        }
        super().__init__()
        self.waiting: list[Asked] = []
        self.ended: list[Asked] = []
        self.num_asked = 0
        self.moved_by = 0
        """Order of what has moved the environment last."""
        self._known = self.generation

    @initialize()
    def begin(self) -> None:
        super().begin()
        for _ in range(6):
            self.rig.step(1)
            self.snapshot()
        self.note_plan()

    @rule(
        data=st.data(),
        reset=st.booleans(),
        then=st.sampled_from(
            ["interrupt", "hold", "goal", "reset", "resume", "rollback", "fork", "plan", "ask", ""]
        ),
    )
    def meet_a_restore_that_waits(self, data: Any, reset: bool, then: str) -> None:
        """Ask for one, and do something that needs no bytes from disk at once."""
        self.ask_for_a_restore(data, reset)
        if then in ("interrupt", "hold"):
            self.interrupt(hold=then == "hold")
        elif then == "goal":
            self.interrupt_with_a_goal(0.5, 0.5, hold=False)
        elif then == "reset":
            self.rig.reset()
            self.note_restore("home", keep=False, reset=True)
        elif then == "resume" and self.stack:
            self.resume(keep=False)
        elif then == "rollback":
            self.rollback(back=1)
        elif then == "fork":
            self.fork(count=1)
        elif then == "plan":
            self.meet_a_plan_in_flight(2, (0.1, 0.2), 1, "cancel", data)
        elif then == "ask":
            self.ask_for_a_restore(data, not reset)

    def ask_for_a_restore(self, data: Any, reset: bool) -> None:
        low = [n for n in self.named if self.rig.engine.core.store.get(n).tier == "disk"]
        if not low:
            return
        self.catch_up()
        self.num_asked += 1
        asked = Asked(self.num_asked, data.draw(st.sampled_from(sorted(low))), reset)

        def done(answer: Any) -> None:
            self.waiting.remove(asked)
            if isinstance(answer, AbandonedError):
                self.ended.append(asked)
                return
            if isinstance(answer, FlashrtError):
                assert isinstance(answer, CapsuleNotFoundError)  # dropped meanwhile
                return
            self.note_restore(asked.name, keep=False, reset=asked.reset)
            self._known, self.moved_by = self.generation, max(self.moved_by, asked.order)

        self.waiting.append(asked)
        self.rig.engine.begin(
            protocol.Restore(1, 0, asked.name, False, None, asked.reset, "", 0), done
        )

    @rule(data=st.data(), pinned=st.just(False))
    def pin(self, data: Any, pinned: bool) -> None:
        """Leave room: pins that fill the memory refuse what waits, which is tested elsewhere."""
        super().pin(data, pinned)

    @rule(turns=st.integers(1, 20))
    def move_bytes(self, turns: int) -> None:
        for _ in range(turns):
            self.rig.engine.core.storage.mover.wait(0.001)
            self.rig.engine.background(self.rig.now_ns)
            self.rig.now_ns += 1_000_000

    def catch_up(self) -> None:
        """Number the moves that were asked and done at once since the last look."""
        if self.generation != self._known:
            self.num_asked += 1
            self._known, self.moved_by = self.generation, self.num_asked

    @invariant()
    def nothing_asked_before_a_move_waits(self) -> None:
        self.catch_up()
        assert all(asked.order > self.moved_by for asked in self.waiting)
        assert all(asked.order < self.moved_by for asked in self.ended)

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


def run(machine: type[EngineMachine], make_rig: Any, **options: Any) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    body = {"make": staticmethod(make_rig), "options": options}
    run_state_machine_as_test(
        type("Machine", (machine,), body),
        settings=settings(max_examples=40, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("retarget", [False, True])
def test_random_histories_keep_every_promise(make_rig: Any, retarget: bool) -> None:
    run(EngineMachine, make_rig, retarget=retarget)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_random_histories_with_restores_that_wait(make_rig: Any) -> None:
    run(WaitingMachine, make_rig, retarget=True)
