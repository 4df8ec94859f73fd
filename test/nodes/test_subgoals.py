from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from flashrt_ros.engine.protocol import Event, EventKind, format_detail
from flashrt_ros.nodes.subgoals import (
    SubgoalSequence,
    SubgoalState,
    SubgoalThread,
)

WAIT_S = 20.0
DWELL_NS = 1_000


def turn(what: str, number: int) -> Event:
    return Event(EventKind.TURN, 1, 0, 1, 0, "", 0, f"{what} turn={number} mode=new")


def subgoal(number: int, *values: float) -> Event:
    text = " ".join(map(str, values))
    return Event(EventKind.SUBGOAL, 1, 0, 1, 0, "", 0, f"turn={number} index=0 values={text}")


@pytest.fixture
def sequence() -> SubgoalSequence:
    return SubgoalSequence(dwell_ns=DWELL_NS, reached_m=0.01)


def test_the_first_subgoal_is_due_at_once_and_the_next_after_the_dwell_time(
    sequence: SubgoalSequence,
) -> None:
    sequence.note(turn("begun", 1))
    assert sequence.next(0, None) is None
    sequence.note(subgoal(1, 0.1, 0.2))
    sequence.note(subgoal(1, 0.3, 0.4))
    assert sequence.next(10, None) == (0.1, 0.2)
    assert sequence.next(10 + DWELL_NS - 1, None) is None
    assert sequence.num_waiting == 1
    assert sequence.next(10 + DWELL_NS, None) == (0.3, 0.4)
    assert sequence.next(10 + 9 * DWELL_NS, None) is None


def test_a_subgoal_that_is_reached_lets_the_next_one_in(sequence: SubgoalSequence) -> None:
    sequence.note(turn("begun", 1))
    for values in ((0.1, 0.2), (0.3, 0.4)):
        sequence.note(subgoal(1, *values))
    assert sequence.next(0, None) == (0.1, 0.2)
    assert sequence.next(1, (0.2, 0.2)) is None
    assert sequence.next(1, (0.1,)) is None
    assert sequence.next(1, (0.105, 0.2)) == (0.3, 0.4)


def test_a_new_turn_leaves_a_whole_plan_behind(sequence: SubgoalSequence) -> None:
    sequence.note(turn("begun", 1))
    for values in ((0.1, 0.2), (0.3, 0.4)):
        sequence.note(subgoal(1, *values))
    sequence.note(turn("done", 1))
    assert sequence.next(0, None) == (0.1, 0.2)
    sequence.note(turn("begun", 2))
    sequence.note(subgoal(2, 0.5, 0.5))
    assert sequence.next(1, None) == (0.5, 0.5), "at once, whatever the dwell time"
    assert sequence.next(1 + DWELL_NS, None) is None


def test_an_interrupted_plan_keeps_its_subgoals_until_it_is_resumed(
    sequence: SubgoalSequence,
) -> None:
    sequence.note(turn("begun", 1))
    for values in ((0.1, 0.2), (0.3, 0.4)):
        sequence.note(subgoal(1, *values))
    assert sequence.next(0, None) == (0.1, 0.2)
    sequence.note(turn("interrupted", 1))
    assert sequence.next(DWELL_NS, None) is None
    sequence.note(turn("begun", 2))
    sequence.note(subgoal(2, 0.5, 0.5))
    sequence.note(turn("done", 2))
    assert sequence.next(DWELL_NS, None) == (0.5, 0.5)
    sequence.note(turn("resumed", 1))
    assert sequence.next(DWELL_NS + 1, None) == (0.3, 0.4)
    sequence.note(subgoal(1, 0.6, 0.6))
    assert sequence.next(2 * DWELL_NS + 1, None) == (0.6, 0.6)


def test_a_turn_without_a_subgoal_changes_nothing(sequence: SubgoalSequence) -> None:
    sequence.note(turn("begun", 1))
    for values in ((0.1, 0.2), (0.3, 0.4)):
        sequence.note(subgoal(1, *values))
    sequence.note(turn("done", 1))
    assert sequence.next(0, None) == (0.1, 0.2)
    sequence.note(turn("begun", 2))
    sequence.note(turn("done", 2))
    assert sequence.next(DWELL_NS - 1, None) is None
    assert sequence.next(DWELL_NS, None) == (0.3, 0.4)


