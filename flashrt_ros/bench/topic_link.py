"""Sends payloads through ROS topics to ``topic_consumer``; needs ROS."""

from __future__ import annotations

import time
from array import array
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import UInt8MultiArray, UInt64MultiArray

from flashrt_ros.bench.context import Crew
from flashrt_ros.bench.engines import wait_for
from flashrt_ros.bench.topic_consumer import DEPTH, topic

_ANSWER_S = 5.0


class TopicLink:
    """A publisher for each size, and the consumer's answers.

    Args:
        prefix: Of the topics; unique.
        sizes: Of payloads, bytes.

    Attributes:
        prefix: As given.
    """

    def __init__(self, prefix: str, sizes: tuple[int, ...]) -> None:
        self.prefix = prefix
        self._answers: list[tuple[int, int]] = []
        self._context = Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._node = Node(f"{prefix}_sender", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._publishers = {
            size: self._node.create_publisher(UInt8MultiArray, topic(prefix, size), DEPTH)
            for size in sizes
        }
        self._node.create_subscription(UInt64MultiArray, f"{prefix}_answer", self._answer, DEPTH)

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

    def wait_for(self, size: int, crew: Crew) -> None:
        """Wait until the consumer of a size listens, and can be heard.

        Raises:
            BenchError: It does not come.
        """
        publisher = self._publishers[size]
        answer = f"{self.prefix}_answer"
        wait_for(
            crew,
            lambda: (
                publisher.get_subscription_count() > 0 and self._node.count_publishers(answer) > 0
            ),
            "the consumer of the topic",
        )

    def send(self, payload: npt.NDArray[np.int64]) -> tuple[int | None, int | None]:
        """Publish a payload; returns the ns until it was consumed, and its sum there.

        Both are None if it got lost.
        """
        self._answers.clear()
        begun_ns = time.monotonic_ns()
        data = array("B")
        data.frombytes(payload.data.cast("B"))
        message = UInt8MultiArray(data=data)
        self._publishers[payload.nbytes].publish(message)
        deadline = time.monotonic() + _ANSWER_S
        while not self._answers:
            if time.monotonic() > deadline:
                return None, None
            self._executor.spin_once(timeout_sec=_ANSWER_S)
        consumed_ns, total = self._answers[0]
        return consumed_ns - begun_ns, total

    def _answer(self, message: Any) -> None:
        self._answers.append((int(message.data[0]), int(message.data[1])))
