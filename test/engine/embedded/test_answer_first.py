"""A reset answers before its books are kept: what is answered, what follows, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import protocol
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.errors import (
    BackendError,
    CapsuleNotFoundError,
    NoFreeSlotError,
    PayloadRangeError,
    StaleGenerationError,
    StaleStampError,
)

MakeRig = Callable[..., Any]
Done = Callable[[Any], None]


def _restore(capsule: str = "home", **changes: Any) -> protocol.Restore:
    fields: dict[str, Any] = {
        "keep_goal": False,
        "seed": None,
        "reset": True,
        "episode_id": "",
        "stamp_ns": 0,
        **changes,
    }
    return protocol.Restore(rid=41, env_index=0, capsule=capsule, **fields)


def _kinds(rig: Any) -> list[int]:
    return [event.kind for event in rig.recorder.events]


def _facts(rig: Any) -> tuple[Any, ...]:
    status = rig.status()
    return rig.state(), status.generation, status.tick, len(rig.recorder.events)


# order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["flip", "copy"])
def test_the_answer_comes_before_the_event_and_both_say_where_it_stands_then(
    make_rig: MakeRig, path: str
) -> None:
    rig = make_rig(num_standby_lanes=int(path == "flip"))
    rig.ready()
    rig.snapshot("start")
    home = rig.state()
    rig.settle()
    rig.step(5)
    assert rig.state() != home
    before = rig.engine.environment(0).generation
    answers: list[tuple[protocol.Moved, list[int]]] = []
    rig.engine.begin(_restore(), lambda moved: answers.append((moved, _kinds(rig))))
    ((moved, kinds),) = answers
    assert (moved.rid, moved.path, moved.tick, moved.generation) == (41, path, 0, before + 1)
    assert EventKind.RESET not in kinds
    env = rig.engine.environment(0)
    assert (rig.state(), env.generation, env.position.tick) == (home, before + 1, 0)
    event = rig.recorder.events[-1]
    assert event.kind == EventKind.RESET
    assert (event.generation, event.tick, event.detail) == (moved.generation, moved.tick, path)


@pytest.mark.parametrize(
    ("standby", "order"),
    [(1, ["Moved", "AbandonedError"]), (0, ["AbandonedError", "Moved"])],
)
def test_a_flip_is_answered_before_what_it_ends_and_a_copy_after(
    make_rig: MakeRig, standby: int, order: list[str]
) -> None:
    rig = make_rig(num_standby_lanes=standby)
    rig.ready()
    rig.settle()
    answers: list[Any] = []
    rig.engine.begin_step(protocol.Step(2, 0, 8, -1, 0, 10**9), answers.append)
    rig.advance()
    rig.engine.begin(_restore(), answers.append)
    assert [type(answer).__name__ for answer in answers] == order


@pytest.mark.parametrize("change", [{"seed": 5}, {"reset": False}])
def test_what_may_fail_is_done_before_the_answer_though_the_lane_is_flipped(
    rig: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """A seed is written to the lane, a goal copied: the device may refuse both."""
    core = rig.engine.core
    rig.step(4)
    rig.snapshot("home", replace=True)  # one with a goal
    rig.settle()

    def fail(*_: object, **__: object) -> None:
        raise BackendError("no")

    monkeypatch.setattr(core.backend, "write" if "seed" in change else "copy_aside", fail)
    answers: list[Any] = []
    with pytest.raises(BackendError):
        rig.engine.begin(_restore(**change), answers.append)
    assert answers == []
    monkeypatch.undo()
    rig.settle()
    rig.engine.begin(_restore(**change), answers.append)  # the control
    assert answers[0].path == "flip"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (_restore("unknown"), CapsuleNotFoundError),
        (_restore("", reset=False), CapsuleNotFoundError),
        (_restore(seed=-1), PayloadRangeError),
    ],
)
def test_what_is_refused_is_not_answered_and_changes_nothing(
    rig: Any, request_: protocol.Restore, error: type[Exception]
) -> None:
    rig.step(3)
    before = _facts(rig)
    answers: list[Any] = []
    with pytest.raises(error):
        rig.engine.begin(request_, answers.append)
    assert answers == []
    assert _facts(rig) == before
    rig.engine.begin(_restore(), answers.append)  # the control
    assert len(answers) == 1
    assert _facts(rig) != before


def test_a_lane_that_a_flip_left_is_refilled_no_sooner_than_the_branches_lanes_are_free(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(num_branch_lanes=2)
    rig.ready()
    rig.settle()
    left = rig.engine.environment(0).lane
    rig.fork(count=2)
    rig.reset()
    standbys = rig.engine.core.pool._standbys
    assert [one.lane for one in standbys] == [left]
    assert rig.engine.core.pool.num_free == 2


# nothing of before -----------------------------------------------------------------------------


@pytest.mark.parametrize("resets", [True, False])
def test_once_it_is_answered_nothing_of_before_acts(rig: Any, resets: bool) -> None:
    """With its control: without the reset all of it acts."""
    rig.step(1)
    rig.goal(0.9, 0.9)
    rig.observe(0.4, 0.4)
    slot, ticket, _ = rig.engine.loan(rig.goals._ring)
    steps: list[Any] = []
    rig.engine.begin_step(protocol.Step(2, 0, 6, -1, 0, 10**9), steps.append)
    rig.advance()
    num_outputs = len(rig.recorder.outputs)
    if resets:
        rig.engine.begin(_restore(stamp_ns=500), lambda moved: None)

    def commit(stamp_ns: int) -> None:
        rig.engine.commit(rig.goals._ring, slot, ticket, stamp_ns=stamp_ns, source_sequence=0)

    if resets:
        with pytest.raises(StaleGenerationError):
            commit(900)
        with pytest.raises(StaleStampError):
            rig.observe(0.1, 0.1, stamp_ns=499)
    else:
        commit(900)
        rig.observe(0.1, 0.1, stamp_ns=499)
    rig.drain()
    acted = len(rig.recorder.outputs) > num_outputs
    assert acted is not resets
    assert (type(steps[0]).__name__ == "AbandonedError") is resets
    assert bool(rig.engine.core.latches.missing(*[rig.engine.environment(0)] * 2)) is resets


# what is answered ------------------------------------------------------------------------------

_MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.just("restore"),
            st.sampled_from(["home", "here"]),
            st.booleans(),
            st.booleans(),
            st.sampled_from([0, 3, 500]),
        ),
        st.tuples(st.sampled_from(["interrupt", "step", "fork", "settle", "boundary"])),
    ),
    max_size=12,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=_MOVES)
def test_an_answer_says_what_the_engine_says_once_the_books_are_kept(
    make_rig: MakeRig, moves: list[tuple[Any, ...]]
) -> None:
    rig = make_rig(rollback_depth=3, interrupt_depth=3)
    with rig.engine:
        rig.ready()
        rig.snapshot("here")
        for kind, *choices in moves:
            _move(rig, kind, choices)


def _move(rig: Any, kind: str, choices: list[Any]) -> None:
    env, latches = rig.engine.environment(0), rig.engine.core.latches
    if kind == "restore":
        capsule, is_reset, keeps_goal, stamp_ns = choices
        answers: list[Any] = []
        request = _restore(capsule, reset=is_reset, keep_goal=keeps_goal, stamp_ns=stamp_ns)
        rig.engine.begin(request, answers.append)
        (moved,) = answers
        assert moved == protocol.Moved(
            rid=41,
            tick=env.position.tick,
            generation=env.generation,
            path=moved.path,
            duration_ns=moved.duration_ns,
            capsule_id=env.brought_back,
            depth=len(env.interruptions),
            barrier_ns=latches.observation_bound_ns(env),
        )
        assert not env.interruptions
        assert not env.boundaries
    elif kind == "interrupt" and len(env.interruptions) < 3:
        rig.interrupt()
    elif kind == "fork" and not rig.engine.core.branches:
        rig.fork(count=1)
    elif kind == "step":
        rig.stamp_ns = max(rig.stamp_ns, 1000)
        rig.goal(0.2, 0.2)
        rig.observe(0.1, 0.1)
        rig.step(1)
    elif kind == "settle":
        rig.settle()
    elif kind == "boundary":
        rig.engine._verbs.keep_boundary(env)


def test_a_repeated_reset_answers_alike_under_the_new_requests_number(rig: Any) -> None:
    answers: list[Any] = []
    rig.engine.begin(_restore(episode_id="one"), answers.append)
    again = protocol.Restore(42, 0, "home", False, None, True, "one", 0)
    rig.engine.begin(again, answers.append)
    first, second = answers
    assert (first.rid, second.rid) == (41, 42)
    assert (second.generation, second.duration_ns) == (first.generation, first.duration_ns)
    assert _kinds(rig).count(EventKind.RESET) == 1


# when the books fail -----------------------------------------------------------------------------


def test_books_that_fail_are_no_refusal(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has its answer: a second one would be a lie, and so would silence."""

    def fail(*_: object, **__: object) -> None:
        raise NoFreeSlotError("a bug")

    answers: list[Any] = []
    monkeypatch.setattr(type(rig.engine.core.latches), "forget", fail)
    with pytest.raises(RuntimeError, match="answered") as caught:
        rig.engine.begin(_restore(), answers.append)
    assert isinstance(caught.value.__cause__, NoFreeSlotError)
    assert len(answers) == 1


