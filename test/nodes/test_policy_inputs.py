from __future__ import annotations

import array
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import Image, JointState

from flashrt_ros import errors
from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.msg import ActionChunk, EngineStatus, Subgoal
from flashrt_ros.nodes.conversions import ns_to_stamp, stamp_to_ns
from flashrt_ros.srv import (
    Interrupt,
    ResetEpisode,
    RestoreCapsule,
    RollbackCapsule,
    SnapshotCapsule,
    Step,
)

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "policy_node"
SIZE = 96


class Cell:
    """A camera and two joints, one observation at a time, in lockstep with the policy."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.diagnostics = peer.listen(DiagnosticArray, "/diagnostics")
        self.statuses = peer.listen(EngineStatus, f"{NODE}/status")
        self.chunks = peer.listen(ActionChunk, f"{NODE}/action_chunk")
        self._images = peer.publisher(Image, "image")
        self._joints = peer.publisher(JointState, "joint_states")
        self.sequence = 0

    def facts(self) -> dict[str, str]:
        status = next(s for d in reversed(self.diagnostics) for s in d.status if s.name == NODE)
        return {pair.key: pair.value for pair in status.values}

    def fresh_facts(self) -> dict[str, str]:
        self.diagnostics.clear()
        self.peer.until(lambda: [s for d in self.diagnostics for s in d.status if s.name == NODE])
        return self.facts()

    def count(self, key: str) -> int:
        return int(self.fresh_facts().get(key, 0))

    def image(self, stamp_ns: int, **changes: Any) -> Image:
        padding = changes.pop("padding", 0)
        width, height = changes.pop("width", SIZE), changes.pop("height", SIZE)
        message = Image(
            height=height,
            width=width,
            encoding="rgb8",
            step=3 * width + padding,
            data=array.array("B", bytes(height * (3 * width + padding))),
        )
        message.header.stamp = ns_to_stamp(stamp_ns)
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    def joints(self, stamp_ns: int, **changes: Any) -> JointState:
        message = JointState(name=["agent_y", "agent_x"], position=[0.2, 0.1])
        message.header.stamp = ns_to_stamp(stamp_ns)
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    def send(self, image: Image, joints: JointState) -> None:
        self._joints.publish(joints)
        self._images.publish(image)

    def now_ns(self) -> int:
        return int(self.peer.node.get_clock().now().nanoseconds)

    def commit(self, stamp_ns: int | None = None, **changes: Any) -> int:
        """Send an observation until the engine has it; returns its stamp."""
        before = self.count("observations committed")
        stamp_ns = self.now_ns() if stamp_ns is None else stamp_ns
        image, joints = self.image(stamp_ns, **changes), self.joints(stamp_ns)
        self._send_until(
            image, joints, lambda: self.count("observations committed") > before, "a commit"
        )
        return stamp_ns

    def _send_until(
        self, image: Image, joints: JointState, condition: Callable[[], bool], what: str
    ) -> None:
        """Send the same again, because a best-effort reader may lose one; it counts once."""

        def sent() -> bool:
            self.send(image, joints)
            return condition()

        self.peer.until(sent, what)

    def refuses(self, image: Image, joints: JointState, error: type[errors.FlashrtError]) -> None:
        key = f"refused: observation {error.name}"
        before = self.count(key)
        committed = self.count("observations committed")
        self._send_until(
            image, joints, lambda: self.count(key) > before, f"a refusal by {error.name}"
        )
        assert self.count("observations committed") == committed

    def begin(self) -> int:
        """Reset, give a goal; returns the barrier."""
        reply = self.peer.call(ResetEpisode, f"{NODE}/reset_episode")
        assert reply.success, reply.error_msg
        self.sequence += 1
        goal = Subgoal(planner="test", sequence=self.sequence, values=[0.25, 0.25])
        goal.header.stamp = self.peer.now()
        goal.header.frame_id = "table"
        reply_to_goal = self.peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=goal)
        assert reply_to_goal.success, reply_to_goal.error_msg
        return stamp_to_ns(reply.barrier)


@pytest.fixture(scope="module")
def cell(bench: Bench, peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Cell:
    weights: Path = tmp_path_factory.mktemp("weights") / "untrained.safetensors"
    FlowPolicy.untrained(0).save(weights, {})
    bench.engine(model="flow_policy", weights=str(weights), interrupt_depth=64)
    bench.policy(cameras=["image"], tick_source="step", slop_s=0.02)
    peer.bring_up(NODE)
    return Cell(peer)


@pytest.mark.parametrize("changes", [{}, {"encoding": "bgr8"}, {"padding": 5}])
def test_a_legal_image_is_committed(cell: Cell, changes: dict[str, Any]) -> None:
    cell.commit(**changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"encoding": "mono8"}, errors.PayloadTypeError),
        ({"encoding": "rgba8"}, errors.PayloadTypeError),
        ({"width": 95}, errors.PayloadShapeError),
        ({"height": 97}, errors.PayloadShapeError),
        ({"step": 3 * SIZE - 1}, errors.PayloadShapeError),
        ({"data": array.array("B", bytes(7))}, errors.PayloadShapeError),
    ],
)
def test_a_bad_image_costs_itself(
    cell: Cell, changes: dict[str, Any], error: type[errors.FlashrtError]
) -> None:
    stamp_ns = cell.now_ns()
    cell.refuses(cell.image(stamp_ns, **changes), cell.joints(stamp_ns), error)
    cell.commit()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": ["agent_x"], "position": [0.1]}, errors.JointStateError),
        ({"name": ["agent_x", "agent_y"], "position": [0.1]}, errors.JointStateError),
        ({"position": [math.nan, 0.1]}, errors.NonFiniteError),
        ({"position": [0.1, math.inf]}, errors.NonFiniteError),
    ],
)
def test_a_bad_joint_state_costs_itself(
    cell: Cell, changes: dict[str, Any], error: type[errors.FlashrtError]
) -> None:
    stamp_ns = cell.now_ns()
    cell.refuses(cell.image(stamp_ns), cell.joints(stamp_ns, **changes), error)
    cell.commit()


def test_parts_whose_stamps_lie_apart_make_no_observation(cell: Cell) -> None:
    stamp_ns = cell.now_ns()
    before = cell.count("observations committed")
    cell.send(cell.image(stamp_ns), cell.joints(stamp_ns - 50_000_000))
    later_ns = cell.commit()
    assert later_ns > stamp_ns
    assert cell.count("observations committed") == before + 1


def test_an_observation_from_before_a_reset_does_not_act_after_it(cell: Cell) -> None:
    old_ns = cell.now_ns()
    barrier_ns = cell.begin()
    assert old_ns < barrier_ns
    cell.refuses(cell.image(old_ns), cell.joints(old_ns), errors.StaleStampError)
    late = cell.peer.call(Step, f"{NODE}/step", timeout=_duration(0.2))
    assert late.error_code == errors.StepTimeoutError.code
    new_ns = cell.commit()
    stepped = cell.peer.call(Step, f"{NODE}/step", min_observation_stamp=ns_to_stamp(new_ns))
    assert stepped.success, stepped.error_msg
    assert stamp_to_ns(stepped.chunks[0].observation_stamp) == new_ns


@pytest.mark.parametrize("verb", ["restore", "rollback"])
def test_the_robots_last_observation_is_taken_again_when_the_engine_asks_anew(
    cell: Cell, verb: str
) -> None:
    """In lockstep the robot's time stands still: it can only repeat what it sent."""
    cell.begin()
    for _ in range(2):
        stamp_ns = cell.commit()
        stepped = cell.peer.call(Step, f"{NODE}/step", count=8)
        assert stepped.success, stepped.error_msg
    moved = (
        cell.peer.call(RollbackCapsule, f"{NODE}/capsule/rollback")
        if verb == "rollback"
        else cell.peer.call(
            RestoreCapsule,
            f"{NODE}/capsule/restore",
            capsule=cell.peer.call(SnapshotCapsule, f"{NODE}/capsule/snapshot").capsule.id,
        )
    )
    assert moved.success, moved.error_msg
    early = cell.peer.call(Step, f"{NODE}/step", timeout=_duration(0.05))
    assert early.error_code == errors.StepTimeoutError.code
    assert cell.commit(stamp_ns) == stamp_ns
    stepped = cell.peer.call(Step, f"{NODE}/step", count=8)
    assert stepped.success, stepped.error_msg