def test_a_turn_that_was_interrupted_before_its_first_subgoal_takes_over_with_it(
    sequence: SubgoalSequence,
) -> None:
    sequence.note(turn("begun", 1))
    for values in ((0.1, 0.2), (0.3, 0.4)):
        sequence.note(subgoal(1, *values))
    sequence.note(turn("done", 1))
    assert sequence.next(0, None) == (0.1, 0.2)
    sequence.note(turn("begun", 2))
    sequence.note(turn("interrupted", 2))
    sequence.note(turn("resumed", 2))
    assert sequence.num_waiting == 1
    sequence.note(subgoal(2, 0.5, 0.5))
    assert sequence.next(1, None) == (0.5, 0.5)
    assert sequence.num_waiting == 0


@pytest.mark.parametrize("word", ["abandoned", "forgotten", "failed"])
def test_a_turn_that_ends_early_takes_its_plan_along(sequence: SubgoalSequence, word: str) -> None:
    sequence.note(turn("begun", 1))
    sequence.note(subgoal(1, 0.1, 0.2))
    sequence.note(turn(word, 1))
    assert sequence.next(0, None) is None


@pytest.mark.parametrize("kind", [EventKind.RESET, EventKind.RESTORE, EventKind.ROLLBACK])
def test_a_text_that_moves_forgets_its_plans(sequence: SubgoalSequence, kind: EventKind) -> None:
    sequence.note(turn("begun", 1))
    sequence.note(subgoal(1, 0.1, 0.2))
    sequence.note(Event(kind, 1, 0, 1, 0, "", 0, "copy"))
    assert sequence.next(0, None) is None
    assert sequence.num_waiting == 0


def test_a_clock_that_is_set_back_holds_nothing_up(sequence: SubgoalSequence) -> None:
    sequence.note(turn("begun", 1))
    for values in ((0.1, 0.2), (0.3, 0.4)):
        sequence.note(subgoal(1, *values))
    assert sequence.next(10**9, None) == (0.1, 0.2)
    assert sequence.next(5, None) == (0.3, 0.4)


def test_a_name_with_blanks_is_no_fact_and_no_number(sequence: SubgoalSequence) -> None:
    name = "left arm turn=9 values=7"
    begun = format_detail("begun", mode=name, turn=1)
    sequence.note(Event(EventKind.TURN, 1, 0, 1, 0, "", 0, begun))
    told = format_detail("", planner=name, turn=1, index=0, values=(0.1, 0.25), channel=name)
    sequence.note(Event(EventKind.SUBGOAL, 1, 0, 1, 0, "", 0, told))
    assert sequence.next(0, None) == (0.1, 0.25)
    assert not sequence.is_settled(1)
    done = format_detail("done", mode=name, turn=1)
    sequence.note(Event(EventKind.TURN, 1, 0, 1, 0, "", 0, done))
    assert sequence.is_settled(1)


def test_the_thread_commits_in_order_and_outlives_a_failure() -> None:
    done = threading.Event()
    taken: list[tuple[float, ...]] = []
    errors: list[str] = []

    def commit(values: tuple[float, ...]) -> int:
        taken.append(values)
        if len(taken) == 1:
            raise ValueError("no engine")
        if len(taken) == 3:
            done.set()
        return len(taken)

    clock: Callable[[], int] = lambda: len(taken) * DWELL_NS  # noqa: E731
    thread = SubgoalThread(
        SubgoalSequence(dwell_ns=DWELL_NS, reached_m=0.0),
        now_ns=clock,
        commit=commit,
        on_error=errors.append,
    )
    try:
        thread.note(turn("begun", 1))
        for number in range(3):
            thread.note(subgoal(1, number / 10, 0.0))
        assert done.wait(WAIT_S)
    finally:
        thread.close()
        thread.close()
    assert taken == [(0.0, 0.0), (0.1, 0.0), (0.2, 0.0)]
    assert len(errors) == 1
    assert "no engine" in errors[0]


# standing still ------------------------------------------------------------------------------


def planned(sequence: SubgoalSequence, number: int, *plan: tuple[float, float]) -> None:
    sequence.note(turn("begun", number))
    for values in plan:
        sequence.note(subgoal(number, *values))
    sequence.note(turn("done", number))


