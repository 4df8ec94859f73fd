"""What a trajectory controller does with what the policy node sends: real engines, nodes and DDS.

The controller is a double of ros2_control's ``joint_trajectory_controller``. What it accepts,
refuses, replaces and cancels, and in which words, is read out of
``joint_trajectory_controller.cpp`` as of 4.5.0 and later: ``validate_trajectory_msg``,
``topic_callback``, ``goal_cancelled_callback`` and ``set_hold_position``, with the default
parameters and position interfaces. It tracks perfectly. Its action has no server of its own type
here (``control_msgs`` has no wheels): goals are begun by a call, and cancelled by the service that
every action has.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("rclpy")

from action_msgs.msg import GoalInfo, GoalStatus
from action_msgs.srv import CancelGoal
from rclpy.publisher import Publisher
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from flashrt_ros.msg import ActionChunk, Subgoal
from flashrt_ros.nodes.conversions import duration_to_ns, stamp_to_ns
from flashrt_ros.srv import Interrupt

if TYPE_CHECKING:
    from rclpy.node import Node

    from test.nodes.conftest import Bench, Child, Peer

NODE = "policy_node"
CONTROLLER = "joint_trajectory_controller"
Values = npt.NDArray[np.float64]


@dataclass(slots=True)
class Goal:
    """A goal of the action; its status as in ``action_msgs/GoalStatus``."""

    info: GoalInfo
    status: int = GoalStatus.STATUS_EXECUTING


@dataclass(slots=True)
class _Running:
    """A trajectory in force: times in ns, positions after it took over from where the robot was."""

    start_ns: int
    times_ns: Values
    rows: Values
    before: Values
    before_ns: int


class Controller:
    """The double, for joints in an order of its own; publishes ``joint_states`` too.

    Args:
        node: Spun by the caller.
        is_measured: Whether it publishes ``joint_states``.

    Attributes:
        errors: What it logged of trajectories that it refused.
        num_accepted: Trajectories that it took from its topic.
        told: Positions that it published.
    """

    joints = ("y", "x")

    def __init__(self, node: Node, *, is_measured: bool = True) -> None:
        self.node = node
        self.errors: list[str] = []
        self.num_accepted = 0
        self.told: list[Values] = []
        self._running: _Running | None = None
        self._active: Goal | None = None
        self._held: Values = np.zeros(len(self.joints))
        self._states: Publisher = node.create_publisher(JointState, "joint_states", 10)
        node.create_subscription(JointTrajectory, f"{CONTROLLER}/joint_trajectory", self._take, 10)
        node.create_service(
            CancelGoal, f"{CONTROLLER}/follow_joint_trajectory/_action/cancel_goal", self._cancel
        )
        if is_measured:
            node.create_timer(0.02, self._tell)

    # what the robot does ---------------------------------------------------------------------

    def positions(self, at_ns: int | None = None) -> Values:
        """Where the joints are, linear between points as for positions alone."""
        running = self._running
        if running is None:
            return self._held
        at_ns = self._now_ns() if at_ns is None else at_ns
        times = [running.before_ns, *(running.start_ns + running.times_ns)]
        rows = [running.before, *running.rows]
        # The segment that leads there from before counts until the first point's time.
        if at_ns >= times[1]:
            times, rows = times[1:], rows[1:]
        columns = zip(*rows, strict=True)
        return np.array([np.interp(at_ns, times, column) for column in columns])

    def way_left(self) -> float:
        """How far from where they are the joints will get if nothing else comes."""
        end = self._held if self._running is None else self._running.rows[-1]
        return float(np.abs(end - self.positions()).max())

    def is_at_one_point(self) -> bool:
        """Whether what is in force is a single point: a stop, no chunk."""
        return self._running is not None and len(self._running.rows) == 1

    def begin_goal(self, rows: list[list[float]], *, step_ns: int = 100_000_000) -> Goal:
        """Accept a goal of the action; one in progress is aborted."""
        if self._active is not None:
            self._active.status = GoalStatus.STATUS_ABORTED
        info = GoalInfo()
        info.goal_id.uuid = np.frombuffer(time.time_ns().to_bytes(16, "big"), np.uint8)
        self._active = Goal(info)
        self._replace(
            0, np.arange(1, len(rows) + 1, dtype=np.float64) * step_ns, np.array(rows, np.float64)
        )
        return self._active

    # what it is told -------------------------------------------------------------------------

    def _take(self, trajectory: JointTrajectory) -> None:
        error = self._objection(trajectory)
        if error:
            self.errors.append(error)
            return
        self.num_accepted += 1
        order = [list(trajectory.joint_names).index(joint) for joint in self.joints]
        self._replace(
            stamp_to_ns(trajectory.header.stamp),
            np.array([duration_to_ns(p.time_from_start) for p in trajectory.points], np.float64),
            np.array([p.positions for p in trajectory.points], np.float64)[:, order],
        )

    def _objection(self, trajectory: JointTrajectory) -> str:
        """As ``validate_trajectory_msg``, in its order."""
        names = list(trajectory.joint_names)
        if len(names) != len(self.joints):
            return "Joints on incoming trajectory don't match the controller joints."
        if not trajectory.points:
            return "Empty trajectory received."
        for name in names:
            if name not in self.joints:
                return f"Incoming joint {name} doesn't match the controller's joints."
        points: list[JointTrajectoryPoint] = list(trajectory.points)
        if any(abs(v) > np.finfo(np.float32).eps for v in points[-1].velocities):
            return "Velocity of last trajectory point is not zero"
        start_ns = stamp_to_ns(trajectory.header.stamp)
        times_ns = [duration_to_ns(point.time_from_start) for point in points]
        if start_ns and start_ns + times_ns[-1] < self._now_ns():
            return "Received trajectory with non-zero start time that ends in the past"
        if any(later <= sooner for sooner, later in itertools.pairwise(times_ns)):
            return "Time between points is not strictly increasing"
        for point in points:
            sizes = {len(point.velocities), len(point.accelerations)}
            if len(point.positions) != len(names) or not sizes <= {0, len(names)}:
                return "Mismatch between joint_names size and a field of a point"
            if len(point.effort):
                return "Trajectories with effort fields are only supported for effort"
        return ""

    def _cancel(
        self, request: CancelGoal.Request, response: CancelGoal.Response
    ) -> CancelGoal.Response:
        """As rcl's action server, which asks for each goal, then ``goal_cancelled_callback``."""
        info = request.goal_info
        wants_all = not any(info.goal_id.uuid) and not stamp_to_ns(info.stamp)
        active = self._active
        if active is None or not (
            wants_all or list(info.goal_id.uuid) == list(active.info.goal_id.uuid)
        ):
            response.return_code = CancelGoal.Response.ERROR_REJECTED
            return response
        self._active = None
        active.status = GoalStatus.STATUS_CANCELED
        self._held, self._running = self.positions(), None
        response.goals_canceling = [active.info]
        return response

    def _replace(self, start_ns: int, times_ns: Values, rows: Values) -> None:
        now_ns = self._now_ns()
        self._running = _Running(start_ns or now_ns, times_ns, rows, self.positions(now_ns), now_ns)

    def _tell(self) -> None:
        self.told.append(self.positions())
        state = JointState(name=list(self.joints), position=self.told[-1].tolist())
        state.header.stamp = self.node.get_clock().now().to_msg()
        self._states.publish(state)

    def _now_ns(self) -> int:
        return int(self.node.get_clock().now().nanoseconds)


