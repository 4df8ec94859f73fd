"""Sends goals through a ROS topic to ``goal_node``; needs ROS."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from std_msgs.msg import Float64MultiArray, UInt64MultiArray

from flashrt_ros.bench.context import Crew
from flashrt_ros.bench.goal_node import DEPTH
from flashrt_ros.bench.ros_link import RosLink

_ANSWER_S = 5.0


class InterruptLink(RosLink):
    """A publisher of goals, and the policy node's answers.

    Args:
        prefix: Of the topics; unique.

    Attributes:
        prefix: As given.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__(f"{prefix}_sender")
        self.prefix = prefix
        self._number = 1
        self._answers: dict[int, int] = {}
        self._topic = f"{prefix}_answer"
        with ExitStack() as undo:
            undo.callback(self.close)
            self._goals = self.node.create_publisher(Float64MultiArray, f"{prefix}_goal", DEPTH)
            self.node.create_subscription(UInt64MultiArray, self._topic, self._take, DEPTH)
            undo.pop_all()

    def wait_for(self, crew: Crew) -> None:
        """Wait until the policy node listens, and can be heard.

        Raises:
            BenchError: It does not come.
        """
        self.wait_for_peer(crew, self._goals, self._topic, "the policy node of the topic")

    def send(self) -> int | None:
        """Publish a goal; returns the ns until its first action was made, None if it got lost."""
        begun_ns = time.monotonic_ns()
        self._number += 1
        values = [float(self._number), 0.1 + 0.3 * (self._number % 2), 0.25]
        self._goals.publish(Float64MultiArray(data=values))
        if not self.spin_until(lambda: self._number in self._answers, _ANSWER_S):
            return None
        return self._answers.pop(self._number) - begun_ns

    def _take(self, message: Any) -> None:
        self._answers[int(message.data[0])] = int(message.data[1])
