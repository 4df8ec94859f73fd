from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("rclpy")

from sensor_msgs.msg import JointState

from flashrt_ros.msg import ActionChunk, Subgoal

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer


def test_the_nodes_topics_tell_who_wrote_a_goal(
    fresh_bench: Bench, fresh_peer: Peer, tmp_path: Path
) -> None:
    bench, peer = fresh_bench, fresh_peer
    bench.engine()
    bench.policy()
    bench.planner()
    chunks = peer.listen(ActionChunk, "policy_node/action_chunk")
    joints = peer.node.create_publisher(JointState, "joint_states", 10)
    goals = peer.publisher(Subgoal, "subgoal")
    peer.bring_up("planner_node")
    peer.bring_up("policy_node")
    report = tmp_path / "trace.json"
    words = ["trace", "--ros", "--seconds", "0", "--json", str(report)]
    trace = bench.start([sys.executable, "-m", "flashrt_ros.cli.main", *words])
    topics = ("policy_node/events", "planner_node/events", "policy_node/action_chunk")
    for topic in topics:
        trace.wait_for_line(f"listening to /{topic}")

    numbers = iter(range(1, 1000))

    def send() -> None:
        goal = Subgoal(planner="nav", sequence=next(numbers), values=[0.5, 0.5])
        goal.header.stamp = peer.now()
        goal.header.frame_id = "table"
        goals.publish(goal)
        message = JointState(name=["x", "y"], position=[0.0, 0.0])
        message.header.stamp = peer.now()
        joints.publish(message)

    def is_heard() -> bool:
        """Goals again and again: the first may come before all ends have found each other."""
        send()
        return bool(chunks) and trace.trace_hears(*topics)

    def is_acted_on() -> bool:
        send()
        return len({chunk.goal_sequence for chunk in chunks}) > 5

    peer.until(is_heard, "a trace that hears both nodes")
    chunks.clear()
    peer.until(is_acted_on, "chunks of several goals")
    trace.process.send_signal(signal.SIGINT)
    assert trace.wait() == 0, trace.output
    found = json.loads(report.read_bytes())["goals"]
    whole = [goal for goal in found if goal["planner"] and goal["acted_ns"] and goal["latched_ns"]]
    assert whole, trace.output
    for goal in whole:
        assert goal["planner"] == "nav"
        assert goal["written_ns"] <= goal["committed_ns"]
        assert goal["written_ns"] <= goal["chunk_ns"] <= goal["acted_ns"]
