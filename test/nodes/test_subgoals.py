from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from flashrt_ros.engine.protocol import Event, EventKind
from flashrt_ros.nodes.subgoals import SubgoalSequence, SubgoalThread, detail_fields

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


def test_fields_of_an_event_are_read() -> None:
    assert detail_fields("done turn=3 tokens=5") == {"turn": "3", "tokens": "5"}
    assert detail_fields("turn=3 values=0.1 0.2") == {"turn": "3", "values": "0.1 0.2"}


def test_the_thread_commits_in_order_and_outlives_a_failure() -> None:
    done = threading.Event()
    taken: list[tuple[float, ...]] = []
    errors: list[str] = []

    def commit(values: tuple[float, ...]) -> None:
        taken.append(values)
        if len(taken) == 1:
            raise ValueError("no engine")
        if len(taken) == 3:
            done.set()

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
