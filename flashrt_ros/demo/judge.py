"""What counts as reaching a subgoal; the same for the robot over ROS and for the controls."""

from __future__ import annotations

import math

from flashrt_ros.demo.trace import Point, Pose
from flashrt_ros.sim.episodes import EPISODE_TICKS, PUSH_M, REACH_M
from flashrt_ros.sim.table import block_shift

REACH_RATE = 0.9
"""Share of episodes that must reach their subgoal."""

SETTLE_TICKS = 3
"""Ticks in a row within reach, so that passing by does not count."""


class Judge:
    """Watches one episode, tick by tick.

    Args:
        subgoal: Where the agent shall go, m.
        block: Pose of the T at the start.
        max_ticks: Ticks it may take.

    Attributes:
        ticks: Seen so far.
        distance_m: From the agent to the subgoal at the last of them, m.
        block_shift_m: How far the block was from where it began then, m.
    """

    def __init__(self, subgoal: Point, block: Pose, *, max_ticks: int = EPISODE_TICKS) -> None:
        self.subgoal = subgoal
        self.max_ticks = max_ticks
        self.ticks = 0
        self.distance_m = math.inf
        self.block_shift_m = 0.0
        self._block = block
        self._num_within = 0

    def see(self, agent: Point, block: Pose) -> None:
        """Take in where everything is after one more tick."""
        self.ticks += 1
        self.distance_m = math.dist(agent, self.subgoal)
        self.block_shift_m = block_shift(self._block, block)
        self._num_within = self._num_within + 1 if self.distance_m <= REACH_M else 0

    @property
    def has_settled(self) -> bool:
        """Whether the agent has come to the subgoal and stayed."""
        return self._num_within >= SETTLE_TICKS

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended."""
        return self.has_settled or self.ticks >= self.max_ticks

    @property
    def is_reached(self) -> bool:
        """Whether it counts: at the subgoal, and the block not pushed."""
        return self.has_settled and self.block_shift_m <= PUSH_M
