"""A plan without a subgoal and a turn that failed are refusals; nothing else told is one."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.engine.protocol import Event, EventKind, format_detail
from flashrt_ros.errors import PayloadRangeError, UnsupportedError
from flashrt_ros.nodes.hosted_model import read_refusal


def event(kind: EventKind, detail: str) -> Event:
    return Event(kind, 1, 0, 1, 0, "", 0, detail)


def test_a_turn_without_a_subgoal_is_refused_with_its_number() -> None:
    done = "done turn=7 subgoals=0 tokens=3 first_token_ns=9 first_subgoal_ns=0"
    refusal = read_refusal(event(EventKind.TURN, done))
    assert isinstance(refusal, UnsupportedError)
    assert "turn 7" in str(refusal)


def test_a_turn_that_failed_is_refused_as_it_failed() -> None:
    text = "no plan goes there: expected code=9 or turn=8, found 0.9"
    detail = f"failed turn=7 code={PayloadRangeError.code} name=PAYLOAD_RANGE: {text}"
    refusal = read_refusal(event(EventKind.TURN, detail))
    assert isinstance(refusal, PayloadRangeError)
    assert str(refusal) == f"turn 7 failed: {text}"


def test_a_name_with_blanks_hides_no_refusal() -> None:
    name = "left arm: code=9 subgoals=4 turn=8"
    done = format_detail("done", planner=name, turn=7, subgoals=0)
    refusal = read_refusal(event(EventKind.TURN, done))
    assert isinstance(refusal, UnsupportedError)
    assert "turn 7" in str(refusal)
    code = PayloadRangeError.code
    failed = format_detail("failed", planner=name, turn=7, code=code, text=f"{name}: late")
    refusal = read_refusal(event(EventKind.TURN, failed))
    assert isinstance(refusal, PayloadRangeError)
    assert str(refusal) == f"turn 7 failed: {name}: late"


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        (EventKind.TURN, "done turn=7 subgoals=10 tokens=90"),
        (EventKind.TURN, "begun turn=7 mode=new prompt_tokens=12"),
        (EventKind.TURN, "abandoned turn=7 at=decode tokens=2 resumable=0"),
        (EventKind.SUBGOAL, "turn=7 index=0 values=0.1 0.2"),
        (EventKind.RESET, "flip"),
    ],
)
def test_what_else_is_told_is_no_refusal(kind: EventKind, detail: str) -> None:
    assert read_refusal(event(kind, detail)) is None
