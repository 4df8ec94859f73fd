"""Goals in frames that tf2 knows: real nodes, DDS, and the real tf2 where it is installed.

It has no wheels. ``test_frames.py`` puts a double in its place, which shows the rest everywhere.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_ros")

from geometry_msgs.msg import PoseStamped, TransformStamped

from flashrt_ros.msg import ExecutionEvent, Subgoal

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "planner_node"
tf2_ros: Any = importlib.import_module("tf2_ros")  # without types
HALF = math.sqrt(0.5)


def transform(peer: Peer, parent: str, child: str, x: float, *, is_turned: bool = False) -> Any:
    """``child`` lies ``x`` metres along, and turned by a quarter to the left where wanted."""
    found = TransformStamped(child_frame_id=child)
    found.header.frame_id = parent
    found.header.stamp = peer.now()
    found.transform.translation.x = x
    if is_turned:
        found.transform.rotation.z = found.transform.rotation.w = HALF
    return found


def test_goals_in_frames_that_tf2_knows(fresh_bench: Bench, fresh_peer: Peer) -> None:
    bench, peer = fresh_bench, fresh_peer
    bench.engine()
    bench.planner(transforms=["table shelf 0.25 0 0 0 0 0 1"], transform_lifetime_s=1.0)
    accepted = peer.listen(Subgoal, f"{NODE}/accepted")
    events = peer.listen(ExecutionEvent, f"{NODE}/events")
    goals, poses = peer.publisher(Subgoal, "subgoal"), peer.publisher(PoseStamped, "goal_pose")
    static = tf2_ros.StaticTransformBroadcaster(peer.node)
    moving = tf2_ros.TransformBroadcaster(peer.node)
    places = {"arm": 0.5}
    is_told = True

    def tell() -> None:
        if is_told:
            moving.sendTransform(transform(peer, "table", "arm", places["arm"]))

    peer.node.create_timer(0.02, tell)
    static.sendTransform(transform(peer, "arm", "camera", 0.1, is_turned=True))
    numbers = iter(range(1, 1000))

    def subgoal(frame: str) -> None:
        goal = Subgoal(planner="test", sequence=next(numbers), values=[0.25, 0.0])
        goal.header.stamp = peer.now()
        goal.header.frame_id = frame
        goals.publish(goal)

    def pose(frame: str) -> None:
        message = PoseStamped()
        message.header.stamp = peer.now()
        message.header.frame_id = frame
        message.pose.position.x = 0.25
        message.pose.orientation.w = 1.0
        poses.publish(message)

    def outcome(send: Callable[[str], None], frame: str) -> Any:
        accepted.clear()
        events.clear()
        send(frame)
        peer.until(lambda: accepted or [e for e in events if "refused" in e.detail], "an outcome")
        return accepted[-1] if accepted else None

    def becomes(send: Callable[[str], None], frame: str, *wanted: float) -> bool:
        found = outcome(send, frame)
        return found is not None and list(found.values) == pytest.approx(wanted, abs=1e-6)

    assert peer.change(NODE, "configure")
    assert peer.change(NODE, "activate")
    # What moves, and what is fixed to it and seen through it: tf2 has to hear of both first.
    peer.until(lambda: becomes(subgoal, "camera", 0.6, 0.25), "a goal seen by the camera")
    peer.until(lambda: becomes(pose, "arm", 0.75, 0.0), "a goal in the arm's frame")
    places["arm"] = 0.25
    peer.until(lambda: becomes(subgoal, "camera", 0.35, 0.25), "the arm's new place")
    assert becomes(subgoal, "shelf", 0.5, 0.0)  # by the parameter
    for unknown in ("moon", "/camera"):
        assert outcome(subgoal, unknown) is None
        assert "name=FRAME" in events[-1].detail
    is_told = False
    peer.until(lambda: outcome(subgoal, "camera") is None, "the end of the arm's transform")
    assert "any more" in events[-1].detail
    is_told = True
    # A second session listens anew.
    for step in ("deactivate", "cleanup", "configure", "activate"):
        assert peer.change(NODE, step)
    peer.until(lambda: becomes(subgoal, "camera", 0.35, 0.25), "a goal in the second session")
