"""What counts as understood, followed, reached and refused; each judgement also fails."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="the demo's scenarios need ROS")
pytest.importorskip("gym_pusht")

from flashrt_ros.demo.saying import (
    Place,
    Said,
    Sentence,
    Told,
    is_same,
    num_reached,
    num_strays,
    read_turn,
)
from flashrt_ros.engine.protocol import EventKind, format_detail
from flashrt_ros.errors import UnsupportedError
from flashrt_ros.models.planner_text import scene_text
from flashrt_ros.sim.instructions import START
from flashrt_ros.sim.table import block_center

PLACE: Place = ((0.25, 0.2, 0.0), (0.1004, 0.3996))
SENTENCE = Sentence("round it and back", ("left of block", "lower left", START))
PLAN = ((0.14, 0.245), (0.128, 0.384), (0.1, 0.4))


def event(kind: EventKind, detail: str) -> Any:
    return SimpleNamespace(kind=kind, detail=detail)


def said(plan: tuple[tuple[float, float], ...] = PLAN, **changes: Any) -> Said:
    given = Said(SENTENCE, Told(1, plan, False), (PLACE,), 0, 0, 0)
    return replace(given, **changes)


def test_words_mean_what_the_planners_line_says_of_the_scene() -> None:
    assert SENTENCE.meaning(PLACE) == PLAN
    line = scene_text(block_center(PLACE[0]), PLACE[1])
    assert line == "block at 0.250 0.245; pusher at 0.100 0.400"


def test_a_plan_is_understood_in_the_place_of_then_alone() -> None:
    assert said().is_understood
    assert said(places=(((0.3, 0.3, 1.0), (0.2, 0.2)), PLACE)).is_understood
    for other in (PLAN[:2], PLAN[::-1], (*PLAN[:2], (0.1, 0.401)), ()):
        assert not said(other).is_understood
    assert not said(places=(((0.25, 0.2, 0.0), (0.12, 0.4)),)).is_understood


def test_goals_are_those_of_the_plan_up_to_rounding() -> None:
    rounded = [(0.1400000005, 0.2450000048)]
    assert is_same(rounded, PLAN[:1])
    assert not is_same([(0.141, 0.245)], PLAN[:1])
    assert not is_same(rounded, PLAN)
    assert num_strays(PLAN, PLAN) == 0
    assert num_strays([*PLAN, (0.384, 0.128)], PLAN) == 1


def test_the_first_goal_of_a_plan_is_found_after_what_was_there() -> None:
    goals = [PLAN[0], (0.3, 0.3), *PLAN]
    assert said().first_goal(goals) == 0
    assert said(num_goals=1).first_goal(goals) == 2
    assert said(((0.4, 0.4),)).first_goal(goals) == len(goals)
    assert said(()).first_goal(goals) == len(goals)


def test_subgoals_count_in_their_order() -> None:
    path = [(0.1 + 0.01 * step, 0.1) for step in range(31)] + [(0.4, 0.1)] * 3
    goals = [(0.2, 0.11), (0.3, 0.1), (0.4, 0.1)]
    assert num_reached(path, goals, settles=True) == 3
    assert num_reached(path, goals[::-1], settles=True) == 1
    assert num_reached(path, [(0.2, 0.2), *goals], settles=True) == 0
    assert num_reached(path[:31], goals, settles=True) == 2, "on its way is not there"
    assert num_reached(path[:31], goals, settles=False) == 3
    assert num_reached([], goals, settles=True) == 0
    assert num_reached(path, [], settles=True) == 0


BEGUN = event(EventKind.TURN, "begun turn=4 mode=new prompt_tokens=20")
SUBGOALS = [
    event(EventKind.SUBGOAL, "turn=4 index=0 values=0.384 0.128"),
    event(EventKind.SUBGOAL, "turn=4 index=1 values=0.384 0.384"),
]
DONE = event(EventKind.TURN, "done turn=4 subgoals=2 tokens=30")
ACCEPTED = event(EventKind.GOAL, "accepted topic=instruction planner=instruction sequence=1")
REFUSED = event(
    EventKind.GOAL,
    f"refused topic=instruction code={UnsupportedError.code} name=UNSUPPORTED: it can't",
)


def test_a_turn_is_read_once_it_is_whole() -> None:
    events = [BEGUN, SUBGOALS[0], ACCEPTED, SUBGOALS[1]]
    assert read_turn(events) is None
    assert read_turn([*events, DONE]) == Told(4, ((0.384, 0.128), (0.384, 0.384)), False)
    before = event(EventKind.TURN, "done turn=3 subgoals=1 tokens=9")
    assert read_turn([before, *events]) is None


def test_a_refusal_counts_once_it_was_told_with_its_code() -> None:
    empty = event(EventKind.TURN, "done turn=4 subgoals=0 tokens=2")
    assert read_turn([BEGUN, empty]) is None
    assert read_turn([BEGUN, REFUSED]) is None
    assert read_turn([BEGUN, empty, ACCEPTED]) is None
    other = event(EventKind.GOAL, "refused topic=instruction code=1 name=OTHER: it can't")
    assert read_turn([BEGUN, empty, other]) is None
    assert read_turn([BEGUN, empty, REFUSED]) == Told(4, (), True)


def test_a_name_with_blanks_hides_no_turn_and_makes_no_refusal() -> None:
    name = "left arm turn=3 values=9 9"
    begun = event(EventKind.TURN, format_detail("begun", mode=name, turn=4))
    told = event(EventKind.SUBGOAL, format_detail("", planner=name, turn=4, values=(0.1, 0.2)))
    done = event(EventKind.TURN, format_detail("done", planner=name, turn=4))
    assert read_turn([begun, told, done]) == Told(4, ((0.1, 0.2),), False)
    code = UnsupportedError.code
    refused = format_detail("refused", topic="instruction", planner=name, code=code, text="no")
    assert read_turn([begun, done, event(EventKind.GOAL, refused)]) == Told(4, (), True)
    sly = f"a code={code} b"
    other = format_detail("refused", topic="instruction", planner=sly, code=1, text="no")
    assert read_turn([begun, done, event(EventKind.GOAL, other)]) is None
