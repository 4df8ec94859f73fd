"""Every verb at once, faster than they are answered: real engine, node and DDS."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")

from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
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