def start(bench: Bench, **parameters: Any) -> Child:
    """Start an engine, and a policy node that is connected to the controller."""
    engine = bench.engine()
    bench.policy(f"~/joint_trajectory:={CONTROLLER}/joint_trajectory", **parameters)
    return engine


def drive(peer: Peer, controller: Controller, target: tuple[float, float]) -> None:
    """Give the policy a goal; return once the controller is under way and would go on."""
    goal = Subgoal(planner="test", sequence=time.monotonic_ns(), values=list(target))
    goal.header.stamp = peer.now()
    goal.header.frame_id = "table"
    reply = peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=goal)
    assert reply.success, reply.error_msg
    peer.until(lambda: controller.way_left() > 0.03, "a trajectory")


@pytest.mark.parametrize("how", ["hold", "cancel"])
def test_the_controller_stands_after_whatever_stops_the_policy(
    fresh_bench: Bench, fresh_peer: Peer, how: str
) -> None:
    peer, controller = fresh_peer, Controller(fresh_peer.node)
    engine = start(fresh_bench, trajectory_stop=how)
    peer.bring_up(NODE)
    targets = iter([(0.9, -0.9), (-0.9, 0.9)] * 3)

    def stands_after(what: str, act: Callable[[], object]) -> None:
        drive(peer, controller, next(targets))
        act()
        measured = controller.told[-25:]
        peer.until(lambda: controller.way_left() < 0.005, f"a stop after {what}")
        # It stops where it was measured half a second before at most, give or take what it moved
        # while nobody spun it; the targets are 1.8 apart.
        assert min(np.abs(controller.positions() - at).max() for at in measured) < 0.1, what
        assert not controller.errors

    stands_after("reset", lambda: peer.call(Trigger, f"{NODE}/reset"))
    stands_after("hold", lambda: peer.call(Interrupt, f"{NODE}/interrupt", hold=True))
    stands_after("deactivate", lambda: peer.change(NODE, "deactivate"))
    assert peer.change(NODE, "activate")
    stands_after("the engine's loss", engine.kill)


