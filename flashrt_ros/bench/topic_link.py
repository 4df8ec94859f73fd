"""Sends payloads through ROS topics to ``topic_consumer``; needs ROS."""

from __future__ import annotations

import time
from array import array
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
from std_msgs.msg import UInt8MultiArray, UInt64MultiArray

from flashrt_ros.bench.context import Crew
from flashrt_ros.bench.ros_link import RosLink
from flashrt_ros.bench.topic_consumer import DEPTH, topic

_ANSWER_S = 5.0


class TopicLink(RosLink):
    """A publisher for each size, and the consumer's answers.

    Args:
        prefix: Of the topics; unique.
        sizes: Of payloads, bytes.

    Attributes:
        prefix: As given.
    """

    def __init__(self, prefix: str, sizes: tuple[int, ...]) -> None:
        super().__init__(f"{prefix}_sender")
        self.prefix = prefix
        self._answers: list[tuple[int, int]] = []
        self._topic = f"{prefix}_answer"
        with ExitStack() as undo:
            undo.callback(self.close)
            self._publishers = {
                size: self.node.create_publisher(UInt8MultiArray, topic(prefix, size), DEPTH)
                for size in sizes
            }
            self.node.create_subscription(UInt64MultiArray, self._topic, self._answer, DEPTH)
            undo.pop_all()

    def wait_for(self, size: int, crew: Crew) -> None:
        """Wait until the consumer of a size listens, and can be heard.

        Raises:
            BenchError: It does not come.
        """
        self.wait_for_peer(crew, self._publishers[size], self._topic, "the consumer of the topic")

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
        if not self.spin_until(lambda: bool(self._answers), _ANSWER_S):
            return None, None
        consumed_ns, total = self._answers[0]
        return consumed_ns - begun_ns, total

    def _answer(self, message: Any) -> None:
        self._answers.append((int(message.data[0]), int(message.data[1])))
