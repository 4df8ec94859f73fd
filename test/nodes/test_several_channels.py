"""A planner node that serves several goal channels: real engine, node and DDS."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")

from sensor_msgs.msg import JointState
from std_msgs.msg import String

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.msg import ActionChunk, ExecutionEvent, Subgoal
from flashrt_ros.nodes.conversions import stamp_to_ns

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "planner_node"
VALUES = {"goal": [0.5, -0.5], "gripper": [0.0625]}


def start_engine(bench: Bench, name: str = "engine") -> None:
    """Start an engine over a policy with two goal channels."""
    folder = str(Path(__file__).parent)
    bench.environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (folder, bench.environment.get("PYTHONPATH", "")))
    )
    arguments = ("--model-factory", "grasping_policy:make", "--name", name)
    child = bench.start([sys.executable, "-m", "flashrt_ros.engine", *arguments])
    child.wait_for_line("ready")


class Planners:
    """Senders of goals on both channels, and what became of each."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.events = peer.listen(ExecutionEvent, f"{NODE}/events")
        self.accepted = peer.listen(Subgoal, f"{NODE}/accepted")
        self._publishers = {
            topic: peer.publisher(kind, topic)
            for kind, topic in (
                (Subgoal, "subgoal"),
                (String, "instruction"),
                (JointState, "goal_joints"),
            )
        }
        self._sequence = 0

    def begin(self) -> None:
        """Let everybody number from the start again; nobody holds a channel."""
        assert self.peer.change(NODE, "deactivate")
        assert self.peer.change(NODE, "activate")

    def send(self, topic: str, message: Any) -> str:
        """Send a goal; returns the event that says what became of it."""
        self.events.clear()
        self.accepted.clear()
        self._publishers[topic].publish(message)
        found = self.peer.until(
            lambda: [e.detail for e in self.events if f" topic={topic} " in e.detail],
            f"an event of {topic}",
        )
        return str(found[0])

    def subgoal(self, channel: str, planner: str = "nav", values: Any = None) -> str:
        self._sequence += 1
        goal = Subgoal(planner=planner, sequence=self._sequence, channel=channel)
        goal.values = VALUES.get(channel, [0.0]) if values is None else values
        goal.header.stamp = self.peer.now()
        goal.header.frame_id = "table"
        return self.send("subgoal", goal)

    def taken(self) -> Subgoal:
        self.peer.until(lambda: self.accepted, "an accepted goal")
        return self.accepted[-1]


@pytest.fixture(scope="module")
def planners(bench: Bench, peer: Peer) -> Planners:
    start_engine(bench)
    bench.planner(
        channels=["goal topics=goal_joints", "gripper topics=instruction"],
        planners=["operator priority=10 lease_s=60", "grasper priority=20 channel=gripper"],
        named_goals=["open = 0.0625", "home = 0.0 0.0"],
        goal_schema=["goal.values high=0.75", "gripper.width shape=1 low=0 high=0.08 units=m"],
        lease_s=60.0,
    )
    peer.bring_up(NODE)
    return Planners(peer)


@pytest.fixture(autouse=True)
def fresh(planners: Planners) -> None:
    planners.begin()


def test_subgoals_are_routed_by_their_channel(planners: Planners) -> None:
    assert " channel=" not in planners.subgoal("goal")
    taken = planners.taken()
    assert (taken.channel, list(taken.values)) == ("goal", [0.5, -0.5])
    assert taken.header.frame_id == "table"
    assert " channel=gripper " in planners.subgoal("gripper")
    taken = planners.taken()
    assert (taken.channel, list(taken.values), list(taken.shape)) == ("gripper", [0.0625], [1])


