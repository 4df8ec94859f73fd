"""Every verb at once, and messages of every kind: real engine, nodes and DDS."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")

from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from flashrt_ros import errors
from flashrt_ros.msg import ActionChunk, ExecutionEvent, Subgoal
from flashrt_ros.srv import (
    ForkCapsule,
    Interrupt,
    ResetEpisode,
    RestoreCapsule,
    Resume,
    RollbackCapsule,
    SelectBranch,
    SnapshotCapsule,
    Step,
)

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "policy_node"

EXPECTED: dict[str, set[type[errors.FlashrtError]]] = {
    "reset": set(),
    "reset_episode": set(),
    "capsule/snapshot": set(),
    "capsule/restore": {errors.CapsuleNotFoundError},
    "capsule/fork": {errors.NoFreeLaneError},
    "capsule/select": {errors.BranchNotFoundError},
    "capsule/rollback": {errors.NoBoundaryError},
    "interrupt": {errors.InterruptDepthError},
    "resume": {errors.NothingToResumeError},
    "step": {errors.BranchNotFoundError, errors.TickSourceError, errors.BusyError},
}
"""What each may be refused with, whatever it meets."""


class Caller:
    """Sends requests without waiting, and goals and observations beside them."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.sequence = 0
        self.commands = peer.listen(Float64MultiArray, f"{NODE}/commands")
        self.chunks = peer.listen(ActionChunk, f"{NODE}/action_chunk")
        self.events = peer.listen(ExecutionEvent, f"{NODE}/events")
        self._joints = peer.node.create_publisher(JointState, "joint_states", 10)
        peer.node.create_timer(0.02, self._observe)

    def _observe(self) -> None:
        message = JointState(name=["x", "y"], position=[0.125, 0.25])
        message.header.stamp = self.peer.now()
        self._joints.publish(message)

    def goal(self) -> Subgoal:
        self.sequence += 1
        goal = Subgoal(planner="test", sequence=self.sequence, values=[0.9, -0.9])
        goal.header.stamp = self.peer.now()
        goal.header.frame_id = "table"
        return goal

    def request(self, name: str, rng: random.Random) -> tuple[Any, Any]:
        kinds: dict[str, tuple[Any, dict[str, Any]]] = {
            "reset": (Trigger, {}),
            "reset_episode": (ResetEpisode, {"has_seed": True, "seed": rng.randrange(9)}),
            "capsule/snapshot": (SnapshotCapsule, {"name": "one", "replace": True}),
            "capsule/restore": (RestoreCapsule, {"capsule": "one"}),
            "capsule/fork": (ForkCapsule, {"count": 1}),
            "capsule/select": (SelectBranch, {"branch": 0, "release_others": True}),
            "capsule/rollback": (RollbackCapsule, {"boundaries": 1}),
            "interrupt": (Interrupt, {"hold": rng.random() < 0.3}),
            "resume": (Resume, {"keep_goal": rng.random() < 0.5}),
            "step": (Step, {"branch": 0, "count": 1}),
        }
        kind, fields = kinds[name]
        request = kind.Request(**fields)
        if name == "interrupt" and rng.random() < 0.5:
            request.has_goal, request.goal = True, self.goal()
        return kind, request


def code_of(response: Any) -> int:
    if isinstance(response, Trigger.Response):
        return 0 if response.success else 1
    return int(response.error_code)


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_verbs_meet_the_policy_goes_on(
    fresh_bench: Bench, fresh_peer: Peer, seed: int
) -> None:
    rng = random.Random(seed)
    waiting: list[tuple[str, Any]] = []
    fresh_bench.engine(num_branch_lanes=2, interrupt_depth=3)
    fresh_bench.policy(rate_hz=100)
    caller = Caller(fresh_peer)
    fresh_peer.bring_up(NODE)
    names = sorted(EXPECTED)
    for name in names:
        fresh_peer.meet(caller.request(name, rng)[0], f"{NODE}/{name}", depth=1000)
    for _ in range(300):
        name = rng.choice(names)
        kind, request = caller.request(name, rng)
        waiting.append((name, fresh_peer.send(kind, f"{NODE}/{name}", request)))
    generations = []
    for name, future in waiting:
        fresh_peer.until(future.done, f"an answer of {name}")
        response = future.result()
        allowed = {0, errors.StaleStampError.code} | {e.code for e in EXPECTED[name]}
        allowed |= {errors.AbandonedError.code} if name == "step" else set()
        said = getattr(response, "error_msg", "") or getattr(response, "message", "")
        assert code_of(response) in allowed, f"{name}: {said}"
        generations.append(getattr(response, "generation", 0))
    last = max(generations)
    # However it ended, a reset and a goal let the policy act again, and nothing older does.
    reply = fresh_peer.call(ResetEpisode, f"{NODE}/reset_episode")
    assert reply.success, reply.error_msg
    assert reply.generation > last
    caller.chunks.clear()
    caller.commands.clear()
    given = fresh_peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=caller.goal())
    assert given.success, given.error_msg
    assert given.depth == 1
    fresh_peer.until(lambda: len({tuple(c.data) for c in caller.commands}) > 5, "commands")
    assert {chunk.generation for chunk in caller.chunks} == {given.generation}
    assert fresh_peer.state(NODE) == "active"
    assert not [e for e in caller.events if e.kind == ExecutionEvent.FAULT]


