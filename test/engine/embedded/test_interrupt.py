"""Interrupt and resume, fork and select."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    AbandonedError,
    BranchNotFoundError,
    InterruptDepthError,
    NoFreeLaneError,
    NothingToResumeError,
    SpecError,
)

MakeRig = Callable[..., Any]


def _start_plan(rig: Any, nodes: int) -> list[Any]:
    """Leave a chunk plan in flight after ``nodes`` of its nodes."""
    answers: list[Any] = []
    rig.engine.begin_step(protocol.Step(1, 0, 4, -1, 0, 10**9), answers.append)
    for _ in range(nodes):
        rig.advance()
    return answers


def test_an_interrupt_takes_effect_at_the_next_node(rig: Any) -> None:
    rig.step(4)
    state = rig.state()
    answers = _start_plan(rig, nodes=3)
    reply = rig.interrupt(hold=True)
    assert reply.boundary == 3
    assert isinstance(answers[0], AbandonedError)
    rig.resume()
    assert rig.state() == state


def test_resume_goes_on_as_if_nothing_had_happened(make_rig: MakeRig) -> None:
    def chunks(*, is_interrupted: bool) -> tuple[bytes, list[bytes]]:
        rig = make_rig()
        rig.ready()
        rig.step(6)
        if is_interrupted:
            rig.interrupt()
            rig.goal(-0.9, -0.9)
            rig.step(7)
            rig.resume()
        rig.observe(0.3, 0.3)
        step = rig.step(6)
        return rig.state(), [record.values for record in step.actions]

    assert chunks(is_interrupted=True) == chunks(is_interrupted=False)


def test_without_the_resume_what_follows_differs(make_rig: MakeRig) -> None:
    rig, other = make_rig(), make_rig()
    for each in (rig, other):
        each.ready()
        each.step(6)
    rig.interrupt()
    rig.goal(-0.9, -0.9)
    rig.step(7)
    for each in (rig, other):
        each.observe(0.3, 0.3)
    first, second = rig.step(6), other.step(6)
    assert [a.values for a in first.actions] != [a.values for a in second.actions]


def test_resume_keeps_the_live_goal_when_asked(rig: Any) -> None:
    rig.step(4)
    rig.interrupt()
    live = rig.goal(-0.9, -0.9)
    rig.step(1)
    rig.resume(keep_goal=True)
    rig.observe(0.0, 0.0)
    assert rig.step(4).chunks[0].provenance.goal_sequence == live


def test_a_goal_in_the_same_message_is_the_one_that_acts(rig: Any) -> None:
    rig.step(2)
    ring = rig.goals._ring
    slot, ticket, _ = rig.engine.loan(ring)
    np.frombuffer(ring.channel.view(ring.first_slot + slot), np.float32, 2)[:] = [0.7, 0.7]
    commit = protocol.Commit(0, 0, slot, ticket, 100, 42, False)
    reply = rig.engine.interrupt(protocol.Interrupt(1, 0, "new goal", True, commit), ring)
    stepped = rig.step(1)  # the goal ends the hold
    provenance = stepped.chunks[0].provenance
    assert provenance.goal_sequence == reply.goal_sequence
    assert (provenance.goal_source_sequence, provenance.generation) == (42, reply.generation)
    assert stepped.actions[0].index == 0


def test_hold_stops_ticks_until_a_resume(rig: Any) -> None:
    rig.step(2)
    rig.interrupt(hold=True)
    with pytest.raises(AbandonedError, match="resume"):
        rig.step(1)
    rig.resume()
    assert rig.step(1).tick == 3


def test_interrupts_stack_up_to_their_depth(make_rig: MakeRig) -> None:
    rig = make_rig(interrupt_depth=2)
    rig.ready()
    rig.step(2)
    outer = rig.state()
    rig.interrupt()
    rig.step(1)
    inner = rig.state()
    rig.interrupt()
    generation = rig.status().generation
    with pytest.raises(InterruptDepthError):
        rig.interrupt()
    assert rig.status().generation == generation
    rig.step(2)
    assert rig.resume().depth == 1
    assert rig.state() == inner
    assert rig.resume().depth == 0
    assert rig.state() == outer
    with pytest.raises(NothingToResumeError):
        rig.resume()


def test_no_capsule_leaks_over_many_interrupts(rig: Any) -> None:
    for _ in range(100):
        rig.observe(0.1, 0.1)
        rig.step(5)
        rig.interrupt()
        rig.resume()
        rig.observe(0.1, 0.1)
    assert rig.status().num_capsules <= 1 + 8


def test_branches_differ_and_the_selected_one_goes_on(rig: Any) -> None:
    rig.step(2)
    before = rig.state()
    forked = rig.fork(count=4, seeds=(1, 2, 3, 4))
    chunks = {}
    for branch in forked.branches:
        stepped = rig.step(4, branch=branch)
        chunks[branch] = stepped.chunks[0]
    assert len({chunk.actions for chunk in chunks.values()}) == 4
    assert rig.state() == before
    best = max(chunks, key=lambda branch: chunks[branch].score)
    ends = {
        b: -float(np.linalg.norm(np.frombuffer(c.actions, np.float32)[-2:] - [0.5, -0.5]))
        for b, c in chunks.items()
    }
    assert best == max(ends, key=lambda branch: ends[branch])
    moved = rig.engine.handle(protocol.Select(1, 0, best, True))
    assert (moved.path, moved.tick) == ("flip", 6)
    assert rig.status().branches == ()
    assert not rig.recorder.outputs or all(o[1].branch == -1 for o in rig.recorder.outputs)


def test_the_same_seed_gives_the_same_branch(rig: Any) -> None:
    rig.step(4)
    forked = rig.fork(count=3, seeds=(5, 5, 6))
    chunks = [rig.step(0, branch=b).chunks[0].actions for b in forked.branches]
    assert chunks[0] == chunks[1] != chunks[2]


def test_fork_from_a_capsule_brings_its_goal(rig: Any) -> None:
    rig.step(4)
    rig.snapshot("fork-me")
    rig.goal(-0.9, -0.9)
    forked = rig.fork("fork-me", count=2)
    step = rig.step(0, branch=forked.branches[0])
    assert step.chunks[0].provenance.goal_sequence == 1
    assert step.actions == ()


def test_refused_forks_change_nothing(rig: Any) -> None:
    rig.step(1)
    used = rig.status().lanes_used
    with pytest.raises(NoFreeLaneError):
        rig.fork(count=5)
    with pytest.raises(SpecError):
        rig.fork(count=2, seeds=(1,))
    with pytest.raises(SpecError):
        rig.fork(count=0)
    with pytest.raises(BranchNotFoundError):
        rig.engine.handle(protocol.Select(1, 0, 0, True))
    assert rig.status().lanes_used == used


def test_lanes_and_slots_come_back_after_many_forks(rig: Any) -> None:
    rig.step(4)
    rig.snapshot("origin")
    used = rig.status().lanes_used
    for turn in range(50):
        forked = rig.fork("origin" if turn % 2 else "", count=4)
        for branch in forked.branches:
            rig.step(1, branch=branch)
        rig.engine.handle(protocol.Select(1, 0, forked.branches[turn % 4], True))
        assert rig.status().lanes_used == used
    assert rig.status().num_capsules <= 2 + 8
