"""Lifetimes that writers name, and how old an input may be that starts a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import protocol
from flashrt_ros.engine.payload import end_of_life
from flashrt_ros.engine.protocol import EventKind, OutputKind
from flashrt_ros.errors import AbandonedError, PayloadRangeError, StepTimeoutError

MS = 1_000_000


def stale_events(rig: Any) -> list[str]:
    return [e.detail for e in rig.recorder.events if e.kind == EventKind.STALE]


def num_chunks(rig: Any) -> int:
    return sum(kind is OutputKind.CHUNK for kind, *_ in rig.recorder.outputs)


# lifetimes -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1))
def test_the_end_of_a_lifetime_fits_the_wire_and_is_zero_for_none_alone(
    stamp_ns: int, lifetime_ns: int
) -> None:
    end_ns = end_of_life(stamp_ns, lifetime_ns)
    assert 0 <= end_ns < 2**63
    assert (end_ns == 0) == (lifetime_ns == 0)
    assert not lifetime_ns or end_ns in (stamp_ns + lifetime_ns, 1, 2**63 - 1)


def test_a_lifetime_rides_with_every_output_made_under_the_goal(rig: Any) -> None:
    rig.goal(0.2, 0.1, stamp_ns=500, lifetime_ns=70)
    done = rig.step(2)
    records = [*done.chunks, *done.actions]
    assert {record.provenance.goal_expires_ns for record in records} == {570}
    rig.goal(0.2, 0.1, stamp_ns=501)
    assert rig.step(4).actions[-1].provenance.goal_expires_ns == 0


def test_it_comes_back_with_the_goal(rig: Any) -> None:
    rig.goal(0.2, 0.1, stamp_ns=500, lifetime_ns=70)
    rig.step()
    rig.snapshot("under-it")
    rig.interrupt()
    rig.goal(-0.2, 0.1, stamp_ns=600)
    assert rig.step().actions[0].provenance.goal_expires_ns == 0
    rig.resume()
    assert rig.step(5).chunks[0].provenance.goal_expires_ns == 570
    rig.goal(-0.2, 0.1, stamp_ns=700)
    rig.step(4)
    rig.restore("under-it")
    rig.observe(0.0, 0.0)
    assert rig.step(5).chunks[0].provenance.goal_expires_ns == 570


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_it_comes_back_from_a_file(make_rig: Callable[..., Any], tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    rig = make_rig(capsule_folder=str(tmp_path))
    rig.ready()
    for name, lifetime_ns in (("with", 70), ("without", 0)):
        rig.goal(0.2, 0.1, stamp_ns=500, lifetime_ns=lifetime_ns)
        rig.step(4)
        rig.snapshot(name)
        rig.engine.handle(protocol.Save(1, 0, name, name, False))
    for name, expires_ns in (("with", 570), ("without", 0)):
        rig.engine.handle(protocol.Load(1, 0, name, f"again-{name}", False, False))
        rig.restore(f"again-{name}")
        rig.observe(0.0, 0.0)
        assert rig.step().chunks[0].provenance.goal_expires_ns == expires_ns


def test_an_interrupt_hands_a_lifetime_over_and_refuses_a_negative_one(rig: Any) -> None:
    engine = rig.engine
    for lifetime_ns in (-1, 40):
        slot, ticket, _ = engine.loan(rig.goals._ring)
        commit = protocol.Commit(0, 0, slot, ticket, 100, 42, False, lifetime_ns)
        request = protocol.Interrupt(1, 0, "", False, commit)
        if lifetime_ns < 0:
            before = rig.state()
            with pytest.raises(PayloadRangeError):
                engine.interrupt(request, rig.goals._ring)
            engine.return_loan(rig.goals._ring, slot, ticket)
            assert rig.state() == before
            assert rig.status().interrupt_depth == 0
        else:
            engine.interrupt(request, rig.goals._ring)
    assert rig.step().actions[0].provenance.goal_expires_ns == 140
    with pytest.raises(PayloadRangeError):
        rig.goal(0.1, 0.1, lifetime_ns=-5)
    assert rig.goals._ring.loaned_slot is None


@pytest.mark.parametrize("stamp_ns", [2**63, 2**64 - 1, -(2**63) - 1])
def test_a_stamp_that_no_capsule_could_keep_is_refused(rig: Any, stamp_ns: int) -> None:
    with pytest.raises(PayloadRangeError, match="stamp"):
        rig.goal(0.1, 0.1, stamp_ns=stamp_ns)
    assert rig.goals._ring.loaned_slot is None
    rig.goal(0.1, 0.1, stamp_ns=2**63 - 1)  # the control


# ages ----------------------------------------------------------------------------------------


def test_a_stale_observation_starts_no_plan_but_what_is_queued_is_popped(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(observation_max_age_ms=250.0)
    rig.start("timer")
    rig.goal(0.5, -0.5)
    rig.observe(0.1, 0.2)
    start = rig.now_ns
    rig.run(start + 350 * MS)  # the chunk's four actions
    assert rig.engine.environment(0).position.tick == 4
    assert rig.status().waiting_for == "fresh observation"
    assert not stale_events(rig)
    rig.run(start + 950 * MS)
    assert rig.engine.environment(0).position.tick == 4
    assert [detail.split()[0] for detail in stale_events(rig)] == ["observation"]
    assert rig.status().deadline_misses == 0
    rig.observe(0.1, 0.2)
    rig.run(start + 1350 * MS)
    assert rig.engine.environment(0).position.tick == 8
    assert num_chunks(rig) == 2
    rig.run(start + 1950 * MS)  # a second spell
    assert len(stale_events(rig)) == 2
    assert num_chunks(rig) == 2


def test_the_control_without_a_limit_goes_on(make_rig: Callable[..., Any]) -> None:
    rig = make_rig()
    rig.start("timer")
    rig.goal(0.5, -0.5)
    rig.observe(0.1, 0.2)
    rig.run(rig.now_ns + 1950 * MS)
    assert rig.engine.environment(0).position.tick == 20
    assert not stale_events(rig)


def test_a_stale_goal_keeps_the_next_chunk_from_being_made_beside(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(goal_max_age_ms=150.0, replan_threshold=2)
    rig.start("timer")
    rig.goal(0.5, -0.5)
    rig.observe(0.1, 0.2)
    start = rig.now_ns
    rig.run(start + 250 * MS)
    assert (rig.engine.environment(0).position.tick, num_chunks(rig)) == (3, 1)
    assert rig.status().waiting_for == "fresh goal"
    assert [detail.split()[0] for detail in stale_events(rig)] == ["goal"]
    rig.goal(0.4, -0.5)
    rig.run(start + 350 * MS)
    assert (rig.engine.environment(0).position.tick, num_chunks(rig)) == (4, 2)


def test_a_step_waits_for_what_is_fresh(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(observation_max_age_ms=100.0)
    rig.ready()
    rig.step(2)
    rig.now_ns += 101 * MS
    rig.step(2)  # two are queued: no plan is due
    with pytest.raises(AbandonedError, match="fresh observation"):
        rig.step()
    answers: list[Any] = []
    rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 0, 50 * MS), answers.append)
    rig.now_ns += 51 * MS
    rig.engine.on_deadline(rig.now_ns)
    assert isinstance(answers[0], StepTimeoutError)
    assert "fresh observation" in str(answers[0])
    assert len(stale_events(rig)) == 1
    rig.engine.begin_step(protocol.Step(1, 0, 1, -1, 0, 50 * MS), answers.append)
    rig.observe(0.0, 0.1)
    rig.drain()
    assert len(answers[1].chunks) == 1
    rig.now_ns += 101 * MS
    with pytest.raises(AbandonedError, match="fresh observation"):
        rig.step(9)
    assert len(stale_events(rig)) == 2


def test_a_step_of_a_branch_waits_too(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(observation_max_age_ms=100.0)
    rig.ready()
    (branch,) = rig.fork(count=1).branches
    rig.now_ns += 101 * MS
    with pytest.raises(AbandonedError, match="fresh observation"):
        rig.step(branch=branch)
    rig.observe(0.0, 0.0)
    rig.step(branch=branch)


def test_a_goal_that_a_verb_brought_back_is_new(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(goal_max_age_ms=100.0)
    rig.ready()
    rig.step()
    rig.snapshot("under-it")
    rig.interrupt()
    for bring_back in (rig.resume, lambda: rig.restore("under-it")):
        rig.now_ns += 101 * MS
        assert rig.status().goal_age_ns >= 101 * MS
        bring_back()
        assert rig.status().goal_age_ns == 0
        rig.observe(0.0, 0.0)
        rig.step(4)


def test_an_age_at_its_limit_is_fresh(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(observation_max_age_ms=100.0, goal_max_age_ms=100.0)
    rig.ready()
    rig.now_ns += 100 * MS
    rig.step()
    rig.now_ns += 1
    with pytest.raises(AbandonedError):
        rig.step(4)
