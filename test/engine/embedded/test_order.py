"""Verbs that meet: what waits for the disk, pauses under interrupts, and who comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import AbandonedError, FlashrtError
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import ArenaLayout

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes

MakeRig = Callable[..., Any]


@pytest.fixture
def rig_with_low(make_rig: MakeRig, tmp_path: Path) -> Any:
    """An engine with a capsule "low" that lies on disk alone."""
    rig = make_rig(capsule_quota_bytes=2 * BLOCK_BYTES, capsule_folder=str(tmp_path))
    rig.ready()
    rig.step(2)
    rig.snapshot("low")
    rig.snapshot("pusher")
    assert rig.engine.core.store.get("low").tier == "disk"
    rig.step(1)
    return rig


@pytest.fixture
def device() -> str:
    """The host: files are the same everywhere."""
    return "cpu"


def begin(rig: Any, request: protocol.Request) -> list[Any]:
    answers: list[Any] = []
    rig.engine.begin(request, answers.append)
    return answers


def restore(capsule: str, *, reset: bool = False) -> protocol.Restore:
    return protocol.Restore(1, 0, capsule, False, None, reset, "", 0)


def drain_disk(rig: Any) -> None:
    while rig.engine.core.storage.mover.wait(1.0):
        rig.engine.background(rig.now_ns)


WAITING = [
    restore("low"),
    restore("low", reset=True),
    protocol.Fork(1, 0, "low", 1, ()),
]


@pytest.mark.parametrize("request_", WAITING, ids=["restore", "reset", "fork"])
def test_an_interrupt_ends_what_waits(rig_with_low: Any, request_: Any) -> None:
    rig = rig_with_low
    before = rig.state()
    answers = begin(rig, request_)
    assert not answers
    reply = rig.interrupt(hold=True)
    assert isinstance(answers[0], AbandonedError)
    assert (reply.depth, reply.boundary) == (1, -1)
    drain_disk(rig)
    status = rig.status()
    assert (len(answers), status.generation, status.interrupt_depth) == (1, reply.generation, 1)
    assert status.branches == ()
    assert status.waiting_for == "resume"
    rig.resume()
    assert rig.state() == before


@pytest.mark.parametrize("request_", WAITING, ids=["restore", "reset", "fork"])
def test_the_control_without_the_interrupt_acts(rig_with_low: Any, request_: Any) -> None:
    answer = rig_with_low.finish(begin(rig_with_low, request_))
    assert not isinstance(answer, FlashrtError)


def test_of_several_that_wait_the_last_asked_stays(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(capsule_quota_bytes=3 * BLOCK_BYTES, capsule_folder=str(tmp_path))
    rig.ready()
    states = {}
    for name in ("a", "b", "c", "d"):
        rig.step(1)
        rig.snapshot(name)
        states[name] = rig.state()
    low = [name for name in states if rig.engine.core.store.get(name).tier == "disk"]
    assert len(low) >= 2
    generation = rig.status().generation
    first, second = (begin(rig, restore(name)) for name in low[:2])
    assert not isinstance(rig.finish(second), FlashrtError)
    assert rig.state() == states[low[1]]
    # the first either came in time, before the second, or never acts
    drain_disk(rig)
    moves = rig.status().generation - generation
    assert len(first) == 1
    assert moves == (1 if isinstance(first[0], AbandonedError) else 2)
    assert rig.state() == states[low[1]]


def test_a_reset_is_not_undone_by_a_restore_asked_before_it(rig_with_low: Any) -> None:
    rig = rig_with_low
    answers = begin(rig, restore("low"))
    moved = rig.reset()
    home = rig.state()
    assert isinstance(answers[0], AbandonedError)
    drain_disk(rig)
    assert (rig.status().generation, rig.state()) == (moved.generation, home)


def test_a_file_and_another_environment_are_not_concerned(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    rig = make_rig(
        num_environments=2, capsule_quota_bytes=3 * BLOCK_BYTES, capsule_folder=str(tmp_path)
    )
    rig.ready()
    rig.engine.handle(protocol.Activate(1, 1, "step", 10.0))
    for name in ("low", "pusher", "pusher2"):
        rig.step(1)
        rig.snapshot(name)
    assert rig.engine.core.store.get("low").tier == "disk"
    saved = begin(rig, protocol.Save(1, 0, "low", "file", False))
    other = begin(rig, protocol.Restore(1, 1, "low", False, None, False, "", 0))
    rig.interrupt()
    assert not saved
    assert not other
    assert isinstance(rig.finish(saved), protocol.Saved)
    assert rig.finish(other).tick == 1


def test_a_refused_verb_ends_nothing(rig_with_low: Any) -> None:
    answers = begin(rig_with_low, restore("low"))
    for _ in range(rig_with_low.engine.core.config.interrupt_depth):
        rig_with_low.engine.environment(0).interruptions.append(None)
    with pytest.raises(FlashrtError):
        rig_with_low.interrupt()
    rig_with_low.engine.environment(0).interruptions.clear()
    with pytest.raises(FlashrtError):
        rig_with_low.restore("nothing")
    assert not answers
    assert rig_with_low.finish(answers).tick == 2


# pauses --------------------------------------------------------------------------------------


def test_a_pause_that_was_interrupted_goes_on_after_the_resume(rig: Any) -> None:
    rig.step(2)
    rig.interrupt(hold=True)
    rig.interrupt()  # does not hold: the environment runs, under the goal in force
    rig.step(3)
    rig.resume()
    assert rig.status().waiting_for == "resume"
    with pytest.raises(AbandonedError, match="resume"):
        rig.step(1)
    rig.resume()
    assert rig.step(1).tick == 3


def test_a_goal_that_is_kept_ends_the_pause_beneath(rig: Any) -> None:
    rig.step(2)
    rig.interrupt(hold=True)
    rig.interrupt()
    live = rig.goal(-0.3, 0.3)
    rig.step(1)
    rig.resume(keep_goal=True)
    assert rig.step(1).chunks[0].provenance.goal_sequence == live


def test_a_goal_that_had_ended_the_pause_is_stacked_instead_of_it(rig: Any) -> None:
    rig.step(2)
    rig.interrupt(hold=True)
    ended_by = rig.goal(-0.3, 0.3)  # no plan has latched it yet
    rig.interrupt(hold=True)
    rig.goal(0.1, 0.1)
    rig.step(1)
    rig.resume()
    assert rig.step(1).chunks[0].provenance.goal_sequence == ended_by


def test_a_pause_in_the_middle_of_a_plan_stacks_the_boundary_before_it(rig: Any) -> None:
    rig.step(4)
    before = rig.state()
    rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 0, 0), lambda answer: None)
    rig.advance()
    rig.advance()
    ring = rig.goals._ring
    slot, ticket, _ = rig.engine.loan(ring)
    np.frombuffer(ring.channel.view(ring.first_slot + slot), np.float32, 2)[:] = [0.7, 0.7]
    commit = protocol.Commit(0, 0, slot, ticket, 100, 42, False)
    reply = rig.engine.interrupt(protocol.Interrupt(1, 0, "", True, commit), ring)
    assert reply.boundary == 2
    made = rig.step(1).chunks[0].provenance
    assert (made.goal_sequence, made.generation) == (reply.goal_sequence, reply.generation)
    rig.resume()
    assert rig.state() == before
    assert rig.status().waiting_for == ""