NUMBERS = (0.0, -0.0, 0.5, -0.5, 1e-320, 3e38, math.inf, -math.inf, math.nan)
SECONDS = (0, 1, -1, 2**31 - 1, -(2**31))
WORDS = ("", "goal", "test", " ", "\n", "\u00e9\u4e2d", "x" * 70_000, "a=b", "/", "goal=1 won=2")


def any_goal(rng: random.Random, now: Any) -> Subgoal:
    """A goal that may be right in one place and wrong in every other."""
    goal = Subgoal(planner="test", sequence=rng.choice([0, 1, 7, 2**64 - 1]), values=[0.5, 0.5])
    goal.header.frame_id = "table"
    goal.header.stamp = now
    for name in rng.sample(["planner", "channel", "text", "values", "shape", "stamp"], 2):
        if name in ("planner", "channel", "text"):
            setattr(goal, name, rng.choice(WORDS))
        elif name == "values":
            goal.values = [
                rng.choice(NUMBERS) for _ in range(rng.choice([0, 1, 2, 2, 2, 3, 20_000]))
            ]
        elif name == "shape":
            goal.shape = [rng.choice([0, 1, 2, 2**32 - 1]) for _ in range(rng.randrange(4))]
        else:
            goal.header.stamp.sec = rng.choice(SECONDS)
            goal.header.stamp.nanosec = rng.choice([0, 1, 2**32 - 1])
    if rng.random() < 0.3:
        goal.lifetime.sec = rng.choice(SECONDS)
        goal.lifetime.nanosec = rng.choice([0, 2**32 - 1])
    if rng.random() < 0.2:
        goal.header.frame_id = rng.choice(WORDS)
    if rng.random() < 0.2:
        goal.env_index = rng.choice([1, 2**32 - 1])
    return goal


def any_pose(rng: random.Random, now: Any) -> PoseStamped:
    pose = PoseStamped()
    pose.header.stamp = now
    pose.header.frame_id = rng.choice(["table", "table", *WORDS])
    pose.pose.position.x = rng.choice(NUMBERS)
    pose.pose.orientation.w = rng.choice(NUMBERS)
    return pose


def any_joints(rng: random.Random, now: Any) -> JointState:
    joints = JointState(name=rng.choice([["x", "y"], ["y", "x", "z"], ["x", "x"], [], ["x"]]))
    joints.position = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
    joints.header.stamp = now
    return joints


def test_no_message_ends_a_node(fresh_bench: Bench, fresh_peer: Peer) -> None:
    """Whatever comes, it is taken or refused by name; then a good goal is still acted on."""
    rng, peer = random.Random(3), fresh_peer
    fresh_bench.engine()
    nodes = [fresh_bench.policy(rate_hz=100), fresh_bench.planner(lease_s=0.0, max_planners=1000)]
    caller = Caller(peer)
    told = peer.listen(ExecutionEvent, "planner_node/events", 1000)
    accepted = peer.listen(Subgoal, "planner_node/accepted", 1000)
    makers: dict[str, tuple[Any, Any]] = {
        "subgoal": (Subgoal, any_goal),
        "goal_pose": (PoseStamped, any_pose),
        "goal_joints": (JointState, any_joints),
        "instruction": (String, lambda rng, now: String(data=rng.choice(WORDS))),
        "joint_states": (JointState, any_joints),
    }
    peer.bring_up("planner_node")
    peer.bring_up(NODE)
    senders = {topic: peer.publisher(kind, topic, 1000) for topic, (kind, _) in makers.items()}
    for _ in range(300):
        topic = rng.choice(sorted(makers))
        senders[topic].publish(makers[topic][1](rng, peer.now()))
        peer.spin_some()
    last = caller.goal()
    last.planner = "last"
    last.sequence = 2**64 - 1
    senders["subgoal"].publish(last)
    peer.until(lambda: [goal for goal in accepted if goal.planner == "last"], "the good goal")
    caller.commands.clear()
    peer.until(lambda: len({tuple(c.data) for c in caller.commands}) > 3, "commands")
    assert all(math.isfinite(value) for c in caller.commands for value in c.data)
    assert [e for e in told if "refused" in e.detail]
    for name, node in zip((NODE, "planner_node"), nodes, strict=True):
        assert peer.state(name) == "active"
        assert "Traceback" not in node.output