def test_a_plan_goes_on_from_its_state_as_it_did(sequence: SubgoalSequence) -> None:
    planned(sequence, 1, (0.1, 0.2), (0.3, 0.4), (0.5, 0.6))
    assert sequence.next(0, None) == (0.1, 0.2)
    sequence.note_sequence(7)
    state = sequence.state(400)
    assert state == SubgoalState(((0.3, 0.4), (0.5, 0.6)), (0.1, 0.2), 400, 7)

    def go_on(start_ns: int) -> list[tuple[float, ...] | None]:
        return [sequence.next(start_ns + step * DWELL_NS // 4, None) for step in range(8)]

    first = go_on(400)
    planned(sequence, 2, (0.9, 0.9), (0.8, 0.8))
    sequence.put_state(state, 9_000, generation=5)
    assert go_on(9_000) == first
    assert (0.5, 0.6) in first


def test_the_event_of_the_move_that_brought_a_plan_back_does_not_clear_it(
    sequence: SubgoalSequence,
) -> None:
    sequence.put_state(SubgoalState(((0.3, 0.4),)), 0, generation=5)
    sequence.note(Event(EventKind.RESTORE, 1, 0, 5, 0, "", 0, "copy"))
    assert sequence.num_waiting == 1
    sequence.note(Event(EventKind.RESTORE, 1, 0, 6, 0, "", 0, "copy"))
    assert sequence.num_waiting == 0


def test_a_plan_that_is_brought_back_is_no_turn_of_the_engines(sequence: SubgoalSequence) -> None:
    """An engine that was started again counts its turns from 1."""
    sequence.put_state(SubgoalState(((0.3, 0.4),)), 0, generation=5)
    planned(sequence, 1, (0.9, 0.9))
    assert sequence.next(0, None) == (0.9, 0.9)
    assert sequence.num_waiting == 0


@pytest.mark.parametrize("end", ["done", "abandoned", "failed", "interrupted"])
def test_a_turn_is_settled_once_its_end_was_heard(sequence: SubgoalSequence, end: str) -> None:
    assert sequence.is_settled(0)
    assert not sequence.is_settled(1), "begun, and not heard of yet"
    sequence.note(turn("begun", 1))
    sequence.note(subgoal(1, 0.1, 0.2))
    assert not sequence.is_settled(1)
    sequence.note(turn(end, 1))
    assert sequence.is_settled(1)


class Held:
    """A thread on a clock that stands, and what it committed."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.goals: list[tuple[float, ...]] = []
        self.changed = threading.Condition()
        self.sequence = SubgoalSequence(dwell_ns=DWELL_NS, reached_m=0.0)
        self.thread = SubgoalThread(
            self.sequence, now_ns=lambda: self.now_ns, commit=self.commit, on_error=pytest.fail
        )

    def commit(self, values: tuple[float, ...]) -> int:
        with self.changed:
            self.goals.append(values)
            self.changed.notify_all()
            return len(self.goals)

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.goals) >= count, WAIT_S)

    def plan(self, number: int, *plan: tuple[float, float]) -> None:
        self.thread.note(turn("begun", number))
        for values in plan:
            self.thread.note(subgoal(number, *values))
        self.thread.note(turn("done", number))


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.thread.close()


def test_no_goal_is_made_while_it_is_held_and_the_time_does_not_count(held: Held) -> None:
    held.plan(1, (0.1, 0.2), (0.3, 0.4))
    held.wait_for(1)
    assert held.thread.hold(1, WAIT_S)
    held.now_ns = 50 * DWELL_NS
    assert held.thread.state() == SubgoalState(((0.3, 0.4),), (0.1, 0.2), 0, 1)
    held.thread.release()
    assert held.thread.state().elapsed_ns == 0
    held.now_ns += DWELL_NS
    held.wait_for(2)
    assert held.goals == [(0.1, 0.2), (0.3, 0.4)]


def test_a_turn_whose_end_is_not_heard_of_can_not_be_held(held: Held) -> None:
    held.thread.note(turn("begun", 1))
    assert not held.thread.hold(1, 0.01)
    held.thread.note(turn("done", 1))
    assert held.thread.hold(1, WAIT_S)


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_goal_that_is_pending_is_given_again_at_the_release(held: Held, is_pending: bool) -> None:
    assert held.thread.hold(0, WAIT_S)
    state = SubgoalState(((0.3, 0.4),), (0.1, 0.2), 5, 9)
    held.thread.put_state(state, generation=1, is_pending=is_pending)
    held.thread.release()
    assert held.goals == [(0.1, 0.2)] * is_pending
    stands = held.thread.state()
    assert (stands.waiting, stands.goal, stands.elapsed_ns) == (((0.3, 0.4),), (0.1, 0.2), 5)
    held.now_ns += DWELL_NS
    held.wait_for(1 + is_pending)
    assert held.goals[-1] == (0.3, 0.4)