def test_a_step_waits_for_the_observation_it_names(cell: Cell) -> None:
    cell.begin()
    cell.commit()
    wanted_ns = cell.now_ns() + 1_000_000_000
    future = cell.peer.send(
        Step,
        f"{NODE}/step",
        Step.Request(min_observation_stamp=ns_to_stamp(wanted_ns), timeout=_duration(60)),
    )
    cell.commit()
    # Others are answered meanwhile, and a second step is refused at once.
    busy = cell.peer.call(Step, f"{NODE}/step")
    assert busy.error_code == errors.BusyError.code
    assert not future.done()
    cell.commit(wanted_ns)
    cell.peer.until(future.done, "the step")
    assert future.result().success, future.result().error_msg
    assert stamp_to_ns(future.result().chunks[0].observation_stamp) == wanted_ns


def test_a_step_from_before_a_reset_does_not_act_after_it(cell: Cell) -> None:
    cell.begin()
    future = cell.peer.send(Step, f"{NODE}/step", Step.Request(timeout=_duration(60)))
    cell.peer.until(
        lambda: cell.peer.call(Step, f"{NODE}/step").error_code == errors.BusyError.code
    )
    cell.begin()
    cell.peer.until(future.done, "the step")
    assert future.result().error_code == errors.AbandonedError.code
    cell.commit()
    assert cell.peer.call(Step, f"{NODE}/step").success


def _duration(seconds: float) -> Any:
    from flashrt_ros.nodes.conversions import ns_to_duration

    return ns_to_duration(round(seconds * 1e9))
