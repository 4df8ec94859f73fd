"""When a chunk's actions are due, and which of them are judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_ros.engine.protocol import ChannelInfo, ModelInfo, Provenance
from flashrt_ros.nodes.acting import Acting, Conduct, Outlets
from flashrt_ros.nodes.controllers import TrajectoryOutlet
from flashrt_ros.nodes.conversions import duration_to_ns, stamp_to_ns
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.guard import Guard, GuardSettings
from flashrt_ros.nodes.lifetimes import GoalLifetimes
from flashrt_ros.nodes.limits import Limits, parse_limits
from flashrt_ros.nodes.safety import SafetyAction

S = 1_000_000_000
NOW = 100 * S
STEP = S // 10
GOAL = ChannelInfo("goal", "goal", "", 0, 0, 0, ())
MODEL = ModelInfo("m", 6, 1, 4, ("x",), STEP, (GOAL,), "", 1, 0, 0)
ROWS = np.arange(6, dtype=np.float32)[:, None] / 10


@dataclass
class Topic:
    """Stands in for a publisher."""

    messages: list[Any] = field(default_factory=list)

    def publish(self, message: Any) -> None:
        self.messages.append(message)


@dataclass
class Robot:
    """What the policy node's chunks are published by, without a node."""

    limits: list[str]
    clamps: bool = True
    chunks: Topic = field(default_factory=Topic)
    trajectories: Topic = field(default_factory=Topic)
    commands: Topic = field(default_factory=Topic)
    said: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        outlet = TrajectoryOutlet(
            cast(Any, self.trajectories),
            MODEL,
            sends_chunks=True,
            stop="none",
            pose_time_s=1.0,
            cancel=lambda: False,
        )
        self.acting = Acting(
            Outlets(cast(Any, self.commands), cast(Any, self.chunks), outlet),
            MODEL,
            Fence(),
            Guard(GuardSettings(), GoalLifetimes(0)),
            Limits(parse_limits(self.limits), MODEL.joint_names),
            make_safety=lambda send, approach: SafetyAction(send, num_joints=1, rate_hz=0),
            conduct=Conduct(
                {"default": "stop"},
                clamps=self.clamps,
                is_position=True,
                watchdog_ticks=0,
                frame="",
            ),
            now_ns=lambda: NOW,
            has_real_ages=True,
            say=lambda cause, detail: self.said.append((cause, detail)),
        )
        self.acting.begin(period_s=None)

    def chunk(self, *, elapsed: int = 0, at: float | None = None, age_ns: int = 0) -> Any:
        """Publish a chunk that was in the making for some ticks, the robot being somewhere."""
        made = Provenance(1, 0, -1, 1, 1, 10 + elapsed, 10, 1, 1, NOW, 1, NOW)
        if at is not None:
            self.acting.publish_action(made, 0, (at,))
        self.acting.publish_chunk(made, ROWS.tobytes(), age_ns)
        return self.chunks.messages[-1] if self.chunks.messages else None


@pytest.mark.parametrize("elapsed", [0, 1, 3, 5, 9])
def test_the_action_that_is_next_is_due_now(elapsed: int) -> None:
    robot = Robot([])
    chunk = robot.chunk(elapsed=elapsed, age_ns=7)
    first = min(elapsed, 5)
    assert stamp_to_ns(chunk.header.stamp) == NOW - 7 - first * STEP
    (trajectory,) = robot.trajectories.messages
    due_ns = stamp_to_ns(trajectory.header.stamp) + duration_to_ns(
        trajectory.points[first].time_from_start
    )
    assert due_ns == NOW - 7
    assert trajectory.points[first].positions[0] == pytest.approx(first / 10)


@pytest.mark.parametrize("clamps", [True, False])
def test_actions_of_the_past_are_no_steps(clamps: bool) -> None:
    robot = Robot(["x step=0.11"], clamps=clamps)
    chunk = robot.chunk(elapsed=3, at=0.2)
    assert not robot.said
    assert np.array(chunk.actions) == pytest.approx(ROWS.ravel())


def test_a_step_from_where_the_robot_is_to_the_next_action_is_judged() -> None:
    robot = Robot(["x step=0.11"])
    chunk = robot.chunk(elapsed=3, at=0.1)
    assert "clamped" in robot.said[0][1]
    assert np.array(chunk.actions) == pytest.approx([0.0, 0.1, 0.2, 0.21, 0.32, 0.43])


def test_a_chunk_that_is_not_finite_anywhere_stops_the_policy() -> None:
    robot = Robot([])
    broken = ROWS.copy()
    broken[0] = np.nan
    made = Provenance(1, 0, -1, 1, 1, 13, 10, 1, 1, NOW, 1, NOW)
    robot.acting.publish_chunk(made, broken.tobytes(), 0)
    assert not robot.chunks.messages
    assert "limit=finite" in robot.said[0][1]
