"""Sends goals through a ROS topic to ``goal_node``; needs ROS."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Float64MultiArray, UInt64MultiArray

from flashrt_ros.bench.context import Crew
from flashrt_ros.bench.engines import wait_for
from flashrt_ros.bench.goal_node import DEPTH

_ANSWER_S = 5.0


class InterruptLink:
    """A publisher of goals, and the policy node's answers.

    Args:
        prefix: Of the topics; unique.

    Attributes:
        prefix: As given.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._number = 1
        self._answers: dict[int, int] = {}
        self._context = Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._node = Node(f"{prefix}_sender", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._goals = self._node.create_publisher(Float64MultiArray, f"{prefix}_goal", DEPTH)
        self._node.create_subscription(UInt64MultiArray, f"{prefix}_answer", self._take, DEPTH)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the node. Idempotent."""
        if self._context.ok():
            self._executor.shutdown()
            self._node.destroy_node()
            rclpy.shutdown(context=self._context)

    def wait_for(self, crew: Crew) -> None:
        """Wait until the policy node listens, and can be heard.

        Raises:
            BenchError: It does not come.
        """
        wait_for(
            crew,
            lambda: (
                self._goals.get_subscription_count() > 0
                and self._node.count_publishers(f"{self.prefix}_answer") > 0
            ),
            "the policy node of the topic",
        )

    def send(self) -> int | None:
        """Publish a goal; returns the ns until its first action was made, None if it got lost."""
        begun_ns = time.monotonic_ns()
        self._number += 1
        values = [float(self._number), 0.1 + 0.3 * (self._number % 2), 0.25]
        self._goals.publish(Float64MultiArray(data=values))
        deadline = time.monotonic() + _ANSWER_S
        while self._number not in self._answers:
            if time.monotonic() > deadline:
                return None
            self._executor.spin_once(timeout_sec=_ANSWER_S)
        return self._answers.pop(self._number) - begun_ns

    def _take(self, message: Any) -> None:
        self._answers[int(message.data[0])] = int(message.data[1])