def test_both_reach_the_policy(
    planners: Planners, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", bench.environment["XDG_RUNTIME_DIR"])
    with EngineClient("engine") as client:
        client.activate(tick_source="step")
        client.open_writer("observation").write(stamp_ns=1, position=[0.1, 0.2])
        planners.subgoal("goal")
        planners.subgoal("gripper")
        (chunk,) = client.step(0).chunks
        assert chunk.provenance.goal_sequence > 0
        (gripper,) = chunk.provenance.other_goals
        assert gripper.channel == "gripper"
        assert gripper.stamp_ns > chunk.provenance.goal_stamp_ns


def test_topics_lead_where_the_parameter_says(planners: Planners) -> None:
    assert " accepted " in f" {planners.send('instruction', String(data='open'))}"
    assert planners.taken().channel == "gripper"
    state = JointState(name=["x", "y"], position=[0.25, 0.5])
    state.header.stamp = planners.peer.now()
    assert " accepted " in f" {planners.send('goal_joints', state)}"
    assert planners.taken().channel == "goal"


def test_a_goal_that_says_no_channel_is_refused_where_there_are_two(planners: Planners) -> None:
    refused = planners.subgoal("")
    assert "name=UNKNOWN_CHANNEL" in refused
    assert "topics=subgoal" in refused
    assert "name=UNKNOWN_CHANNEL" in planners.subgoal("arm")


def test_each_channel_is_arbitrated_by_itself(planners: Planners) -> None:
    assert " won=first " in planners.subgoal("goal", "operator")
    assert "name=BUSY" in planners.subgoal("goal", "nav")
    assert " won=first " in planners.subgoal("gripper", "nav")
    assert " won=priority over=nav " in planners.subgoal("gripper", "grasper")
    assert "name=BUSY" in planners.subgoal("gripper", "operator")
    assert " won=holder " in planners.subgoal("goal", "operator")


def test_each_channel_has_a_schema_of_its_own(planners: Planners) -> None:
    assert "name=PAYLOAD_RANGE" in planners.subgoal("goal", values=[0.8, 0.0])
    assert "name=PAYLOAD_RANGE" in planners.subgoal("gripper", values=[0.09])
    assert "name=PAYLOAD_SHAPE" in planners.subgoal("gripper", values=[0.05, 0.05])
    assert " accepted " in f" {planners.subgoal('gripper', values=[0.07])}"


def test_a_chunk_names_the_goal_of_each_channel(
    planners: Planners, bench: Bench, tmp_path: Path
) -> None:
    peer = planners.peer
    chunks = peer.listen(ActionChunk, "policy_node/action_chunk")
    joints = peer.node.create_publisher(JointState, "joint_states", 10)
    bench.policy()
    peer.bring_up("policy_node")
    report = tmp_path / "trace.json"
    words = ["trace", "--ros", "--seconds", "0", "--json", str(report)]
    trace = bench.start([sys.executable, "-m", "flashrt_ros.cli.main", *words])
    topics = ("policy_node/events", "planner_node/events", "policy_node/action_chunk")
    sent: dict[str, list[tuple[int, int]]] = {"goal": [], "gripper": []}

    def send() -> None:
        for channel, numbers in sent.items():
            planners.subgoal(channel)
            numbers.append((planners.taken().sequence, stamp_to_ns(planners.taken().header.stamp)))
        message = JointState(name=["x", "y"], position=[0.0, 0.0])
        message.header.stamp = peer.now()
        joints.publish(message)

    def is_heard() -> bool:
        """Goals again and again: the first may come before all ends have found each other."""
        send()
        return bool(chunks) and trace.trace_hears(*topics)

    def is_acted_on() -> bool:
        send()
        return len({tuple(chunk.goal_sequences) for chunk in chunks}) > 3

    peer.until(is_heard, "a trace that hears both nodes")
    chunks.clear()
    peer.until(is_acted_on, "chunks of several goals")
    trace.process.send_signal(signal.SIGINT)
    assert trace.wait() == 0, trace.output
    for chunk in chunks:
        assert list(chunk.goal_channels) == ["goal", "gripper"]
        assert chunk.goal_sequences[0] == chunk.goal_sequence
        assert chunk.goal_source_sequences[0] == chunk.goal_source_sequence
        assert chunk.goal_stamps[0] == chunk.goal_stamp
    for index, numbers in enumerate(sent.values()):
        last = chunks[-1]
        assert (last.goal_source_sequences[index], stamp_to_ns(last.goal_stamps[index])) in numbers
    traced = json.loads(report.read_bytes())["goals"]
    assert [goal for goal in traced if goal["channel"] == "gripper" and goal["acted_ns"]]
    assert peer.change("policy_node", "deactivate")
