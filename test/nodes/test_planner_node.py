from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Duration
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from flashrt_ros import errors
from flashrt_ros.msg import EngineStatus, ExecutionEvent, Subgoal
from flashrt_ros.nodes.conversions import ns_to_stamp

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "planner_node"


class Planner:
    """Sends goals and waits for what became of them."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.sequence = 0
        self.accepted = peer.listen(Subgoal, f"{NODE}/accepted")
        self.events = peer.listen(ExecutionEvent, f"{NODE}/events")
        self.statuses = peer.listen(EngineStatus, f"{NODE}/status")
        self._publishers = {
            topic: peer.publisher(kind, topic)
            for kind, topic in (
                (Subgoal, "subgoal"),
                (PoseStamped, "goal_pose"),
                (JointState, "goal_joints"),
                (String, "instruction"),
            )
        }

    def now_ns(self) -> int:
        return int(self.peer.node.get_clock().now().nanoseconds)

    def subgoal(self, **changes: Any) -> Subgoal:
        self.sequence += 1
        goal = Subgoal(planner="test", sequence=self.sequence, values=[0.5, -0.5])
        goal.header.stamp = self.peer.now()
        goal.header.frame_id = "table"
        for name, value in changes.items():
            if name == "frame":
                goal.header.frame_id = value
            elif name == "age_s":
                goal.header.stamp = ns_to_stamp(self.now_ns() - round(value * 1e9))
            else:
                setattr(goal, name, value)
        return goal

    def send(self, topic: str, message: Any) -> None:
        self._publishers[topic].publish(message)

    def event(self, text: str) -> ExecutionEvent:
        found = self.peer.until(
            lambda: [e for e in self.events if text in e.detail], f"an event with {text!r}"
        )
        return found[-1]

    def is_accepted(self, topic: str, message: Any) -> Subgoal:
        self.accepted.clear()
        self.send(topic, message)
        self.peer.until(lambda: self.accepted, f"acceptance on {topic}")
        return self.accepted[-1]

    def is_refused(self, topic: str, message: Any, error: type[errors.FlashrtError]) -> str:
        self.events.clear()
        self.send(topic, message)
        event = self.event(f"refused topic={topic}")
        assert event.kind == ExecutionEvent.GOAL
        assert f"code={error.code} name={error.name}" in event.detail
        return str(event.detail)


@pytest.fixture(scope="module")
def planner(bench: Bench, peer: Peer) -> Planner:
    bench.engine()
    bench.planner(
        goal_lifetime_s=30, future_tolerance_s=0.5, transforms=["table shelf 0.25 0 0 0 0 0 1"]
    )
    peer.bring_up(NODE)
    return Planner(peer)


@pytest.fixture(autouse=True)
def fresh(planner: Planner) -> None:
    """Let every planner number from the start again."""
    assert planner.peer.change(NODE, "deactivate")
    assert planner.peer.change(NODE, "activate")


def test_a_subgoal_is_accepted_with_its_sequence_and_the_engines(planner: Planner) -> None:
    planner.events.clear()
    accepted = planner.is_accepted("subgoal", planner.subgoal())
    assert accepted.sequence == planner.sequence
    assert accepted.channel == "goal"
    assert list(accepted.values) == [0.5, -0.5]
    assert list(accepted.shape) == [2]
    event = planner.event(f"sequence={planner.sequence} engine_sequence=")
    assert int(event.detail.rsplit("=", 1)[1]) > 0


def test_a_pose_is_a_goal(planner: Planner) -> None:
    pose = PoseStamped()
    pose.header.stamp = planner.peer.now()
    pose.header.frame_id = "table"
    pose.pose.position.x = 0.125
    pose.pose.position.y = 0.25
    pose.pose.position.z = 9.0
    assert list(planner.is_accepted("goal_pose", pose).values) == [0.125, 0.25]


def test_joints_are_a_goal_by_name(planner: Planner) -> None:
    state = JointState(name=["y", "gripper", "x"], position=[0.25, math.nan, 0.125])
    state.header.stamp = planner.peer.now()
    accepted = planner.is_accepted("goal_joints", state)
    assert list(accepted.values) == [0.125, 0.25]
    assert accepted.header.frame_id == "table"


def test_a_goal_in_a_known_frame_is_brought_into_the_channels(planner: Planner) -> None:
    accepted = planner.is_accepted("subgoal", planner.subgoal(frame="shelf"))
    assert accepted.header.frame_id == "table"
    assert list(accepted.values) == [0.75, -0.5]


def test_several_planners_number_their_goals_apart(planner: Planner) -> None:
    first = planner.subgoal(planner="a", sequence=7)
    assert planner.is_accepted("subgoal", first).planner == "a"
    second = planner.subgoal(planner="b", sequence=3)
    assert planner.is_accepted("subgoal", second).planner == "b"
    third = planner.subgoal(planner="a", sequence=7)
    planner.is_refused("subgoal", third, errors.GoalExpiredError)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"values": [math.nan, 0.0]}, errors.NonFiniteError),
        ({"values": [0.0, math.inf]}, errors.NonFiniteError),
        ({"values": [0.0]}, errors.PayloadShapeError),
        ({"values": []}, errors.PayloadShapeError),
        ({"values": [0.0, 0.0], "shape": [2, 1]}, errors.PayloadShapeError),
        ({"values": [0.0, 1.5]}, errors.PayloadRangeError),
        ({"values": [0.9, 0.0], "frame": "shelf"}, errors.PayloadRangeError),
        ({"frame": "moon"}, errors.FrameError),
        ({"frame": ""}, errors.FrameError),
        ({"channel": "nope"}, errors.UnknownChannelError),
        ({"channel": "observation"}, errors.UnknownChannelError),
        ({"env_index": 4}, errors.PayloadRangeError),
        ({"age_s": 31.0}, errors.GoalExpiredError),
        ({"age_s": 2.0, "lifetime": Duration(sec=1)}, errors.GoalExpiredError),
        ({"age_s": -10.0}, errors.GoalExpiredError),
        ({"values": [], "text": "push the block"}, errors.UnsupportedError),
        ({"text": "push the block"}, errors.UnsupportedError),
    ],
)
def test_a_bad_subgoal_is_refused_with_its_code(
    planner: Planner, changes: dict[str, Any], error: type[errors.FlashrtError]
) -> None:
    bad = planner.subgoal(**changes)
    detail = planner.is_refused("subgoal", bad, error)
    assert f"planner=test sequence={bad.sequence}" in detail
    # Nothing was lost: the next good one passes.
    planner.is_accepted("subgoal", planner.subgoal())


@pytest.mark.parametrize("name", ["my planner", "a=b", "a\nrefused topic=x", "p" * 65])
def test_a_name_that_would_blur_an_event_is_refused(planner: Planner, name: str) -> None:
    goal = planner.subgoal(planner=name)
    detail = planner.is_refused("subgoal", goal, errors.PayloadRangeError)
    head, _, rest = detail.partition(": ")
    words = head.split()
    assert words[:2] == ["refused", "topic=subgoal"]
    assert [word.partition("=")[0] for word in words[2:]] == ["planner", "sequence", "code", "name"]
    assert "no blanks and no '='" in rest


def test_a_planner_without_a_name_is_that_of_its_topic(planner: Planner) -> None:
    planner.events.clear()
    assert planner.is_accepted("subgoal", planner.subgoal(planner="")).planner == "subgoal"
    planner.event("accepted topic=subgoal planner=subgoal won=first")


def test_a_goal_without_a_stamp_is_refused(planner: Planner) -> None:
    goal = planner.subgoal()
    goal.header.stamp = ns_to_stamp(0)
    assert "stamp it" in planner.is_refused("subgoal", goal, errors.GoalExpiredError)


def test_a_goal_made_before_the_accepted_one_is_refused(planner: Planner) -> None:
    old = planner.subgoal(planner="slow")
    planner.is_accepted("subgoal", planner.subgoal())
    planner.is_refused("subgoal", old, errors.GoalExpiredError)


def test_an_instruction_is_refused_politely(planner: Planner) -> None:
    detail = planner.is_refused("instruction", String(data="go left"), errors.UnsupportedError)
    assert "send a subgoal" in detail


def test_goal_joints_that_lack_one_are_refused(planner: Planner) -> None:
    state = JointState(name=["x"], position=[0.1])
    state.header.stamp = planner.peer.now()
    planner.is_refused("goal_joints", state, errors.JointStateError)


def test_a_deactivated_planner_takes_no_goal(planner: Planner) -> None:
    assert planner.peer.change(NODE, "deactivate")
    planner.is_refused("subgoal", planner.subgoal(), errors.NotActiveError)
    assert planner.peer.change(NODE, "activate")
    planner.is_accepted("subgoal", planner.subgoal())


def test_a_goal_channel_that_is_not_there_fails_configure(
    fresh_bench: Bench, fresh_peer: Peer
) -> None:
    fresh_bench.engine("other/engine")
    node = fresh_bench.planner("__ns:=/other", channel="nope")
    assert not fresh_peer.change("/other/planner_node", "configure")
    node.wait_for_line("UNKNOWN_CHANNEL")
