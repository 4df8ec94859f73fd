"""The other end of a topic that carries goals; a process of its own, without torch.

python -m flashrt_ros.bench.topic_consumer SIZES PREFIX

For each payload it copies the bytes once to where a graph would read them, and answers
with the time at which it had (CLOCK_MONOTONIC, ns) and with their sum.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import UInt8MultiArray, UInt64MultiArray

from flashrt_ros.bench.checksums import checksum

DEPTH = 1
"""Of the payloads' queue: the newest counts."""


def topic(prefix: str, num_bytes: int) -> str:
    """Name the topic of one size."""
    return f"{prefix}_{num_bytes}"


def main(arguments: list[str]) -> int:
    """Answer until a signal comes."""
    sizes, prefix = [int(size) for size in arguments[0].split(",")], arguments[1]
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.ALL)
    node = rclpy.create_node(f"{prefix}_consumer")
    answers = node.create_publisher(UInt64MultiArray, f"{prefix}_answer", DEPTH)
    places = {size: np.zeros(size // 8, np.int64) for size in sizes}

    def consume(message: UInt8MultiArray) -> None:
        place = places[len(message.data)]
        place[:] = np.frombuffer(message.data, np.int64)
        consumed_ns = time.monotonic_ns()
        answers.publish(UInt64MultiArray(data=[consumed_ns, checksum(place)]))

    for size in sizes:
        node.create_subscription(UInt8MultiArray, topic(prefix, size), consume, DEPTH)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        executor.spin()
    except (ExternalShutdownException, KeyboardInterrupt):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