def test_a_node_that_is_told_to_leave_stops_the_controller_first(
    fresh_bench: Bench, fresh_peer: Peer
) -> None:
    peer, controller = fresh_peer, Controller(fresh_peer.node)
    fresh_bench.engine()
    rule = f"~/joint_trajectory:={CONTROLLER}/joint_trajectory"
    node = fresh_bench.policy(rule, trajectory_stop="hold")
    peer.bring_up(NODE)
    drive(peer, controller, (0.9, -0.9))
    count = controller.num_accepted
    assert node.interrupt() == 0, node.output
    peer.until(lambda: controller.num_accepted > count, "a stop")
    peer.until(lambda: controller.way_left() < 0.005, "a stop")
    assert controller.is_at_one_point(), "the controller has come to the end of a chunk"


def test_without_a_word_in_the_yaml_the_controller_goes_on(
    fresh_bench: Bench, fresh_peer: Peer
) -> None:
    peer, controller = fresh_peer, Controller(fresh_peer.node)
    start(fresh_bench)
    peer.bring_up(NODE)
    drive(peer, controller, (0.9, -0.9))
    count = controller.num_accepted
    assert peer.call(Trigger, f"{NODE}/reset").success
    assert controller.num_accepted - count < 3  # chunks that were on their way
    assert controller.way_left() > 0.005
    assert not controller.errors


@pytest.mark.parametrize(
    ("how", "status"),
    [("hold", GoalStatus.STATUS_EXECUTING), ("cancel", GoalStatus.STATUS_CANCELED)],
)
def test_a_goal_of_the_controllers_action_ends_where_that_is_asked_for(
    fresh_bench: Bench, fresh_peer: Peer, how: str, status: int
) -> None:
    peer, controller = fresh_peer, Controller(fresh_peer.node)
    start(fresh_bench, trajectory_stop=how)
    peer.bring_up(NODE)
    drive(peer, controller, (0.9, -0.9))
    assert peer.call(Trigger, f"{NODE}/reset").success
    peer.until(lambda: controller.way_left() < 0.005, "a stop")
    goal = controller.begin_goal([[1.0, 1.0]], step_ns=60_000_000_000)
    count = controller.num_accepted
    assert peer.call(Trigger, f"{NODE}/reset").success
    peer.until(lambda: controller.way_left() < 0.005, "a stop of the action's goal")
    # where the goal is not cancelled, the points of the hold are what shows that all was sent
    peer.until(lambda: controller.num_accepted > count and goal.status == status)


def test_where_nothing_was_measured_a_trajectory_without_points_is_all_there_is(
    fresh_bench: Bench, fresh_peer: Peer
) -> None:
    peer, controller = fresh_peer, Controller(fresh_peer.node, is_measured=False)
    start(fresh_bench, trajectory_stop="cancel")
    peer.bring_up(NODE)
    assert peer.change(NODE, "deactivate")
    peer.until(lambda: controller.errors, "the controller's refusal")
    assert controller.errors == ["Empty trajectory received."]


def test_velocities_are_no_trajectory(fresh_bench: Bench, fresh_peer: Peer) -> None:
    peer, controller = fresh_peer, Controller(fresh_peer.node)
    start(fresh_bench, command_kind="velocity")
    chunks = peer.listen(ActionChunk, f"{NODE}/action_chunk")
    peer.bring_up(NODE)
    goal = Subgoal(planner="test", sequence=1, values=[0.9, -0.9])
    goal.header.stamp = peer.now()
    goal.header.frame_id = "table"
    assert peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=goal).success
    peer.until(lambda: len(chunks) > 5, "chunks")
    assert not controller.num_accepted
