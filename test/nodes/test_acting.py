"""What the robot gets when the policy must stop: real engines, nodes and DDS."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray
from rosgraph_msgs.msg import Clock  # type: ignore[import-untyped]
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.msg import ActionChunk, EngineStatus, ExecutionEvent, Subgoal
from flashrt_ros.nodes.conversions import ns_to_stamp
from flashrt_ros.srv import Interrupt

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "policy_node"
MEASURED = [0.125, 0.25]
POSE = [-0.5, 0.75]


@pytest.fixture
def bench(fresh_bench: Bench) -> Bench:
    return fresh_bench


@pytest.fixture
def peer(fresh_peer: Peer) -> Peer:
    return fresh_peer


class Robot:
    """Two joints that stand still, observed without pause while they are driven."""

    def __init__(self, peer: Peer, *, now_ns: Callable[[], int] | None = None) -> None:
        self.peer = peer
        self.positions = MEASURED
        self.is_driven = True
        self._now_ns = now_ns or (lambda: int(peer.node.get_clock().now().nanoseconds))
        self.commands = peer.listen(Float64MultiArray, f"{NODE}/commands")
        self.events = peer.listen(ExecutionEvent, f"{NODE}/events")
        self.statuses = peer.listen(EngineStatus, f"{NODE}/status")
        self.diagnostics = peer.listen(DiagnosticArray, "/diagnostics")
        self._joints = peer.node.create_publisher(JointState, "joint_states", 10)
        self._sequence = 0
        peer.node.create_timer(0.02, self._observe)

    def _observe(self) -> None:
        if self.is_driven:
            message = JointState(name=["x", "y"], position=self.positions)
            message.header.stamp = ns_to_stamp(self._now_ns())
            self._joints.publish(message)

    def goal(self) -> Subgoal:
        self._sequence += 1
        goal = Subgoal(planner="test", sequence=self._sequence, values=[0.9, -0.9])
        goal.header.stamp = ns_to_stamp(self._now_ns())
        goal.header.frame_id = "table"
        return goal

    def give_goal(self) -> None:
        reply = self.peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=self.goal())
        assert reply.success, reply.error_msg

    def act(self) -> None:
        """Bring the policy up, give it a goal, wait until it acts."""
        self.peer.bring_up(NODE)
        self.give_goal()
        self.until_acting()

    def until_acting(self) -> None:
        self.commands.clear()
        self.peer.until(lambda: len(set(self.others())) > 3, "the policy's commands")

    def others(self) -> list[tuple[float, ...]]:
        """Commands that are no safety action."""
        still = (MEASURED, POSE, [0.0, 0.0])
        return [tuple(c.data) for c in self.commands if list(c.data) not in still]

    def safety(self, cause: str) -> list[str]:
        return [
            e.detail
            for e in self.events
            if e.kind == ExecutionEvent.SAFETY and e.detail.startswith(f"{cause}: ")
        ]

    def until_safe(self, cause: str) -> str:
        return str(self.peer.until(lambda: self.safety(cause), f"a safety action for {cause}")[-1])

    def gets_only(self, values: list[float], count: int = 10) -> None:
        """From here on nothing else comes, and it is repeated."""
        self.peer.until(lambda: self.commands and list(self.commands[-1].data) == values)
        self.peer.spin_some()
        self.commands.clear()
        self.peer.until(lambda: len(self.commands) >= count, "the safety action, again and again")
        assert {tuple(c.data) for c in self.commands} == {tuple(values)}

    def fact(self, key: str) -> int:
        self.diagnostics.clear()
        found = self.peer.until(
            lambda: [s for d in self.diagnostics for s in d.status if s.name == NODE]
        )
        return int({pair.key: pair.value for pair in found[-1].values}.get(key, 0))


@pytest.mark.parametrize("how", ["silent", "nan"])
def test_a_policy_without_fresh_observations_stops_and_goes_on_with_new_ones(
    bench: Bench, peer: Peer, how: str
) -> None:
    bench.engine()
    bench.policy(
        observation_lifetime_s=1.5,  # a busy machine must not bring it about by itself
        stale_observation_action="safe_pose",
        safe_pose=[f"y position={POSE[1]}", f"x position={POSE[0]}"],
        safety_rate_hz=50,
    )
    robot = Robot(peer)
    robot.act()
    assert not robot.safety("stale_observation")
    if how == "silent":
        robot.is_driven = False
    else:
        robot.positions = [math.nan, 0.25]
    assert "safe_pose: sent [-0.5000, 0.7500]" in robot.until_safe("stale_observation")
    robot.gets_only(POSE)
    if how == "nan":
        assert robot.fact("refused: observation NON_FINITE") > 0
    robot.is_driven, robot.positions = True, MEASURED
    robot.until_acting()
    peer.spin_some()
    robot.commands.clear()
    peer.until(lambda: len(robot.commands) > 10)
    assert POSE not in [list(c.data) for c in robot.commands], "the safety action goes on"
    assert len(robot.safety("stale_observation")) == 1


def test_it_is_told_why_a_policy_never_acts(bench: Bench, peer: Peer) -> None:
    bench.engine()
    bench.policy(observation_lifetime_s=1.0)
    robot = Robot(peer, now_ns=lambda: 0)  # a driver that leaves its stamps empty
    peer.bring_up(NODE)
    with_stamp = robot.goal()
    with_stamp.header.stamp = peer.now()
    reply = peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=with_stamp)
    assert reply.success, reply.error_msg
    assert "it never acted" in robot.until_safe("stale_observation")
    peer.until(lambda: robot.fact("actions refused: stale_observation") > 10)
    assert len(robot.safety("stale_observation")) == 1
    assert not robot.commands


def test_where_ages_are_not_judged_the_policy_acts_on(bench: Bench, peer: Peer) -> None:
    bench.engine()
    bench.policy(observation_lifetime_s=0, watchdog_ticks=0)
    robot = Robot(peer)
    robot.act()
    robot.is_driven = False
    num_statuses = len(robot.statuses)
    peer.until(lambda: len(robot.statuses) > num_statuses + 8)
    robot.until_acting()
    assert not [e for e in robot.events if e.kind == ExecutionEvent.SAFETY]


def test_a_goal_is_acted_on_for_its_own_lifetime_only(bench: Bench, peer: Peer) -> None:
    bench.engine()
    bench.policy(stale_goal_action="zeros", safety_rate_hz=50)
    bench.planner()
    robot = Robot(peer)
    goals = peer.publisher(Subgoal, "subgoal")
    peer.bring_up("planner_node")
    peer.bring_up(NODE)
    peer.until(lambda: peer.node.count_subscribers("planner_node/accepted") > 0)
    goal = robot.goal()
    goal.lifetime = Duration(sec=4)
    goals.publish(goal)
    robot.until_acting()
    robot.until_safe("stale_goal")
    robot.gets_only([0.0, 0.0])
    goals.publish(robot.goal())  # without a lifetime of its own
    robot.until_acting()
    num_statuses = len(robot.statuses)
    peer.until(lambda: len(robot.statuses) > num_statuses + 12)
    assert len(robot.safety("stale_goal")) == 1


def test_what_is_published_stays_within_the_limits(bench: Bench, peer: Peer) -> None:
    bench.engine()
    bench.policy(joint_limits=["x upper=0.3 step=0.02", "y velocity=0.1"])
    robot = Robot(peer)
    chunks = peer.listen(ActionChunk, f"{NODE}/action_chunk")
    trajectories = peer.listen(JointTrajectory, f"{NODE}/joint_trajectory")
    robot.act()
    assert "clamped joint=" in robot.until_safe("limit")
    peer.until(lambda: [c for c in robot.commands if c.data[0] == 0.3], "the limit")
    peer.until(lambda: len(chunks) > 5 and len(trajectories) > 5)
    assert all(c.data[0] <= 0.3 for c in robot.commands)
    for rows in (
        *(np.reshape(chunk.actions, (8, 2)) for chunk in chunks),
        *(np.array([p.positions for p in t.points]) for t in trajectories),
    ):
        assert (rows[:, 0] <= 0.3 + 1e-6).all()
        assert (np.abs(np.diff(rows[:, 0])) <= 0.02 + 1e-6).all()
        assert (np.abs(np.diff(rows[:, 1])) <= 0.1 * 0.1 + 1e-6).all()
    assert robot.fact("beyond limits") > 0


def test_a_limit_may_stop_the_policy_until_a_reset(bench: Bench, peer: Peer) -> None:
    bench.engine()
    bench.policy(joint_limits=["x upper=0.3"], limit_mode="stop", limit_action="hold")
    robot = Robot(peer)
    peer.bring_up(NODE)
    robot.give_goal()
    assert "stopped joint=x limit=range" in robot.until_safe("limit")
    num_statuses = len(robot.statuses)
    peer.until(lambda: len(robot.statuses) > num_statuses + 5)
    assert all(c.data[0] <= 0.3 for c in robot.commands)
    assert len(robot.safety("limit")) == 1
    assert peer.call(Trigger, f"{NODE}/reset").success
    robot.give_goal()
    peer.until(lambda: len(robot.safety("limit")) == 2, "the policy's next try")


def test_the_watchdog_acts_when_the_engine_is_silent(bench: Bench, peer: Peer) -> None:
    engine = bench.engine()
    bench.policy(watchdog_ticks=50, engine_silent_action="zeros", safety_rate_hz=50)
    robot = Robot(peer)
    robot.act()
    engine.process.send_signal(signal.SIGSTOP)
    robot.until_safe("engine_silent")
    robot.gets_only([0.0, 0.0])
    engine.process.send_signal(signal.SIGCONT)
    robot.until_acting()
    assert len(robot.safety("engine_silent")) == 1
    assert peer.state(NODE) == "active"


@pytest.mark.parametrize("how", ["hold", "cancel"])
def test_what_a_controller_still_holds_is_part_of_a_reset(
    bench: Bench, peer: Peer, how: str
) -> None:
    engine = bench.engine()
    bench.policy(trajectory_stop=how)
    robot = Robot(peer)
    sent = peer.listen_timed(JointTrajectory, f"{NODE}/joint_trajectory")
    robot.act()
    peer.until(lambda: sent, "a trajectory")

    def is_stop(message: JointTrajectory) -> bool:
        is_now = message.header.stamp.sec == 0 == message.header.stamp.nanosec
        return is_now and [list(p.positions) for p in message.points] == [MEASURED]

    def stops(what: str, act: Callable[[], object]) -> list[tuple[int, Any]]:
        sent.clear()
        act()
        answered_ns = time.time_ns()
        peer.until(lambda: sent and is_stop(sent[-1][1]), f"the controller's stop at {what}")
        assert next(at_ns for at_ns, m in sent if is_stop(m)) < answered_ns, what
        assert list(sent[-1][1].joint_names) == ["x", "y"]
        return sent

    stops("reset", lambda: peer.call(Trigger, f"{NODE}/reset"))
    robot.give_goal()
    robot.until_acting()
    stops("hold", lambda: peer.call(Interrupt, f"{NODE}/interrupt", hold=True))
    robot.give_goal()
    robot.until_acting()
    stops("deactivate", lambda: peer.change(NODE, "deactivate"))
    assert peer.change(NODE, "activate")
    robot.give_goal()
    robot.until_acting()
    sent.clear()
    engine.kill()
    peer.until(lambda: sent and is_stop(sent[-1][1]), "the controller's stop at a loss")


def test_without_a_word_in_the_yaml_a_controller_keeps_its_trajectory(
    bench: Bench, peer: Peer
) -> None:
    bench.engine()
    bench.policy()
    robot = Robot(peer)
    sent = peer.listen(JointTrajectory, f"{NODE}/joint_trajectory")
    robot.act()
    assert peer.call(Trigger, f"{NODE}/reset").success
    peer.until(lambda: [e for e in robot.events if e.kind == ExecutionEvent.RESET])
    assert all(len(message.points) == 8 for message in sent)


def test_a_simulation_that_jumps_back_is_new_time(bench: Bench, peer: Peer) -> None:
    bench.engine()
    bench.policy(
        use_sim_time=True, observation_lifetime_s=5.0, future_tolerance_s=5.0, safety_rate_hz=50
    )
    base_ns = [100_000_000_000 - time.monotonic_ns()]

    def now_ns() -> int:
        return time.monotonic_ns() + base_ns[0]

    clock = peer.publisher(Clock, "/clock")
    peer.node.create_timer(0.01, lambda: clock.publish(Clock(clock=ns_to_stamp(now_ns()))))
    robot = Robot(peer, now_ns=now_ns)
    peer.bring_up(NODE)

    def is_given() -> bool:
        goal = robot.goal()
        return bool(peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=goal).success)

    peer.until(is_given, "a goal on the node's clock")
    robot.until_acting()
    robot.is_driven = False  # what the engine has seen is from before
    base_ns[0] -= 50_000_000_000
    robot.until_safe("stale_observation")
    robot.gets_only(MEASURED)
    robot.is_driven = True
    robot.until_acting()
    assert len(robot.safety("stale_observation")) == 1


def test_a_simulation_begun_anew_is_not_shut_out_by_the_reset_before(
    bench: Bench, peer: Peer
) -> None:
    """The policy is reset first, then the simulator: its clock begins at 0 again."""
    bench.engine()
    bench.policy(use_sim_time=True, future_tolerance_s=0.5)
    bench.planner(use_sim_time=True, future_tolerance_s=0.5, lease_s=1000.0)
    base_ns = [500_000_000_000 - time.monotonic_ns()]

    def now_ns() -> int:
        return time.monotonic_ns() + base_ns[0]

    clock = peer.publisher(Clock, "/clock")
    peer.node.create_timer(0.01, lambda: clock.publish(Clock(clock=ns_to_stamp(now_ns()))))
    robot = Robot(peer, now_ns=now_ns)
    goals = peer.publisher(Subgoal, "subgoal")
    peer.bring_up("planner_node")
    peer.bring_up(NODE)
    peer.node.create_timer(0.1, lambda: goals.publish(robot.goal()))
    robot.until_acting()
    for seconds in (5, 3):
        assert peer.call(Trigger, f"{NODE}/reset").success
        base_ns[0] = seconds * 1_000_000_000 - time.monotonic_ns()
        robot.until_acting()


_BURN = "while True: sum(range(10000))"


def test_nothing_made_before_a_reset_or_a_deactivation_comes_after_it(
    bench: Bench, peer: Peer
) -> None:
    bench.engine()
    bench.policy(rate_hz=200, watchdog_ticks=0, observation_lifetime_s=0)
    for _ in range(2):
        bench.start([sys.executable, "-c", _BURN])
    robot = Robot(peer)
    commands = peer.listen_timed(Float64MultiArray, f"{NODE}/commands")
    chunks = peer.listen_timed(ActionChunk, f"{NODE}/action_chunk")
    trajectories = peer.listen_timed(JointTrajectory, f"{NODE}/joint_trajectory")
    peer.bring_up(NODE)

    def act() -> None:
        count = len(commands)
        robot.give_goal()
        robot.until_acting()
        peer.until(lambda: len(commands) > count + 3)

    def heard_after(at_ns: int) -> list[tuple[int, Any]]:
        """Whatever was published after a moment, once there was time for it."""
        count = len(robot.statuses)
        peer.until(lambda: len(robot.statuses) > count + 2)
        return [one for one in (*commands, *chunks, *trajectories) if one[0] > at_ns]

    for _ in range(5):
        act()
        assert peer.call(Trigger, f"{NODE}/reset").success
        # No goal is in force, so that whatever is published was made before.
        assert not heard_after(time.time_ns())
    for _ in range(3):
        act()
        assert peer.change(NODE, "deactivate")
        assert not heard_after(time.time_ns())
        assert peer.change(NODE, "activate")
        assert peer.call(Trigger, f"{NODE}/reset").success
    # The control: the same question finds what a policy that goes on publishes.
    act()
    assert heard_after(time.time_ns())


def test_a_node_takes_over_from_one_that_was_killed_without_its_leftovers(
    bench: Bench, peer: Peer
) -> None:
    """The engine goes on ticking for nobody: what it has queued was made before."""
    bench.engine()
    first = bench.policy(observation_lifetime_s=0, watchdog_ticks=0)
    robot = Robot(peer)
    robot.act()
    commands = peer.listen_timed(Float64MultiArray, f"{NODE}/commands")
    chunks = peer.listen_timed(ActionChunk, f"{NODE}/action_chunk")
    for _ in range(2):
        first.kill()
        peer.spin_some()
        peer.forget_services()
        commands.clear()
        chunks.clear()
        first = bench.policy(observation_lifetime_s=0, watchdog_ticks=0)
        peer.bring_up(NODE)
        peer.until(lambda: len(commands) > 10 and chunks, "commands")
        assert chunks[0][0] < commands[0][0]
