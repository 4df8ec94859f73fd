"""Random histories of verbs against a model of what an engine promises."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    AbandonedError,
    CapsulePinnedError,
    CapsuleQuotaError,
    FlashrtError,
)


class EngineMachine(RuleBasedStateMachine):
    """Knows the bytes of every named capsule and interruption, and what generations may do."""

    make: Any

    def __init__(self) -> None:
        super().__init__()
        self.rig = self.make(num_environments=2)
        self.named: dict[str, bytes] = {}
        self.stack: list[bytes] = []
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
        self.rig.goal(x, y)
        self.rig.observe(y, x)

    @rule(count=st.integers(1, 9))
    def step(self, count: int) -> None:
        before = self.rig.state()
        try:
            self.rig.step(count)
        except FlashrtError:
            assert self.rig.state() == before

    @rule(nodes=st.integers(1, 4))
    def leave_a_plan_in_flight(self, nodes: int) -> None:
        before = self.rig.state()
        due = self.rig.engine.environment(0).position.queue_remaining == 0
        with contextlib.suppress(FlashrtError):
            job = self.rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 0, 0), lambda answer: None)
            for _ in range(nodes if due else 0):
                self.rig.advance()
            if due:
                assert self.rig.state() == before
            self.rig.engine.cancel_step(job)

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
        self.generation += 1
        self.stack.clear()
        if reset:
            self.branches.clear()
        assert self.rig.state() == self.named[name]

    @rule(hold=st.booleans())
    def interrupt(self, hold: bool) -> None:
        before = self.rig.state()
        try:
            reply = self.rig.interrupt(hold=hold)
        except FlashrtError:
            assert len(self.stack) == 8
            assert self.rig.state() == before
            return
        self.stack.append(before)
        self.generation += 1
        assert reply.depth == len(self.stack)

    @precondition(lambda self: self.stack)
    @rule(keep=st.booleans())
    def resume(self, keep: bool) -> None:
        self.rig.resume(keep_goal=keep)
        self.generation += 1
        assert self.rig.state() == self.stack.pop()

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
            assert self.rig.state() == self.seen[moved.capsule_id]

    @rule(data=st.data())
    def go_back_to_an_ancestor(self, data: Any) -> None:
        store, env = self.rig.engine.core.store, self.rig.engine.environment(0)
        line = [key for key in store.ancestors(env.parent) if store.find(key)]
        key = data.draw(st.sampled_from(line))
        self.rig.engine.handle(protocol.Rollback(1, 0, 0, key))
        self.generation += 1
        assert self.rig.state() == self.seen[key]

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
            assert self.read(capsule) == payload

    def number(self, buffer: str) -> int:
        core = self.rig.engine.core
        address = core.environments[0].lane.address + core.layout.by_name[buffer].offset
        return int.from_bytes(core.backend.read(address, 8), "little", signed=True)

    def read(self, capsule: Capsule) -> bytes:
        payload: bytes = self.rig.engine.core.backend.read(capsule.block.address, capsule.num_bytes)
        return payload

    def teardown(self) -> None:
        self.rig.engine.close()


def test_random_histories_keep_every_promise(make_rig: Any) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Machine", (EngineMachine,), {"make": staticmethod(make_rig)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )
