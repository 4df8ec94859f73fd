"""What must not upset a planner node with a model: floods, broken text, transitions in a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("rclpy")

from std_msgs.msg import String

from flashrt_ros import errors
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import parse_detail
from flashrt_ros.msg import ExecutionEvent
from flashrt_ros.srv import ListCapsules
from test.nodes.test_hosted_model import NODE, Talk, start_planner_engine

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Child, Peer

LONG = "go round the block, " * 8


def start_node(bench: Bench) -> Child:
    return bench.planner(model_engine="planner_engine", goal_lifetime_s=30, subgoal_dwell_s=0.05)


@pytest.fixture(scope="module")
def node(bench: Bench) -> Child:
    bench.engine()
    start_planner_engine(bench, numbers="checked")
    return start_node(bench)


@pytest.fixture(scope="module")
def talk(node: Child, peer: Peer) -> Talk:
    peer.bring_up(NODE)
    return Talk(peer)


def comes_last(talk: Talk, text: str, plan: list[str]) -> None:
    """Say something; its plan is what goals end with, whatever was still on its way.

    Returns once all that is told of it was, so that nothing of it is taken for what comes next.
    """
    talk.say(text)

    def is_told() -> bool:
        turns = [parse_detail(e.detail) for e in talk.events if e.kind == ExecutionEvent.TURN]
        begun = [turn.facts["turn"] for turn in turns if turn.word == "begun"]
        done = [turn.facts["turn"] for turn in turns if turn.word == "done"]
        ends = talk.goals()[-len(plan) :], talk.subgoals()[-len(plan) :]
        return bool(begun) and begun[-1] in done and ends == (plan, plan)

    talk.peer.until(is_told, f"the plan of '{text}'")


def raw(data: bytes) -> bytes:
    """Return a ``String`` as it goes over the wire, whatever its bytes are."""
    return b"\x00\x01\x00\x00" + (len(data) + 1).to_bytes(4, "little") + data + b"\x00"


def test_the_last_instruction_of_a_flood_is_followed(talk: Talk) -> None:
    alone = talk.plan("stop")
    publisher = talk.peer.publisher(String, "instruction")
    talk.peer.until(publisher.get_subscription_count, "the node behind the topic")
    for number in range(400):
        publisher.publish(String(data=f"{LONG} {number}"))
    comes_last(talk, "stop", alone)
    kept = talk.peer.call(ListCapsules, f"{NODE}/capsule/list").capsules
    assert len(kept) < 20, "as many as the rings hold"
    assert talk.plan("go left")


@pytest.mark.parametrize("data", [b"\xff\xfe go left", b"go \xed\xa0\x80 left", b"\xc3"])
def test_what_is_no_text_costs_an_instruction_alone(talk: Talk, data: bytes) -> None:
    talk.events.clear()
    talk.peer.publisher(String, "instruction").publish(raw(data))
    event = talk.event(ExecutionEvent.GOAL, "refused topic=instruction")
    assert f"code={errors.PayloadTypeError.code} " in event.detail
    assert talk.plan("go left")


def test_a_length_is_refused_and_the_plan_before_goes_on(talk: Talk) -> None:
    alone = talk.plan("go left")
    talk.say("go left")
    talk.event(ExecutionEvent.TURN, "begun turn=")
    talk.peer.publisher(String, "instruction").publish(String(data="move 5 cm to the left"))
    refused = talk.event(ExecutionEvent.GOAL, "refused topic=instruction")
    assert f"code={errors.UnsupportedError.code} " in refused.detail
    talk.peer.until(lambda: talk.goals() == alone, "every goal of the plan before")
    assert not [e for e in talk.events if e.detail.startswith(("interrupted", "abandoned"))]


def test_a_plan_that_goes_elsewhere_than_was_said_is_refused_and_no_goal(talk: Talk) -> None:
    talk.say("go to 0.123 0.456")
    refused = talk.event(ExecutionEvent.GOAL, "refused topic=instruction")
    assert f"code={errors.PayloadRangeError.code} " in refused.detail
    assert "leaves out a point of the instruction" in refused.detail
    assert not talk.goals()


@pytest.mark.parametrize("steps", [(), ("cleanup", "configure")])
def test_a_transition_in_a_turn_leaves_nothing_of_it(talk: Talk, steps: tuple[str, ...]) -> None:
    peer = talk.peer
    alone = talk.plan("go left")
    for _ in range(3):
        talk.say(LONG)
        talk.event(ExecutionEvent.TURN, "begun turn=")
        for step in ("deactivate", *steps, "activate"):
            assert peer.change(NODE, step)
        comes_last(talk, "go left", alone)


def test_a_node_that_leaves_in_a_turn_ends_it(
    talk: Talk, node: Child, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine stays, and whoever asks next finds it idle."""
    talk.say(LONG)
    talk.event(ExecutionEvent.TURN, "begun turn=")
    assert node.interrupt() == 0
    monkeypatch.setenv("XDG_RUNTIME_DIR", bench.environment["XDG_RUNTIME_DIR"])
    with EngineClient("planner_engine", client="test") as client:
        assert client.status().state == "idle"
        assert client.instruct("go left").subgoals