@pytest.mark.parametrize("is_ready", [False, True], ids=["copy", "flip"])
def test_a_seed_that_the_device_refuses_leaves_nothing_from_before(
    rig: Any, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    """The environment has moved, and is not told to have; what was seen elsewhere must not act."""

    def refuse(*_: object, **__: object) -> None:
        raise BackendError("the device refuses")

    if is_ready:
        rig.settle()
    rig.observe(0.1, 0.1)
    answers: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(rig.engine.core.backend, "write", refuse)
        with pytest.raises(BackendError):
            rig.engine.begin(_restore(seed=7, keep_goal=True), answers.append)
    assert not answers
    assert _kinds(rig)[-1] == EventKind.FAULT
    assert rig.recorder.events[-1].generation == rig.engine.environment(0).generation
    assert rig.status().waiting_for == "observation"
    rig.engine.begin(_restore(seed=7), answers.append)
    assert len(answers) == 1
    assert _kinds(rig)[-1] == EventKind.RESET


def test_the_books_are_kept_whatever_becomes_of_the_answer(rig: Any) -> None:
    def done(moved: Any) -> None:
        raise ZeroDivisionError("a bug of who is answered")

    rig.settle()
    with pytest.raises(ZeroDivisionError):
        rig.engine.begin(_restore(stamp_ns=500), done)
    assert _kinds(rig)[-1] == EventKind.RESET
    assert rig.engine.next_background_ns() is not None  # the lane it left
    with pytest.raises(StaleStampError):
        rig.observe(0.1, 0.1, stamp_ns=499)
